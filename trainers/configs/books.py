"""Bytes of long books, or of any folder of text: a model to train in half an hour on two CPU cores.

Command:   python -m trainers.train --config=trainers/configs/books.py --config.data.path=FOLDER --workdir=runs/books
           For a copy, or a part, of the PG-19 corpus in place of the path:
           --config.data.tfds=pg19 --config.data.local_dir=FOLDER
Hardware:  2 CPU cores, 8 GB of memory
Time:      74 minutes by the clock on a machine with three times the work it had cores for; alone a step takes 0.43 s,
           which makes 25 minutes
Score:     32 books of PG-19 (21 to train on, prepared as `pg19`): 2.09 bits per byte on the validation books (gzip -9:
           3.09, xz -9: 2.55) and 2.13 on the test books (3.04, 2.48); perplexity per word 4108 and 3914. A part of
           PG-19, so no PG-19 score.
"""

import ml_collections

from trainers.configs import base

LOCAL = {"layer": "LocalAttention", "num_heads": 3, "key_dim": 32, "window": 256, "position": "rotary"}
ROUTING = {
    "layer": "RoutingAttention",
    "num_heads": 1,
    "key_dim": 32,
    "num_clusters": 16,
    "cluster_size": 128,
    "position": "rotary",
}


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = base.get_config()
    config.data.update(sequence_length=1024, batch_size=4)
    config.model.update(num_layers=6, hidden_dim=128, intermediate_dim=512, tie_embeddings=True)
    config.model.attention = [dict(LOCAL), dict(ROUTING)]
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=100)
    config.train.update(num_steps=3500, log_every=50, evaluate_every=500, checkpoint_every=250, evaluation_windows=64)
    config.generate.update(prompt="", length=600)
    return config
