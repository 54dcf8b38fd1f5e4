"""Checkpoints: exact values, atomic writes, selection of the newest intact checkpoint."""

import functools
import os

import keras
import numpy as np
import pytest
from keras import ops

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints, state_variables

VALUES = {
    "float32": [[0.1, -2.5e-38], [np.inf, 3.0]],
    "bfloat16": [1.5, -0.0078125],
    "float16": [1e-3, 65504.0],
    "uint32": [0, 2**32 - 1],
    "int64": [-(2**62)],
    "bool": [True, False],
}


def make_variables(zero=False):
    make = np.zeros_like if zero else np.array
    named = {f"model/{dtype}": (dtype, make(value)) for dtype, value in VALUES.items()}
    return {name: keras.Variable(value, dtype=dtype, trainable=False) for name, (dtype, value) in named.items()}


def bits_of(variables):
    return {name: ops.convert_to_numpy(variable).tobytes() for name, variable in variables.items()}


def write_steps(checkpoints, *steps):
    for step in steps:
        checkpoints.save(step, {"model/weight": keras.Variable([float(step)])}, {"note": step})


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def test_every_dtype_is_restored_bit_for_bit_and_integers_also_of_the_size_of_another_backend(tmp_path):
    before, after = make_variables(), make_variables(zero=True)
    assert bits_of(before) != bits_of(after)
    Checkpoints(tmp_path).save(3, before, {})
    Checkpoints(tmp_path).load(3, after)
    assert bits_of(before) == bits_of(after)
    Checkpoints(tmp_path).save(4, {"model/seed": keras.Variable([7, 3], dtype="int64")}, {})
    seed = keras.Variable([0, 0], dtype="uint32")
    Checkpoints(tmp_path).load(4, {"model/seed": seed})
    assert ops.convert_to_numpy(seed).tolist() == [7, 3]


def test_the_newest_checkpoints_are_kept_and_the_last_is_read_with_its_metadata(tmp_path):
    assert Checkpoints(tmp_path / "not there").newest_metadata() is None
    checkpoints = Checkpoints(tmp_path, keep=2)
    write_steps(checkpoints, 1, 2, 3, 1000000000)
    assert checkpoints.steps() == [3, 1000000000]
    checkpoints = Checkpoints(tmp_path / "second")
    write_steps(checkpoints, 5, 20, 10)
    newest = checkpoints.newest_metadata()
    assert (newest["step"], newest["note"]) == (20, 20)
    with pytest.raises(ValueError, match=r"`config\.train\.keep_checkpoints`.*=0"):
        Checkpoints(tmp_path, keep=0)


def set_in_directory(offset, value):
    """Return a function that changes two bytes of the first entry in the directory of a zip file."""

    def harm(content):
        at = content.index(b"PK\1\2") + offset
        return content[:at] + value.to_bytes(2, "little") + content[at + 2 :]

    return harm


HARMS = {
    "changed": flip,
    "cut": lambda content: content[:-30],
    "encrypted": set_in_directory(8, 1),
    "compressed in an unknown way": set_in_directory(10, 99),
    "of no format": lambda content: bytes(100),
}


def test_a_damaged_checkpoint_or_one_of_a_later_format_is_skipped_with_a_warning(tmp_path, caplog, subtests):
    for name, harm in HARMS.items():
        with subtests.test(name):
            checkpoints = Checkpoints(tmp_path / name)
            write_steps(checkpoints, 1, 2)
            checkpoints.path(2).write_bytes(harm(checkpoints.path(2).read_bytes()))
            assert checkpoints.newest_metadata()["step"] == 1
            assert "step_000000002.npz is damaged" in caplog.text
            caplog.clear()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {}, {})
    checkpoints.save(2, {}, {"format": 99})
    assert checkpoints.newest_metadata()["step"] == 1


def test_a_damaged_checkpoint_does_not_count_as_kept_and_only_damaged_ones_are_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    write_steps(checkpoints, 3)
    checkpoints.path(3).write_bytes(flip(checkpoints.path(3).read_bytes()))
    with pytest.raises(ValueError, match=r"`workdir`.*Received: 1 damaged"):
        checkpoints.newest_metadata()
    write_steps(checkpoints, 2)
    assert checkpoints.newest_metadata()["step"] == 2


def test_an_incomplete_file_of_a_killed_process_is_not_read_and_is_deleted(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    write_steps(checkpoints, 1)
    half = tmp_path / ".step_000000002.77.incomplete.npz"
    half.write_bytes(b"half")
    os.utime(half, (0, 0))
    assert checkpoints.newest_metadata()["step"] == 1
    write_steps(checkpoints, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000000001.npz", "step_000000003.npz"]


def test_variables_with_another_shape_dtype_or_name_are_an_error_that_names_them(tmp_path):
    weight = {"optimizer/w": keras.Variable([1.0])}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {**weight, "model/old": keras.Variable([1.0])}, {})
    for variables, message in [
        ({"model/old": keras.Variable([1.0, 2.0])}, r"model/old \(2,\) float32, but \(1,\) float32"),
        ({"model/old": keras.Variable([1.0], dtype="bfloat16")}, r"model/old \(1,\) bfloat16, but \(1,\) float32"),
        ({**weight, "model/new": keras.Variable([1.0])}, "model: model/new .1 in all.*checkpoint: model/old .1 in"),
    ]:
        with pytest.raises(ValueError, match=message):
            checkpoints.load(1, variables)
    checkpoints.load(1, {"model/old": keras.Variable([1.0])})  # only the model, as for an evaluation


def state_of(*names):
    """Return the state of a model with layers in this order and of its optimizer after a step."""
    layers = {name: keras.layers.Dense(4, name=name, use_bias=False) for name in sorted(names)}
    made = keras.Sequential([keras.Input((4,)), *(layers[name] for name in names), keras.layers.Dropout(0.5)])
    made.compile(keras.optimizers.Adam(), "mse", run_eagerly=True)
    made.fit(np.ones((1, 4)), np.zeros((1, 4)), verbose=0)
    return state_variables(made, made.optimizer)


def test_reordered_layers_of_equal_shapes_keep_their_weights(tmp_path):
    for step, names in enumerate([("query", "value"), ("dense_3", "dense_8"), ("dense_8", "dense_3")]):
        keras.layers.Dropout(0.5), keras.random.SeedGenerator(0)  # make later automatic names have higher numbers
        before = state_of(*names)
        Checkpoints(tmp_path).save(step, before, {})
        keras.layers.Dropout(0.5), keras.random.SeedGenerator(0)
        after = state_of(*reversed(names))
        Checkpoints(tmp_path).load(step, after)
        assert sum(name.endswith(("kernel", "momentum", "velocity")) for name in before) == 6
        assert bits_of(after) == bits_of(before)


def test_automatic_names_of_another_process_are_the_same(tmp_path):
    models = []
    for _ in range(2):
        layers = [keras.layers.Dense(4), keras.layers.Dropout(0.1), keras.layers.Dense(4), keras.layers.Dropout(0.1)]
        models.append(keras.Sequential([keras.Input((4,)), keras.Sequential(layers)]))
    first, second = (list(state_variables(model)) for model in models)
    assert first == second
    assert (first[0], first[-1].split("/")[2]) == ("model/sequential/dense/kernel", "dropout_1")


def test_two_replicas_have_the_same_state_as_one(two_replicas):
    part = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 2, "cluster_size": 4}
    backbone = functools.partial(tsa.models.Backbone, 8, 1, 4, [{**part, "dropout": 0.1}], dropout=0.1)
    with two_replicas.scope():
        replicated = tsa.models.LanguageModel(backbone())
    single = tsa.models.LanguageModel(backbone())
    assert len(replicated.variables) > len(single.variables)
    assert list(state_variables(replicated)) == list(state_variables(single))
