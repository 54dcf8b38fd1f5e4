"""Long-form question answering on JSON lines with the fields "question", "passages" and "answer".

Command:   tsa-train --config=answer --config.data.path=FILE.jsonl --config.data.vocabulary=FILE --workdir=runs/answer
           Variants: --config=answer:encoder, an encoder-decoder; :published, the sizes of the published ELI5
           checkpoint, whose converted weights --config.model.start_from=NAME.keras loads (docs/converting.md)
Hardware:  2 CPU cores, 8 GB of memory; "published": as pg19.py
Time:      not run to the end
Score:     not run to the end

As published, a language model reads question, passages and answer; only the answer is scored. The variant "published"
has "nearest" heads, because the published selection (--config.model.reproduce_reference=True) is not causal.
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

HEADS = {"num_heads": 2, "key_dim": 32}
NEAR = {"layer": "LocalAttention", "window": 128, "position": "rotary", **HEADS}
ROUTED = {"layer": "RoutingAttention", "num_clusters": 16, "cluster_size": 64, **HEADS}
VARIANTS = ("small", "encoder", "published")


def get_config(variant: str = "small") -> ml_collections.ConfigDict:
    """Return the configuration of a variant."""
    config = base.make_config(variant, VARIANTS, "answer")
    config.data.update(source_field="question+passages", target_field="answer", tokenizer="subword")
    config.generate.update(length=500, top_p=0.9)
    if variant == "published":
        config.data.update(sequence_length=8192, batch_size=128)
        config.model.update(preset="pg19_routing_published", dropout=0.1, remat=True)
        config.optimizer.update(base.ROUTING_TRANSFORMER)
        config.train.update(base.LONG_TRAINING, num_steps=100_000, evaluate_every=5_000)
        return config
    config.data.update(sequence_length=2048, batch_size=2)
    config.model.update(num_layers=3, hidden_dim=128, intermediate_dim=512, tie_embeddings=True, num_local_layers=2)
    config.model.attention = [dict(NEAR), {**ROUTED, "use_successor_values": True}]
    if variant == "encoder":
        config.model.encoder_attention = [dict(NEAR), {**ROUTED, "selection": "nearest"}]
        config.model.cross_attention = [{"layer": "DenseAttention", **HEADS, "num_heads": 4}]
    config.optimizer.update(name="adamw", learning_rate=2e-3, schedule="cosine", warmup_steps=100)
    config.train.update(num_steps=3000, log_every=50, evaluate_every=500, checkpoint_every=250)
    return config
