"""Phone recognition: encoders with different attention patterns, trained with the CTC loss.

The variants have the attention of Vyas et al. 2020, section 4.1, or sparse attention of this library. All variants have
equally many weights.

Command:   tsa-train --config=speech:clustered --config.data.path=SPEECH.npz --workdir=runs/speech
           tsa-evaluate --workdir=runs/speech --split=test
           Variants: full, clustered, improved, lsh, local, routed; "tiny" is for tests
Hardware:  one CPU core
Time:      not run to the end; docs/tasks.md has the steps of each variant in 5 minutes of processor time
Score:     not run to the end; docs/tasks.md has the phone error rates after these 5 minutes, 1.74 % ("local") to 4.71 %
           ("improved"). One seed of "full" after 1,608 of 2,000 steps: 1.98 %, with 8 beams 1.82 %
"""

from typing import Any

import ml_collections

from tf_sparse_attention.trainers.configs import base

HEADS = {"num_heads": 4, "key_dim": 32, "position": "rotary"}
CLUSTERED: dict[str, Any] = {"layer": "ClusteredAttention", "num_clusters": 100, "num_bits": 63}
KINDS: dict[str, dict[str, Any]] = {
    "full": {"layer": "DenseAttention"},
    "clustered": CLUSTERED,
    "improved": {**CLUSTERED, "top_k": 32},
    "lsh": {"layer": "LSHAttention", "num_buckets": 16, "bucket_size": 32, "num_rounds": 4, "selection": "chunks"},
    "local": {"layer": "LocalAttention", "window": 64},
    "routed": {"layer": "RoutingAttention", "num_clusters": 16, "cluster_size": 64, "selection": "nearest"},
}
# Larger feed-forward layers compensate for the key projections that layers with shared queries and keys do not have.
SHARED = ("lsh", "routed")
VARIANTS = (*KINDS, "tiny")


def get_config(variant: str = "improved") -> ml_collections.ConfigDict:
    """Return the configuration of a variant."""
    config = base.make_config(variant, VARIANTS, "speech")
    kind = "local" if variant == "tiny" else variant
    config.data.update(sequence_length=4608, batch_size=1)
    config.data.update(time_masks=3.0, time_mask_width=40, frequency_masks=2, frequency_mask_width=8)
    config.model.update(num_layers=4, hidden_dim=128, intermediate_dim=512, subsampling=4, causal=False, dropout=0.1)
    if kind in SHARED:
        config.model.intermediate_dim = 576
    config.model.attention = [{**KINDS[kind], **HEADS}]
    config.optimizer.update(name="adamw", learning_rate=2e-3, schedule="cosine", warmup_steps=200)
    config.optimizer.update(weight_decay=0.01, global_clipnorm=1.0)
    # XLA compiles each of five lengths for minutes, but a run takes less than an hour.
    config.train.update(num_steps=3000, log_every=50, evaluate_every=500, checkpoint_every=250, jit_compile=False)
    if variant == "tiny":
        config.data.update(sequence_length=800, batch_size=2)
        config.model.update(num_layers=1, hidden_dim=16, intermediate_dim=32)
        config.model.attention = [{**KINDS["local"], **HEADS, "num_heads": 2, "key_dim": 8}]
        config.train.update(num_steps=20, log_every=5, evaluate_every=10, checkpoint_every=5)
    return config
