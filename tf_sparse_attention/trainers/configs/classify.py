"""Text classification on JSON lines with the fields "text" and "label".

Command:   tsa-vocabulary --config=classify --config.data.path=FILE.jsonl --size=2000 --output=runs/classify.subwords
           tsa-train --config=classify --config.data.path=FILE.jsonl --workdir=runs/classify
           Instead of the path, a data set of TFDS: --config.data.tfds=imdb_reviews
           Variants: --config=classify:clustered or :improved, clustered attention; :local; :mixed, local and routed
           heads
Hardware:  2 CPU cores, 4 GB of memory
Time:      not run with these settings; 350 steps with 384 tokens (docs/tasks.md): 7 minutes on a shared core
Score:     after these 350 steps: test accuracy 0.82 in finding which of 21 books a passage is from
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

HEADS = {"num_heads": 4, "key_dim": 16, "position": "rotary"}
CLUSTERED = {"layer": "ClusteredAttention", **HEADS, "num_clusters": 25, "num_bits": 32}
LOCAL = {"layer": "LocalAttention", **HEADS, "window": 64}
ROUTED = {"layer": "RoutingAttention", **HEADS, "num_heads": 2, "num_clusters": 8, "cluster_size": 64}
VARIANTS = {
    "full": [{"layer": "DenseAttention", **HEADS}],
    "clustered": [CLUSTERED],
    "improved": [{**CLUSTERED, "top_k": 32}],
    "local": [LOCAL],
    "mixed": [{**LOCAL, "num_heads": 2}, {**ROUTED, "selection": "nearest"}],
}


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Return the configuration of a variant."""
    config = base.make_config(variant, VARIANTS, "classify")
    config.data.update(tokenizer="subword", vocabulary="runs/classify.subwords", sequence_length=512, batch_size=8)
    config.model.update(num_layers=2, hidden_dim=64, intermediate_dim=256, causal=False, dropout=0.1)
    # With windows, the first position does not attend to all of a long text.
    config.model.update(attention=[dict(part) for part in VARIANTS[variant]])
    config.model.pooling = "mean" if variant in ("local", "mixed") else "first"
    config.optimizer.update(name="adamw", learning_rate=2e-3, schedule="cosine", warmup_steps=50)
    config.train.update(num_steps=600, log_every=50, evaluate_every=200, checkpoint_every=200, evaluation_windows=200)
    return config
