"""The demo: Python's own standard library in subwords, a model of two layers, local heads first, then routed ones too.

Routed heads have the values of successors: they read what followed where the same was said before.

Command:   make demo, or for the training alone
           tsa-vocabulary --config=demo --size=2000 --output=runs/demo.subwords
           tsa-train --config=demo --workdir=runs/demo
           tsa-evaluate --workdir=runs/demo --split=test
           With local heads only (make demo-compare): --config=demo:local
Hardware:  2 CPU cores
Time:      5.7 minutes for the programs of `make demo` once installed, 9 minutes of processor time
Score:     1.28 bits per byte on the test split of CPython 3.11.7's library (gzip -9: 2.01, xz -9: 1.65); with
           local heads only, in as many weights and steps, 1.57 to 1.58 (two seeds each: docs/quality.md)
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

LOCAL = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 32, "window": 64, "position": "rotary"}
ROUTING = {
    "layer": "RoutingAttention",
    "num_heads": 3,
    "key_dim": 32,
    "num_clusters": 16,
    "cluster_size": 128,
    "use_successor_values": True,
    "ema_decay": 0.9,  # of a training so short
}
VARIANTS = ("mixed", "local", "tiny")


def get_config(variant: str = "mixed") -> ml_collections.ConfigDict:
    """Returns the configuration; "local" has local heads only and as many weights, "tiny" is for tests."""
    if variant not in VARIANTS:
        raise ValueError(f"`variant` must be one of {', '.join(VARIANTS)}. Received: variant={variant}.")
    config = base.get_config()
    config.data.update(tokenizer="subword", vocabulary="runs/demo.subwords", sequence_length=1024, batch_size=4)
    config.model.update(num_layers=2, hidden_dim=128, intermediate_dim=512, tie_embeddings=True)
    config.model.attention = [{**LOCAL, "num_heads": 4}]
    if variant != "local":
        # Local heads first, so that tokens know their neighbours when they are routed. Routed heads have no projection
        # of keys; what that saves is in the feed-forward layers.
        config.model.update(attention=[dict(LOCAL), dict(ROUTING)], num_local_layers=1, intermediate_dim=536)
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=50)
    config.train.update(num_steps=1500, log_every=100, evaluate_every=500, checkpoint_every=500, evaluation_windows=64)
    config.train.illustrate = True
    if variant == "tiny":
        _shrink(config)
    return config


def _shrink(config):
    """Makes the configuration one of seconds, with dropout and without compiling."""
    config.data.update(tokenizer="bytes", vocabulary=None, sequence_length=64, batch_size=2)
    config.model.update(num_layers=2, num_local_layers=0, hidden_dim=16, intermediate_dim=32, dropout=0.1)
    config.model.attention = [
        {**LOCAL, "key_dim": 8, "window": 16},
        {**ROUTING, "num_heads": 1, "key_dim": 8, "num_clusters": 4, "cluster_size": 8},
    ]
    config.optimizer.update(name="adafactor", learning_rate=0.01, schedule="constant", warmup_steps=None)
    config.train.update(num_steps=20, log_every=5, evaluate_every=10, checkpoint_every=5, evaluation_windows=4)
    config.train.update(jit_compile=False, illustrate=False)
    config.generate.length = 16
