"""The Routing Transformer of Roy et al. (2021) on PG-19: the published optimizer, sizes and windows, on bytes.

Command:   tsa-train --config=pg19 --workdir=runs/pg19
           Offline, from a copy of gs://deepmind-gutenberg: --config.data.local_dir=FOLDER
           The baseline with local heads only: --config=pg19:pg19_local8k
           The published checkpoint's own layers: --config=pg19:pg19_routing_published
Hardware:  a TPU with as many cores as --config.data.batch_size says, 128 here; the published run gave each core one
           window of 8192 tokens
Time:      not run here
Score:     not run here. The paper's 33.2 is the perplexity per word of a model on 98,302 subwords.

Differs from the paper in the tokens, which are bytes here, and in the routed heads, which are "nearest": the published
selection, --config.model.reproduce_reference=True, is not causal.
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base


def get_config(preset: str = "pg19_local_cluster8k") -> ml_collections.ConfigDict:
    """Returns the configuration of a preset for PG-19."""
    config = base.get_config()
    config.data.update(tfds="pg19", sequence_length=8192, batch_size=128)
    config.model.update(preset=preset, remat=True)
    config.optimizer.update(
        name="adafactor", learning_rate=0.01, schedule="rsqrt_normalized_decay", warmup_steps=10_000
    )
    config.train.update(
        num_steps=500_000, log_every=100, evaluate_every=5_000, checkpoint_every=1_000, evaluation_windows=512
    )
    config.train.dtype = "mixed_bfloat16"
    return config
