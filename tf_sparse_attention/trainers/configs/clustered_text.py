"""Masked bytes of Python's source code, predicted with clustered attention.

Clustered attention is not causal: it cannot generate text. The sizes are for a CPU; Vyas et al. 2020 has 100 clusters,
63 bits, 10 iterations and the top 32 keys.

Command:   tsa-train --config=clustered_text --workdir=runs/clustered
           tsa-evaluate --workdir=runs/clustered --split=test
           Variants: --config=clustered_text:plain, without top-k keys; :lsh, bidirectional LSH attention; :tiny,
           a small model
Hardware:  2 CPU cores
Time:      not run to the end; "tiny" 2 minutes
Score:     "tiny" 3.63 bits per masked byte on the validation split
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

CLUSTERED = {"layer": "ClusteredAttention", "num_heads": 4, "key_dim": 32, "num_clusters": 32, "num_bits": 63}
LSH = {"layer": "LSHAttention", "num_heads": 4, "key_dim": 32, "num_buckets": 8, "bucket_size": 64, "num_rounds": 2}
VARIANTS = {
    "improved": {**CLUSTERED, "top_k": 32},
    "plain": CLUSTERED,
    "lsh": LSH,
    "tiny": {**CLUSTERED, "num_heads": 2, "num_clusters": 16, "top_k": 16},
}
# Local heads, because masked bytes depend strongly on their neighbors.
LOCAL = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 32, "window": 16, "position": "relative"}


def get_config(variant: str = "improved") -> ml_collections.ConfigDict:
    """Return the configuration of a variant."""
    config = base.make_config(variant, VARIANTS, "masked")
    config.data.update(sequence_length=512, batch_size=8, use_packing=False, mask_rate=0.15)
    config.model.update(num_layers=4, hidden_dim=128, intermediate_dim=512, causal=False, tie_embeddings=True)
    config.model.update(grid=[32, 16])
    config.model.attention = [dict(LOCAL), dict(VARIANTS[variant])]
    config.optimizer.update(name="adamw", learning_rate=2e-3, schedule="cosine", warmup_steps=100)
    config.train.update(num_steps=3000, log_every=100, evaluate_every=500, checkpoint_every=500, evaluation_windows=64)
    if variant == "tiny":
        config.data.update(sequence_length=256)
        config.model.update(num_layers=2, hidden_dim=64, intermediate_dim=256, grid=[16, 16])
        config.train.update(num_steps=400, log_every=50, evaluate_every=200, checkpoint_every=200)
    return config
