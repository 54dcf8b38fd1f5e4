"""Bytes of long books, or of any folder of text: routed heads with the values of successors in the last layer.

Command:   tsa-train --config=books --config.data.path=FOLDER --workdir=runs/books
           tsa-evaluate --workdir=runs/books --split=test
           For a copy, or a part, of the PG-19 corpus in place of the path:
           --config.data.tfds=pg19 --config.data.local_dir=FOLDER
           With local heads only: --config=books:local
Hardware:  2 CPU cores, 8 GB of memory
Time:      30 minutes of processor time on one core; with local heads only 28
Score:     32 books of PG-19 (21 to train on, prepared as `pg19`), bits per byte on the validation and the test books,
           seeds 0 and 1: 2.036 and 2.067, 2.053 and 2.085; with local heads only, in as many weights and steps, 2.138
           and 2.165, 2.152 and 2.187 (gzip -9: 3.09 and 3.04, xz -9: 2.55 and 2.48). Perplexity per word 3285 and 3102
           of seed 0, local 4933 and 4530. A part of PG-19, so no PG-19 score.
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

LOCAL = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 32, "window": 128, "position": "rotary"}
ROUTING = {
    "layer": "RoutingAttention",
    "num_heads": 3,
    "key_dim": 32,
    "num_clusters": 16,
    "cluster_size": 256,
    "use_successor_values": True,
    "ema_decay": 0.9,  # of a training so short
}
VARIANTS = ("mixed", "local")


def get_config(variant: str = "mixed") -> ml_collections.ConfigDict:
    """Returns the configuration; "local" has local heads only and as many weights."""
    if variant not in VARIANTS:
        raise ValueError(f"`variant` must be one of {', '.join(VARIANTS)}. Received: variant={variant}.")
    config = base.get_config()
    config.data.update(sequence_length=2048, batch_size=2)
    config.model.update(num_layers=4, hidden_dim=128, intermediate_dim=512, tie_embeddings=True)
    config.model.attention = [{**LOCAL, "num_heads": 4}]
    if variant == "mixed":  # the projections that routed heads do not have are in the feed-forward layers
        config.model.update(attention=[dict(LOCAL), dict(ROUTING)], num_local_layers=3, intermediate_dim=524)
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=100)
    config.train.update(num_steps=3500, log_every=50, evaluate_every=500, checkpoint_every=250, evaluation_windows=64)
    config.generate.update(prompt="", length=600)
    return config
