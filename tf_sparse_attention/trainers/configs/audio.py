"""Audio as mu-law bytes: spoken digits with small models, and music with the published model.

Command:   tsa-train --config=audio --config.data.path=PATH/fsdd_900.npz \
           --config.data.train_split=train[:90%] --config.data.validation_split=train[90%:] --workdir=runs/audio
           tsa-evaluate --workdir=runs/audio --split=test
           tsa-generate --workdir=runs/audio --num_samples=4
           tsa-generate --workdir=runs/audio --prompt_file=START.wav --length=4000
           Instead of NAME.npz, a folder of WAV files, or a data set of TFDS with --config.data.tfds=NAME
           Variants: --config=audio:small, strided heads, the last 64 samples and every 64th; :routed, windows of 128
           samples and routed heads; :music, the published model for 65,536 samples; :music_shallow, 2 of its 48 layers
Hardware:  2 CPU cores, 8 GB of memory; music: accelerators
Time:      not run to the end. By tsa.analysis.cost, a forward pass over 65,536 samples takes 22.1e12 operations for
           music (152 million weights) and 0.94e12 for music_shallow (6.9 million). 3 steps of music_shallow, batch 1,
           including compilation: 185 seconds of processor time on a shared core, at most 9.5 GB of memory
           (`--config.train.num_steps=3 --config.data.sample_rate=8000` on the digits)
Score:     not run to the end. "small" after 400 steps on the digits: 5.014 bits per byte on the test split, one seed;
           12 minutes of processor time on one core, 2.5 GB of memory
           (`--config.train.num_steps=400 --config.train.jit_compile=False`)
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

ROWS, STRIDE = 128, 64  # window of 8,192 samples; a row is 8 milliseconds at 8 kHz
HEADS = {"num_heads": 2, "key_dim": 32}
ROUTED = {"layer": "RoutingAttention", "num_clusters": 32, "cluster_size": 256, "ema_decay": 0.9, **HEADS}
SMALL = {
    "small": [{"layer": "StridedAttention", "stride": STRIDE, "heads": "split", "num_heads": 4, "key_dim": 32}],
    "routed": [
        {"layer": "LocalAttention", "window": 128, "position": "rotary", **HEADS},
        {**ROUTED, "use_successor_values": True},
    ],
}
VARIANTS = (*SMALL, "music", "music_shallow")


def get_config(variant: str = "small") -> ml_collections.ConfigDict:
    """Return the configuration of a variant."""
    config = base.make_config(variant, VARIANTS, "audio")
    config.generate.update(top_p=1.0)
    if variant in SMALL:
        _set_small(config, variant)
    else:
        _set_music(config)
    if variant == "routed":  # larger feed-forward layers compensate for the missing key projections
        config.model.update(num_local_layers=2, intermediate_dim=520)
    if variant == "music_shallow":
        config.model.num_layers = 2
        config.train.dtype = "float32"
    return config


def _set_small(config, variant):
    config.data.update(sequence_length=ROWS * STRIDE, batch_size=2)
    config.model.update(num_layers=4, hidden_dim=128, intermediate_dim=512, grid=[ROWS, STRIDE])
    config.model.attention = [dict(part) for part in SMALL[variant]]
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=100)
    config.train.update(num_steps=2000, log_every=50, evaluate_every=500, checkpoint_every=100, illustrate=True)
    config.generate.length = 4000


def _set_music(config):
    """Set the music model of Child et al. 2019, section 7.4. Unspecified settings are as for images, section 7.3."""
    config.data.update(sample_rate=12_000, sequence_length=65_536, batch_size=1, use_packing=False)
    config.model.preset = "sparse_transformer_music"
    config.optimizer.update(base.SPARSE_TRANSFORMER)
    config.train.update(base.LONG_TRAINING, num_steps=120_000, evaluate_every=5_000, evaluation_windows=128)
    config.generate.length = 60_000
