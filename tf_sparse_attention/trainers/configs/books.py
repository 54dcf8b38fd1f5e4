"""Bytes of long books, or of any folder of text: routed heads with successor values in the last layer.

Command:   tsa-train --config=books --config.data.path=FOLDER --workdir=runs/books
           tsa-evaluate --workdir=runs/books --split=test
           Instead of the path, a full or partial copy of PG-19: --config.data.tfds=pg19 --config.data.local_dir=FOLDER
           Baseline with only local heads: --config=books:local
Hardware:  2 CPU cores, 8 GB of memory
Time:      30 minutes of processor time on one core; "local" 28
Score:     32 books of PG-19 (21 for training, prepared as `pg19`). Scores of the full PG-19 are not comparable. Bits
           per byte on the validation and test split: 2.055 and 2.092 (seed 0), 2.060 and 2.087 (seed 1); "local" with
           equally many weights and steps: 2.147 and 2.188, 2.160 and 2.186. gzip -9: 3.09 and 3.04, xz -9: 2.55 and
           2.48. Perplexity per word (seed 1): 3618 and 3351; "local" 5382 and 4925
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
    "ema_decay": 0.9,  # for short training
}
VARIANTS = ("mixed", "local")


def get_config(variant: str = "mixed") -> ml_collections.ConfigDict:
    """Return the configuration. "local" has only local heads, and equally many weights."""
    config = base.make_config(variant, VARIANTS)
    config.data.update(sequence_length=2048, batch_size=2)
    config.model.update(num_layers=4, hidden_dim=128, intermediate_dim=512, tie_embeddings=True)
    config.model.attention = [{**LOCAL, "num_heads": 4}]
    if variant == "mixed":  # larger feed-forward layers compensate for the missing key projections
        config.model.update(attention=[dict(LOCAL), dict(ROUTING)], num_local_layers=3, intermediate_dim=524)
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=100)
    config.train.update(num_steps=3500, log_every=50, evaluate_every=500, checkpoint_every=250, evaluation_windows=64)
    return config
