"""Writes the files of tests/golden/written_before: models saved by the release before patterns became values.

They were written by that release and stay as they are; `tests/test_written_before.py` loads them with the present one.
Run in a checkout of that release: python -m tests.make_written_before FOLDER
"""

import pathlib
import sys
import tarfile
import tempfile
import warnings
import zipfile

import keras
import numpy as np

import tf_sparse_attention as tsa

CAUSAL = {"use_causal_mask": True}
LENGTH, SIZE = 37, 8


def attention_layers():
    """Returns (layer, arguments of its call) of each kind of attention, by name."""
    layers = tsa.layers
    heads = {"num_heads": 2, "key_dim": 4}
    routing = {**heads, "num_clusters": 4, "cluster_size": 5}
    span = {"ramp": 4, "initial": 0.4}
    return {
        "window": (layers.LocalAttention(**heads, window=7, position="relative"), CAUSAL),
        "blocks": (layers.LocalAttention(**heads, block_size=8, position="alibi"), {}),
        "span": (layers.LocalAttention(**heads, window=9, adaptive_span=span), CAUSAL),
        "image": (layers.LocalAttention2D(**heads, width=6, block_shape=(2, 3)), CAUSAL),
        "strided": (layers.StridedAttention(**heads, stride=5, position="rotary"), CAUSAL),
        "strided_merged": (layers.StridedAttention(**heads, stride=5, heads="merged"), {}),
        "fixed": (layers.FixedAttention(4, 4, block_size=6, num_summary=2, num_groups=2), CAUSAL),
        "fixed_merged": (layers.FixedAttention(**heads, block_size=6, num_summary=2, heads="merged"), CAUSAL),
        "nearest": (layers.RoutingAttention(**routing, position="relative", seed=1), CAUSAL),
        "top_k": (layers.RoutingAttention(**routing, share_qk=False, seed=2), {}),
        "separate": (layers.RoutingAttention(**routing, selection="nearest", share_qk=False, seed=3), CAUSAL),
        "random": (layers.RoutingAttention(**routing, selection="random", seed=4), CAUSAL),
        "hash": (layers.RoutingAttention(**routing, selection="hash", seed=5), {}),
        "lsh": (layers.LSHAttention(**heads, num_buckets=4, bucket_size=5, num_rounds=2, seed=6), CAUSAL),
        "lsh_chunks": (layers.LSHAttention(**heads, num_buckets=4, bucket_size=5, selection="chunks", seed=7), {}),
        "all_attention": (layers.AllAttention(**heads, num_persistent=6, window=7, see_self=False), CAUSAL),
        "single_head": (layers.AllAttention(**heads, num_persistent=6, window=7, variant="single_head"), CAUSAL),
        "head_split": (layers.AllAttention(**heads, num_persistent=6, window=7, variant="head_split"), CAUSAL),
        "global": (layers.GlobalLocalAttention(**heads, window=5, num_first_global=2, own_projections=True), {}),
        "global_blocks": (layers.GlobalLocalAttention(**heads, block_size=4, num_first_global=1, dense_length=8), {}),
        "clustered": (layers.ClusteredAttention(**heads, num_clusters=5, top_k=4, seed=8), {}),
        "mixed": (
            layers.MixedAttention(
                [layers.LocalAttention(2, 4, window=6), layers.RoutingAttention(2, 4, 4, 5, seed=9, position="rotary")]
            ),
            CAUSAL,
        ),
    }


def attention_model():
    """Returns a model with one layer of each kind of attention, whose outputs are those of the layers."""
    inputs = keras.Input((LENGTH, SIZE))
    outputs = {}
    for name, (layer, arguments) in attention_layers().items():
        layer.name = name
        outputs[name] = layer(inputs, **arguments)
    return keras.Model(inputs, outputs)


def language_model():
    """Returns a language model with local and routed heads, whose first block is local alone."""
    parts = [
        {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 6},
        {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 3, "cluster_size": 5},
    ]
    backbone = tsa.models.Backbone(20, 2, 8, parts, intermediate_dim=12, num_local_layers=1, seed=0)
    return tsa.models.LanguageModel(backbone)


def encoder():
    """Returns an encoder with global tokens and two segments."""
    attention = {"num_heads": 2, "key_dim": 4, "window": 5, "num_first_global": 1}
    return tsa.models.Encoder(20, 2, 8, 12, attention, max_length=64, num_segments=2)


def with_noise(model):
    """Gives weights that are zeros or ones at first, such as biases, other values."""
    draw = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1 * draw.standard_normal(weight.shape))
    return model


def compress(path):
    """Writes a `.keras` file anew with its members compressed."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)


def write_saved_model(model, path):
    """Writes the SavedModel of a language model as one compressed file."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path, "w:xz") as file:
        model.export(folder, input_signature=[keras.InputSpec(shape=(None, None), dtype="int32")], verbose=False)
        file.add(folder, "saved_model")


def main(folder):
    keras.utils.set_random_seed(0)
    draw = np.random.default_rng(1)
    x = draw.standard_normal((2, LENGTH, SIZE)).astype("float32")
    ids = draw.integers(1, 20, (2, 29)).astype("int32")
    kinds = draw.integers(0, 2, (2, 29)).astype("int32")
    attention = with_noise(attention_model())
    arrays = {"x": x, "ids": ids, "kinds": kinds}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays |= {name: np.asarray(y) for name, y in attention(x).items()}
    models = {"attention": attention, "language_model": with_noise(language_model()), "encoder": with_noise(encoder())}
    arrays["logits"] = np.asarray(models["language_model"](ids))
    encoded = models["encoder"]({"token_ids": ids, "segment_ids": kinds})
    arrays |= {name: np.asarray(y) for name, y in encoded.items()}
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
        compress(folder / f"{name}.keras")
    write_saved_model(models["language_model"], folder / "language_model.tar.xz")
    np.savez_compressed(folder / "numbers.npz", **arrays)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
