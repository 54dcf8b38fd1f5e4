"""Bytes of Wikipedia: all-attention layers with adaptive spans, segments of 512 and a memory of 8192 positions.

The small model of Sukhbaatar et al. 2019, "Augmenting self-attention with persistent memory", section 5.1: no
feed-forward layers, 1024 persistent vectors per head, Adagrad with clipped steps. Each layer has its own position
table; in the paper, layers share one table.

Command:   tsa-train --config=all_attention_enwik8 --config.data.path=enwik8 --workdir=runs/all_attention
           The file enwik8 (http://mattmahoney.net/dc/enwik8.zip, unpacked) is split into 90, 5 and 5 million bytes.
           Variants: --config=all_attention_enwik8:large, the large model; :tiny, a small model of Python's source code
           (omit --config.data.path)
Hardware:  one device with 40 GB of memory, because segment memory supports one device ("tiny": 2 CPU cores)
Time:      not run here; "tiny" 2 minutes
Score:     not run here; paper: 1.01 bits per byte (large: 0.98); "tiny" 3.46 on the validation split
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

VARIANTS = {"small": (18, 1024), "large": (36, 2048), "tiny": (2, 64)}  # layers and persistent vectors


def get_config(variant: str = "small") -> ml_collections.ConfigDict:
    """Return the configuration of a variant."""
    config = base.make_config(variant, VARIANTS)
    num_layers, num_persistent = VARIANTS[variant]
    config.data.update(sequence_length=512, batch_size=64, use_packing=False)
    config.model.update(num_layers=num_layers, hidden_dim=512, norm="post", memory_length=8192)
    config.model.layer_norm_epsilon = 1e-5
    part = {"layer": "AllAttention", "num_heads": 8, "key_dim": 64, "num_persistent": num_persistent, "window": 8192}
    part |= {"position": "relative", "use_bias": False, "dropout": 0.4 if variant == "large" else 0.3}
    part["adaptive_span"] = {"ramp": 32, "loss": 1e-7}
    config.model.attention = [part]
    config.optimizer.update(name="adagrad", learning_rate=0.07, schedule="constant", warmup_steps=32_000, clip=0.03)
    config.train.update(num_steps=900_000, log_every=100, evaluate_every=10_000, checkpoint_every=5_000)
    config.train.update(evaluation_windows=1280, shrink_windows_every=1000, dtype="mixed_bfloat16")
    if variant == "tiny":
        _shrink(config)
    return config


def _shrink(config):
    """Reduce the sizes so that training takes minutes on a CPU."""
    config.data.update(sequence_length=128, batch_size=8, use_packing=True)
    config.model.update(hidden_dim=64, memory_length=256)
    span = {"ramp": 16, "loss": 1e-4}
    config.model.attention[0].update(num_heads=2, key_dim=32, window=256, dropout=0.0, adaptive_span=span)
    config.optimizer.update(learning_rate=0.1, warmup_steps=50, clip=0.3)
    config.train.update(num_steps=400, log_every=50, evaluate_every=200, checkpoint_every=200, evaluation_windows=64)
    config.train.update(shrink_windows_every=100, shrink_windows_margin=16, dtype="float32")
    config.generate.length = 200
