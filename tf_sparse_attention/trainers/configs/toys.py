"""All tasks at toy size, on data that `make tasks` generates. Training takes minutes.

Command:   make tasks, or one task after `python -m benchmarks.tasks.made --folder=runs/tasks/data`:
           tsa-train --config=toys:translate --workdir=runs/tasks/translate
           Variants: language_model, masked, translate, answer, image, audio, speech and classify
Hardware:  2 CPU cores, 4 GB of memory
Time:      `make tasks`: 9 minutes of processor time, 22 minutes on shared cores; trainings take 35 (image) to 161
           (answer) seconds, including a kill and a resume
Score:     test split, seed 0: language_model 0.20 bits per byte (xz -9: 1.02), masked 0.62 bits per masked byte,
           translate 0.46 bits per byte (7.54 without the source), answer 0.05 (1.65 without the question; ROUGE-L
           93.8), image 0.22 bits per dimension, audio 3.55 bits per byte, speech character error rate 0, classify
           accuracy 1
"""

import copy
from typing import Any

import ml_collections

from tf_sparse_attention.trainers.configs import base

FOLDER = "runs/tasks/data"
HEADS = {"num_heads": 2, "key_dim": 16}
LOCAL = {"layer": "LocalAttention", "window": 16, "position": "rotary", **HEADS}
ROUTED = {"layer": "RoutingAttention", "num_clusters": 4, "cluster_size": 32, "ema_decay": 0.9, **HEADS}
CAUSAL = [LOCAL, {**ROUTED, "use_successor_values": True}]
BOTH_SIDES = [LOCAL, {**ROUTED, "selection": "nearest"}]
BIDIRECTIONAL = {"causal": False, "attention": BOTH_SIDES}
VARIANTS: dict[str, dict[str, Any]] = {
    "language_model": {"path": "text", "sequence_length": 256},
    "masked": {"path": "text", "sequence_length": 256, "mask_rate": 0.15, "use_packing": False},
    "translate": {"path": "pairs.jsonl", "source_field": "words", "target_field": "digits", "sequence_length": 64},
    "answer": {"path": "questions.jsonl", "source_field": "question+passages", "target_field": "answer"},
    "image": {"path": "images.npz", "sequence_length": 192, "image_shape": (8, 8, 3)},
    "audio": {
        "path": "sounds.npz",
        "sequence_length": 512,
        "train_split": "train[:90%]",
        "validation_split": "train[90%:]",
    },
    "speech": {"path": "spoken", "sequence_length": 256, "sample_rate": 8000, "num_bands": 20},
    "classify": {"path": "labeled.jsonl", "sequence_length": 64},
}
MODELS: dict[str, dict[str, Any]] = {
    "masked": BIDIRECTIONAL,
    "translate": {"encoder_attention": BOTH_SIDES, "cross_attention": [{"layer": "DenseAttention", **HEADS}]},
    "image": {"grid": [8, 8, 3]},
    "audio": {"grid": [16, 32]},
    "speech": {**BIDIRECTIONAL, "subsampling": 2},
    "classify": {**BIDIRECTIONAL, "pooling": "mean"},
}
NUM_STEPS = {"image": 200, "audio": 200}


def get_config(variant: str = "language_model") -> ml_collections.ConfigDict:
    """Return the configuration of a task."""
    config = base.make_config(variant, VARIANTS, variant)
    config.data.update({"sequence_length": 256, "batch_size": 8, **VARIANTS[variant]})
    config.data.update(path=f"{FOLDER}/{config.data.path}", data_dir=FOLDER)
    config.model.update(num_layers=2, hidden_dim=64, intermediate_dim=128, num_local_layers=1)
    config.model.update(copy.deepcopy({"attention": CAUSAL, **MODELS.get(variant, {})}))
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=20)
    steps = NUM_STEPS.get(variant, 300)
    config.train.update(num_steps=steps, log_every=50, evaluate_every=steps, checkpoint_every=50, jit_compile=False)
    if variant not in ("translate", "answer", "speech"):
        config.train.evaluation_windows = 16
    if variant in ("language_model", "translate", "answer", "audio"):
        config.generate.length = 64
    if variant in ("image", "audio"):
        config.generate.top_p = 1.0  # smaller values draw only the background
    if variant in ("translate", "answer"):
        config.train.generated_targets, config.generate.temperature = 16, 0.0
    return config
