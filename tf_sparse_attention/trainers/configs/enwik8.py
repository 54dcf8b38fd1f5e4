"""Bytes of Wikipedia: the published Routing Transformer with 12 layers of 4 local and 4 routed heads.

Command:   tsa-train --config=enwik8 --config.data.path=enwik8 --workdir=runs/enwik8
           The file enwik8 (http://mattmahoney.net/dc/enwik8.zip, unpacked) is split into 90, 5 and 5 million bytes.
           Other presets: --config=enwik8:enwik8_local_cluster12k, or :enwik8_local8k
Hardware:  8 devices with at least 16 GB of memory, each with one window of 8192 or 12,288 bytes
Time:      not run here
Score:     not run here
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

VARIANTS = {"enwik8_local_cluster8k": 8192, "enwik8_local_cluster12k": 12288, "enwik8_local8k": 8192}


def get_config(variant: str = "enwik8_local_cluster8k") -> ml_collections.ConfigDict:
    """Return the configuration of a preset."""
    config = base.make_config(variant, VARIANTS)
    config.data.update(sequence_length=VARIANTS[variant], batch_size=8, use_packing=False)
    config.model.update(preset=variant, remat=True)
    config.optimizer.update(base.ROUTING_TRANSFORMER)
    config.train.update(base.LONG_TRAINING, num_steps=100_000, evaluate_every=2_000, evaluation_windows=128)
    return config
