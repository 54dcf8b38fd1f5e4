"""Bytes of Wikipedia: the published Sparse Transformer with 30 layers of fixed attention over 12,288 bytes.

Command:   tsa-train --config=sparse_transformer_enwik8 --config.data.path=enwik8 --workdir=runs/sparse_transformer
           The file enwik8 (http://mattmahoney.net/dc/enwik8.zip, unpacked) is split into 90, 5 and 5 million bytes.
           Variants: --config=sparse_transformer_enwik8:tiny, a small model of Python's source code (omit
           --config.data.path); :tiny_strided, with strided attention
Hardware:  8 devices with at least 16 GB of memory ("tiny": 2 CPU cores)
Time:      not run here; "tiny" 2 minutes
Score:     not run here; paper: 0.99 bits per byte; on the validation split "tiny" 3.75, "tiny_strided" 3.93
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

VARIANTS = ("published", "tiny", "tiny_strided")


def get_config(variant: str = "published") -> ml_collections.ConfigDict:
    """Return the configuration of Child et al. 2019, section 7.2, or of a small model."""
    config = base.make_config(variant, VARIANTS)
    config.data.update(sequence_length=12_288, batch_size=8, use_packing=False)
    config.model.preset = "sparse_transformer_enwik8"
    config.optimizer.update(base.SPARSE_TRANSFORMER)
    config.train.update(base.LONG_TRAINING, num_steps=120_000, evaluate_every=2_000, evaluation_windows=128)
    if variant != "published":
        _shrink(config, strided=variant == "tiny_strided")
    return config


def _shrink(config, strided):
    """Reduce the sizes so that training takes minutes on a CPU."""
    config.data.update(sequence_length=256, batch_size=8, use_packing=True)
    pattern = {"layer": "FixedAttention", "block_size": 16, "num_summary": 4, "num_groups": 2}
    if strided:
        pattern = {"layer": "StridedAttention", "stride": 16}
    config.model.preset = None
    config.model.update(num_layers=3, hidden_dim=64, intermediate_dim=256, activation="quick_gelu")
    config.model.update(grid=[16, 16], initialization="depth", tie_embeddings=False)
    config.model.attention = [{**pattern, "num_heads": 4, "key_dim": 16, "heads": "split"}]
    config.optimizer.update(learning_rate=3e-3, warmup_steps=50)
    config.train.update(num_steps=400, log_every=50, evaluate_every=200, checkpoint_every=200, evaluation_windows=64)
    config.train.dtype = "float32"
    config.generate.length = 200
