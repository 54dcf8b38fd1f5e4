"""Models that remember: segments one after the other give what the whole text gives."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.draws import first
from tf_sparse_attention.models import Backbone, LanguageModel, StatefulModel, language_model_loss

PARTS = {
    "far": {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 30},
    "window": {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 7, "position": "rotary"},
    "relative": {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 5, "position": "relative"},
    "blocks": {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "block_size": 4, "position": "alibi"},
    "all": {"layer": "AllAttention", "num_heads": 2, "key_dim": 8, "window": 6, "num_persistent": 4}
    | {"mask_self": True, "position": "relative", "adaptive_span": {"ramp": 3, "initial": 0.5}},
}
MIXTURES = [["all"], ["blocks", "window"], ["blocks"], ["window", "relative"], ["window"]]


def make(parts=("window",), num_layers=1, **changes):
    arguments = {"intermediate_dim": 32, "memory_length": 8, "seed": 1, **changes}
    return LanguageModel(Backbone(50, num_layers, 16, [PARTS[name] for name in parts], **arguments))


def text(batch=2, length=36, seed=0):
    return np.random.default_rng(seed).integers(1, 50, (batch, length)).astype("int32")


def cut(inputs, size):
    """Return a dictionary of arrays (B, T) as a list of those of consecutive segments."""
    length = inputs["token_ids"].shape[1]
    return [{name: x[:, start : start + size] for name, x in inputs.items()} for start in range(0, length, size)]


def documents(length=36):
    return np.cumsum(np.random.default_rng(1).random((2, length)) < 0.1, axis=1).astype("int32")


@pytest.mark.parametrize("size", first([8, 12], 1))
@pytest.mark.parametrize("parts", first(MIXTURES, 1), ids="+".join)
def test_segments_one_after_the_other_give_what_the_whole_text_gives(parts, size):
    model, ids = make(parts, num_layers=2), text(length=24)
    for inputs in ({"token_ids": ids}, {"token_ids": ids, "segment_ids": documents(24)}):
        stateful = StatefulModel(model, batch_size=2)
        read = np.concatenate([stateful(segment) for segment in cut(inputs, size)], axis=1)
        np.testing.assert_allclose(read, model(inputs), rtol=0, atol=5e-6)


def test_padding_is_not_remembered():
    model, ids = make(["far"]), text(length=12)
    padded = np.concatenate([ids[:, :6], np.zeros((2, 2), "int32")], axis=1)
    _, with_padding = model.forward_with_memory({"token_ids": padded, "padding_mask": padded > 0}, model.init_memory(2))
    _, without = model.forward_with_memory(ids[:, :6], model.init_memory(2))
    results = [model.forward_with_memory(ids[:, 6:], memory)[0] for memory in (with_padding, without)]
    np.testing.assert_allclose(*results, rtol=0, atol=5e-6)


def test_numbers_that_are_not_finite_are_not_remembered():
    stateful = StatefulModel(make(), batch_size=2)
    embeddings = stateful.model.backbone.embedding.embeddings
    whole = ops.copy(embeddings.value)
    embeddings.assign(ops.full(whole.shape, np.nan))
    assert np.isnan(stateful(text(length=4))).all()
    embeddings.assign(whole)
    assert np.isfinite(stateful(text(length=4))).all()


def test_reset_forgets():
    stateful, ids = StatefulModel(make(), 2), text(length=12)
    first = np.asarray(stateful(ids))
    assert np.abs(stateful(ids) - first).max() > 0.1
    stateful.reset_state()
    np.testing.assert_array_equal(stateful(ids), first)


def test_a_saved_model_goes_on_where_it_was(tmp_path):
    stateful, inputs = StatefulModel(make(), 2), cut({"token_ids": text()}, 12)
    stateful(inputs[0])
    stateful.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs[1]), stateful(inputs[1]))


def test_memory_that_no_layer_can_see_is_not_computed():
    model, seen = make(memory_length=1000), []
    dense = model.backbone.blocks[0].attention.parts[0].key_dense
    project = dense.call
    dense.call = lambda x: (seen.append(x.shape[1]), project(x))[1]
    model.forward_with_memory(text(length=12), model.init_memory(2))
    assert seen == [12 + 6]  # a window of 7 reaches 6 positions back


def test_half_precision_keeps_the_memory_in_half_precision():
    stateful = StatefulModel(make(dtype="mixed_bfloat16"), 2)
    for segment in cut({"token_ids": text()}, 12):
        assert np.all(np.isfinite(np.asarray(ops.cast(stateful(segment), "float32"))))
    assert {weight.dtype for weight in stateful.weights if "memory_block" in weight.name} == {"bfloat16"}


def test_wrong_arguments_are_errors(subtests):
    routing = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 3, "cluster_size": 5}
    stateful, ids = StatefulModel(make(), 2), text(length=12)
    for name, run in [
        ("memory_length", lambda: Backbone(50, 2, 16, [PARTS["window"], routing], memory_length=8)),
        ("memory_length", lambda: StatefulModel(make(memory_length=0), 2)),
        ("inputs", lambda: stateful(text(batch=3))),
        ("validation_data", lambda: stateful.fit(ids, ids, verbose=0, validation_data=(ids, ids))),
        ("validation_data", lambda: stateful.fit(ids, ids, verbose=0, validation_split=0.5)),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            run()


def pairs_of(ids, count=2):
    return ((ids, ids) for _ in range(count))


def test_batches_of_other_rows_are_refused(subtests):
    stateful, ids = StatefulModel(make(), 2), text(batch=4)
    for batches, rows in [
        (tf.data.Dataset.from_tensor_slices(ids).batch(2), "batches of unknown rows"),
        (tf.data.Dataset.from_tensor_slices(ids).batch(4, drop_remainder=True), "4 rows"),
        (tf.data.Dataset.from_tensor_slices((ids, ids)).batch(2), "batches of unknown rows"),
        (ids, "4 rows"),  # a batch of Keras has 32 rows, where there are as many
        (ops.convert_to_tensor(ids[:3]), "3 rows"),
        ({"token_ids": ids[:3]}, "3 rows"),
        (pairs_of(ids), "4 rows"),
    ]:
        message = rf"`x` must be batches of `batch_size` rows, 2\. .* Received: {rows}"
        with subtests.test(f"{type(batches)}"), pytest.raises(ValueError, match=message):
            stateful.predict(batches, verbose=0)
    # A refused batch has made no program that others would run in.
    assert stateful.predict(ids, batch_size=2, verbose=0).shape[0] == 4


@pytest.mark.full
def test_rows_that_a_program_does_not_know_are_those_of_the_batches():
    ids, model = text(length=12), make()
    stateful, reader = StatefulModel(model, 2), StatefulModel(model, 2)
    nats = [keras.losses.sparse_categorical_crossentropy(ids, reader(ids), from_logits=True) for _ in range(2)]
    stateful.compile("sgd", loss=language_model_loss(), jit_compile=False)
    loss = stateful.evaluate(pairs_of(ids), steps=2, verbose=0)
    np.testing.assert_allclose(loss, np.mean([ops.convert_to_numpy(x) for x in nats]), rtol=1e-5)


def test_several_replicas_are_an_error(two_replicas):
    with two_replicas.scope(), pytest.raises(ValueError, match="must be created on one device"):
        StatefulModel(make(), 2)
