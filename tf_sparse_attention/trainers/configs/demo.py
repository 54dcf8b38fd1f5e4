"""The demo: subwords of Python's standard library, a layer with local heads and a layer with local and routed heads.

Routed heads have successor values: they read the tokens that followed similar tokens.

Command:   make demo, or only the training:
           tsa-vocabulary --config=demo --size=2000 --output=runs/demo.subwords
           tsa-train --config=demo --workdir=runs/demo
           tsa-evaluate --workdir=runs/demo --split=test
           Baseline with only local heads (make demo-compare): --config=demo:local
Hardware:  2 CPU cores
Time:      5.7 minutes for `make demo` after installation, 9 minutes of processor time
Score:     1.28 to 1.29 bits per byte on the test split of the library of CPython 3.11.7 (gzip -9: 2.01, xz -9: 1.65);
           "local" with equally many weights and steps 1.57 (two seeds each: docs/quality.md)
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
    "ema_decay": 0.9,  # for short training
}
VARIANTS = ("mixed", "local", "tiny")


def get_config(variant: str = "mixed") -> ml_collections.ConfigDict:
    """Return the configuration. "local" has only local heads and equally many weights; "tiny" is for tests."""
    config = base.make_config(variant, VARIANTS)
    config.data.update(tokenizer="subword", vocabulary="runs/demo.subwords", sequence_length=1024, batch_size=4)
    config.model.update(num_layers=2, hidden_dim=128, intermediate_dim=512, tie_embeddings=True)
    config.model.attention = [{**LOCAL, "num_heads": 4}]
    if variant != "local":
        # The first layer has only local heads, so that routing uses the context of tokens. Larger feed-forward layers
        # compensate for the missing key projections of routed heads.
        config.model.update(attention=[dict(LOCAL), dict(ROUTING)], num_local_layers=1, intermediate_dim=536)
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=50)
    config.train.update(num_steps=1500, log_every=100, evaluate_every=500, checkpoint_every=500, evaluation_windows=64)
    config.train.illustrate = True
    if variant == "tiny":
        _shrink(config)
    return config


def _shrink(config):
    """Reduce the sizes so that training takes seconds. Add dropout, and disable compilation."""
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
