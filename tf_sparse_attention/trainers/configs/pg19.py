"""Bytes of PG-19: the Routing Transformer of Roy et al. (2021) with the published optimizer, sizes and windows.

Command:   tsa-train --config=pg19 --workdir=runs/pg19
           Offline, from a copy of gs://deepmind-gutenberg: --config.data.local_dir=FOLDER
           Other presets: --config=pg19:pg19_local8k, only local heads; :pg19_routing_published, the layers of the
           published checkpoint
Hardware:  a TPU with --config.data.batch_size cores, here 128; in the published run, each core has one window of 8192
           tokens
Time:      not run here
Score:     not run here. The paper has a perplexity per word of 33.2 with 98,302 subwords

Differs from the paper: tokens are bytes, and routed heads are "nearest", because the published selection
(--config.model.reproduce_reference=True) is not causal.
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base


def get_config(preset: str = "pg19_local_cluster8k") -> ml_collections.ConfigDict:
    """Return the configuration of a preset."""
    config = base.get_config()
    config.data.update(tfds="pg19", sequence_length=8192, batch_size=128)
    config.model.update(preset=preset, remat=True)
    config.optimizer.update(base.ROUTING_TRANSFORMER)
    config.train.update(base.LONG_TRAINING, num_steps=500_000, evaluate_every=5_000, evaluation_windows=512)
    return config
