"""Subwords of WikiText-103: the published Routing Transformers.

Command:   tsa-vocabulary --config=wikitext103 --config.data.path=FOLDER --size=32000 --output=runs/wikitext103.subwords
           tsa-train --config=wikitext103 --config.data.path=FOLDER --workdir=runs/wikitext103
           FOLDER has the files of WikiText-103 as train/wiki.train.tokens, validation/wiki.valid.tokens and
           test/wiki.test.tokens.
           Other presets: --config=wikitext103:wikitext103_local_cluster1k; :wikitext103_local4k, only local heads
Hardware:  8 devices with at least 16 GB of memory, each with one window of 4096 tokens or four of 1024
Time:      not run here
Score:     not run here; `tsa-evaluate` prints the perplexity per word

Differs from the paper: sizes are those of the published code, tokens are subwords, and routed heads are "nearest",
because the published selection (--config.model.reproduce_reference=True) is not causal.
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

VARIANTS = {"wikitext103_local_cluster4k": 4096, "wikitext103_local_cluster1k": 1024, "wikitext103_local4k": 4096}


def get_config(variant: str = "wikitext103_local_cluster4k") -> ml_collections.ConfigDict:
    """Return the configuration of a preset."""
    config = base.make_config(variant, VARIANTS)
    length = VARIANTS[variant]
    config.data.update(pattern="**/*.tokens", tokenizer="subword", vocabulary="runs/wikitext103.subwords")
    config.data.update(sequence_length=length, batch_size=8 * 4096 // length, use_packing=False)
    config.model.update(preset=variant, remat=True)
    config.optimizer.update(base.ROUTING_TRANSFORMER)
    config.train.update(base.LONG_TRAINING, num_steps=100_000, evaluate_every=2_000, evaluation_windows=128)
    return config
