"""Translation of whole documents: an encoder-decoder with dense cross-attention to the source.

Command:   tsa-train --config=translate_documents --config.data.path=FILE.jsonl
           --config.data.source_field=en --config.data.target_field=fr --config.data.vocabulary=FILE
           --workdir=runs/translate
           Instead of the path, a data set of TFDS: --config.data.tfds=wmt14_translate/de-en
           Variants: --config=translate_documents:local, only local heads; :translate_local_cluster4k, the size of the
           published code
Hardware:  2 CPU cores, 8 GB of memory; for the published size a TPU
Time:      not run to the end; 1,000 steps with documents: 33 minutes of processor time on one core, with
           --config.train.jit_compile=False (XLA compiles each of five lengths for a minute)
Score:     not run to the end. docs/tasks.md has the bits per byte of "mixed" and "local" after 1,000 steps on English
           and French manual pages. On whole pages, 8 generated targets of "mixed" and "local" have chrF 7.8 and 12.1,
           BLEU 2.0 and 4.0; the English sources have chrF 60.8 and BLEU 53.3. On paragraphs, 200 generated targets of
           "mixed" and "local" have chrF 12.4 and 11.8; the English sources have 50.9
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

HEADS = {"num_heads": 2, "key_dim": 32}
LOCAL = {"layer": "LocalAttention", "window": 64, "position": "rotary"}
ROUTED = {"layer": "RoutingAttention", "num_clusters": 16, "cluster_size": 64}
PRESET = "translate_local_cluster4k"
VARIANTS = ("mixed", "local", PRESET)


def get_config(variant: str = "mixed") -> ml_collections.ConfigDict:
    """Return the configuration of a variant."""
    config = base.make_config(variant, VARIANTS, "translate")
    config.data.update(tokenizer="subword", sequence_length=4096, batch_size=1)
    config.generate.update(length=1000)
    config.train.label_smoothing = 0.1
    if variant == PRESET:
        _set_published(config)
        return config
    config.model.update(num_layers=3, hidden_dim=128, intermediate_dim=512, tie_embeddings=True)
    config.model.attention = config.model.encoder_attention = [{**LOCAL, **HEADS, "num_heads": 4}]
    if variant == "mixed":
        near = {**LOCAL, **HEADS}
        config.model.attention = [near, {**ROUTED, **HEADS, "use_successor_values": True}]
        config.model.encoder_attention = [near, {**ROUTED, **HEADS, "selection": "nearest"}]
        config.model.num_local_layers = 2
    config.model.cross_attention = [{"layer": "DenseAttention", **HEADS, "num_heads": 4}]
    config.optimizer.update(name="adamw", learning_rate=2e-3, schedule="cosine", warmup_steps=100)
    config.train.update(num_steps=3000, log_every=50, evaluate_every=500, checkpoint_every=250)
    return config


def _set_published(config):
    """Set the published settings for documents. The learning rate is as in Vaswani et al. 2017."""
    config.model.update(preset=PRESET, remat=True)
    config.optimizer.update(name="adam", learning_rate=1.0, schedule="noam", warmup_steps=4000, beta_1=0.9, beta_2=0.98)
    config.train.update(base.LONG_TRAINING, num_steps=100_000, evaluate_every=5_000)
