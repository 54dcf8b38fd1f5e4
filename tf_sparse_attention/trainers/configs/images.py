"""Images of 32 x 32 pixels as byte sequences: attention patterns compared at equal numbers of weights.

Command:   tsa-train --config=images --config.data.tfds=cifar10 \
           --config.data.train_split=train[:96%] --config.data.validation_split=train[96%:] --workdir=runs/images
           tsa-evaluate --workdir=runs/images --split=test
           tsa-generate --workdir=runs/images --num_samples=8
           tsa-generate --workdir=runs/images --num_samples=8 --complete=test
           Instead of TFDS, a folder of PNG or JPEG files, or a file NAME.npz with arrays x_train, ...:
           --config.data.path=PATH and the names of its splits
           Variants: --config=images:mixed (default), local and routed heads; :local, windows of 128 bytes; :local_2d,
           blocks of 4 x 4 pixels and adjacent blocks; :strided, the last image row and the bytes above; :top_k, the
           published selection of routed heads, which is not causal: its score is not a likelihood
           All variants for the same time, on one NVIDIA H200: KERAS_BACKEND=jax python -m benchmarks.images
           --path=NAME.npz --seconds=30 --batch_size=20 --dtype=mixed_bfloat16
Hardware:  2 CPU cores, 8 GB of memory; one NVIDIA H200 for the second command
Time:      not run to the end by the trainer; 250 steps with a shorter schedule: 4 minutes on shared cores. GPU: 30
           seconds of training per variant, 1,700 to 2,500 steps
Score:     "mixed" after the 250 steps on 2,000 images of CIFAR-10: 5.94 bits per dimension on 500 other images. GPU:
           docs/tasks.md
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

SIZE, CHANNELS = 32, 3  # pixels per side; grey images have 1 channel
ROW = SIZE * CHANNELS  # bytes
HEADS = {"num_heads": 4, "key_dim": 32}
LOCAL = {"layer": "LocalAttention", "window": 128, "position": "rotary", **HEADS}
ROUTED = {
    "layer": "RoutingAttention",
    "num_clusters": 16,
    "cluster_size": 192,
    "ema_decay": 0.9,  # for short training
    "num_heads": 2,
    "key_dim": 32,
}
VARIANTS = {
    "mixed": [{**LOCAL, "num_heads": 2}, {**ROUTED, "use_successor_values": True}],
    "local": [LOCAL],
    "local_2d": [
        {
            "layer": "LocalAttention2D",
            "width": ROW,
            "height": SIZE,
            "block_shape": (4, 4 * CHANNELS),  # bytes; 6 blocks cost about as much as a window of 128
            "position": "rotary_2d",
            **HEADS,
        }
    ],
    "strided": [{"layer": "StridedAttention", "stride": ROW, "heads": "split", "position": "rotary", **HEADS}],
    "top_k": [{**LOCAL, "num_heads": 2}, {**ROUTED, "selection": "top_k"}],
}


def get_config(variant: str = "mixed") -> ml_collections.ConfigDict:
    """Return the configuration of a variant."""
    config = base.make_config(variant, VARIANTS, "image")
    config.data.update(image_shape=(SIZE, SIZE, CHANNELS), sequence_length=SIZE * ROW, batch_size=2)
    config.model.update(num_layers=4, hidden_dim=128, intermediate_dim=512, grid=[SIZE, SIZE, CHANNELS])
    config.model.attention = [dict(part) for part in VARIANTS[variant]]
    if variant in ("mixed", "top_k"):  # larger feed-forward layers compensate for the missing key projections
        config.model.update(num_local_layers=2, intermediate_dim=520)
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=100)
    config.train.update(num_steps=3000, log_every=50, evaluate_every=1000, checkpoint_every=250, illustrate=True)
    config.generate.update(top_p=1.0)
    return config
