"""Axes that the layout map splits, and training of a model that is split over devices."""

import functools

import keras
import pytest

import tf_sparse_attention as tsa
from tests.cases import CASES
from tests.contracts import SIZE
from tests.jax_worker import run_on_devices
from tf_sparse_attention.distribution.model_parallel import RULES, split_axes

LOCAL = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 4}
WHOLE = ("gamma", "beta", "relative_key", "relative_value", "attention_output/bias", "output/bias", "gate_")
WHOLE += ("norm/scale", "pooling/position", "pooling/inner_kernel", "pooling/inner_bias", "pooling/outer_kernel")
# Layers whose weights are small, or the same for all heads.
WHOLE += ("planes", "rotations", "axes_", "relative_row", "relative_column")
WHOLE += tuple(
    f"{name}/{weight}" for name in ("pooler", "head", "step_0", "step_1", "to_labels") for weight in ("kernel", "bias")
)
WHOLE += ("position_embedding/embeddings", "segment_embedding/embeddings")


def is_whole(path):
    return path.rpartition("/")[2].startswith(WHOLE) or path.endswith(WHOLE)


def mesh(*shape):
    devices = [f"cpu:{index}" for index in range(shape[0] * shape[1])]
    return keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)


def language_model(embedding):
    arguments = {"intermediate_dim": 16, "activation": "geglu", "seed": 0, "embedding": embedding}
    return tsa.models.LanguageModel(tsa.models.Backbone(12, 1, 8, [LOCAL], **arguments))


def encoder_task():
    part = {"layer": "GlobalLocalAttention", "num_heads": 2, "key_dim": 4, "window": 4, "num_global": 2}
    return tsa.models.SequenceClassifier(tsa.models.Encoder(20, 1, 8, 16, [part], max_length=32), 3)


def recognizer():
    encoder = tsa.models.Backbone(None, 1, 8, [LOCAL], intermediate_dim=16, embedding={"dim": 8}, causal=False)
    return tsa.models.SpeechRecognizer(encoder, 6)


@pytest.mark.full
def test_every_weight_of_every_layer_and_encoder_is_split_or_listed_as_replicated():
    embeddings, layouts = [{"dim": 4}, {"cutoffs": (4, 8), "div_value": 2}], tsa.distribution.layout_map(mesh(1, 2))
    models = [encoder_task(), recognizer(), *map(language_model, embeddings)]
    layers = [case.make() for case in CASES.values()]
    for made, shape in [*((layer, (None, None, SIZE)) for layer in layers), *((model, (None, 32)) for model in models)]:
        if not made.built:
            made.build(shape)
        for weight in made.weights:
            layout, whole = layouts[weight.path], is_whole(weight.path)
            assert bool(split_axes(weight.path, len(weight.shape))) != whole, weight.path
            assert (layout is None) == whole, weight.path
            assert whole or (len(layout.axes) == len(weight.shape) and layout.axes.count("model") == 1)


AXES = {
    "backbone/block_0/attention/local_0/query/kernel": (None, "model", None),
    "local_attention/attention_output/kernel": ("model", None, None),
    "backbone/block_3/attention/routing/clusters/counts": ("model", None),
    "backbone/block_0/feed_forward/gate/kernel": (None, "model"),
    "backbone/block_0/attention/local_0/gate/kernel": (None, "model", None),
    "backbone/block_0/attention/local_0/sinks": ("model",),
    "block_selected_attention/key_convolution/kernel": (None, "model", None),
    "native_sparse_attention/branch_gate/bias": ("model", None),
    "native_sparse_attention/compressed_key/kernel": (None, "model", None),
    "backbone/block_0/feed_forward/output/kernel": ("model", None),
    "backbone/embedding/embeddings": ("model", None),
    "sparse_attention/clusters_1/centroids": ("model", None, None),
    "language_model/to_vocabulary/kernel": (None, "model"),
    "adafactor/backbone_block_0_attention_local_0_query_kernel_row_moment": None,
    "backbone/block_0/attention_norm/gamma": None,
}


def test_the_axis_of_a_weight_is_that_of_heads_inner_features_or_words():
    layouts = tsa.distribution.layout_map(mesh(2, 2))
    assert len(layouts) == len(RULES)
    for path, axes in AXES.items():
        assert layouts[path] is axes is None or layouts[path].axes == axes


def test_another_axis_is_split_if_the_first_cannot_be():
    assert split_axes("backbone/block_0/attention/local_0/query/kernel", 3) == (1, 0)
    assert split_axes("backbone/block_0/attention_norm/gamma", 1) == ()
    assert split_axes("dense_attention/query/kernel", 2) == ()  # a weight of someone else


def test_an_axis_of_the_mesh_has_any_name_that_it_has():
    other = keras.distribution.DeviceMesh((2,), ("parts",), ["cpu:0", "cpu:1"])
    assert tsa.distribution.layout_map(other, "parts")["x/query/bias"].axes == ("parts", None)
    for arguments, message in (((None,), "`device_mesh`"), ((mesh(1, 2), "heads"), "`model_axis`")):
        with pytest.raises(ValueError, match=message):
            tsa.distribution.layout_map(*arguments)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="an error of the other backends")
def test_a_backend_without_layouts_is_an_error():
    with pytest.raises(ValueError, match=r"must be 'jax' for `tsa.distribution.ModelParallel`.*Received: tensorflow\."):
        tsa.distribution.ModelParallel(layout_map=tsa.distribution.layout_map(mesh(1, 2)))


@functools.cache
def trained(optimizer):
    """Return what the process with four devices found, see `model_parallel_worker.main`."""
    return run_on_devices("tests.distribution.model_parallel_worker", optimizer)


@pytest.mark.full
@pytest.mark.parametrize("devices", ["1x2", "1x4", "2x2"])
@pytest.mark.parametrize("optimizer", ["adafactor", "adagrad", "adamw"])
def test_a_model_split_over_devices_trains_on_jax_as_on_one_device(optimizer, devices):
    pytest.importorskip("jax")
    loss, variables, _ = trained(optimizer)[devices]
    # A few float32 roundings of sums over heads and features; Adam divides small ones by small ones.
    assert loss < 1e-5 and variables < 2e-4


def assert_split(shards, path, parts):
    (found,) = (sizes for name, sizes in shards.items() if name.endswith(path))
    assert [size // part for size, part in zip(found[0], found[1], strict=True)] == parts


@pytest.mark.full
@pytest.mark.parametrize(("devices", "number"), [("1x2", 2), ("1x4", 4), ("2x2", 2)])
def test_each_device_of_jax_holds_its_part_of_weights_and_of_the_state_of_adafactor(devices, number):
    pytest.importorskip("jax")
    shards = trained("adafactor")[devices][2]
    for name, parts in {
        "block_0/attention/local_0/query/kernel": [1, number, 1],
        "block_0/feed_forward/inner/kernel": [1, number],
        "/embeddings": [number, 1],
        "block_0_attention_local_0_query_kernel_row_moment": [1],
        "block_0_attention_local_0_query_kernel_column_moment": [number, 1],
        "block_0_feed_forward_inner_kernel_column_moment": [number],
    }.items():
        assert_split(shards, name, parts)
    # Two heads: four devices divide the features instead, and the centroids, which are few, not at all.
    heads = number == 2
    assert_split(shards, "routing_1/query/kernel", [1, 2, 1] if heads else [4, 1, 1])
    assert_split(shards, "routing_1/clusters/centroids", [2 if heads else 1, 1, 1])
    # Two heads of keys for four of queries: likewise, and what is of query heads is divided by them.
    assert_split(shards, "block_0/attention/local_0/key/kernel", [1, 2, 1] if heads else [4, 1, 1])
    assert_split(shards, "block_0/attention/local_0/sinks", [number])
