"""Models that remember: segments one after the other give what the whole text gives."""

import textwrap

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


def make(parts=("window",), num_layers=3, **changes):
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


@pytest.mark.parametrize("size", first([4, 12], 1))
@pytest.mark.parametrize("parts", first(MIXTURES, 1), ids="+".join)
def test_segments_one_after_the_other_give_what_the_whole_text_gives(parts, size):
    model, ids = make(parts), text(length=24)
    for inputs in ({"token_ids": ids}, {"token_ids": ids, "segment_ids": documents(24)}):
        stateful = StatefulModel(model, batch_size=2)
        read = np.concatenate([stateful(segment) for segment in cut(inputs, size)], axis=1)
        np.testing.assert_allclose(read, model(inputs), rtol=0, atol=5e-6)


def test_a_document_that_begins_in_a_segment_sees_nothing_before_it():
    model, other = make(), text(seed=9)
    ids, segments = text(length=24), np.repeat([[3, 5]], 12, axis=1).repeat(2, 0)
    results = []
    for before in (ids, other[:, :24]):
        joined = np.where(segments == 3, before, ids)
        stateful = StatefulModel(model, batch_size=2)
        for segment in cut({"token_ids": joined, "segment_ids": segments}, 8):
            last = stateful(segment)
        results.append(np.asarray(last))
    np.testing.assert_array_equal(*results)


def test_padding_is_not_remembered():
    model, ids = make(["far"]), text(length=12)
    padded = np.concatenate([ids[:, :6], np.zeros((2, 2), "int32")], axis=1)
    _, with_padding = model.forward_with_memory({"token_ids": padded, "padding_mask": padded > 0}, model.init_memory(2))
    _, without = model.forward_with_memory(ids[:, :6], model.init_memory(2))
    results = [model.forward_with_memory(ids[:, 6:], memory)[0] for memory in (with_padding, without)]
    np.testing.assert_allclose(*results, rtol=0, atol=5e-6)


def test_rows_do_not_see_each_other():
    model = make()
    stateful, alone = StatefulModel(model, 2), StatefulModel(model, 1)
    for segment in cut({"token_ids": text()}, 12):
        together = stateful(segment)
        np.testing.assert_allclose(together[:1], alone({"token_ids": segment["token_ids"][:1]}), rtol=0, atol=5e-6)


def test_no_gradient_goes_into_earlier_segments():
    model = make()
    ids = text()
    memory = model.forward_with_memory(ids[:, :12], model.init_memory(2))[1]
    assert np.abs(model.forward_with_memory(ids[:, 12:24], memory)[0] - model(ids[:, 12:24])).max() > 0.1
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        floats = {name: x for name, x in memory.items() if name != "segment_ids"}
        with tf.GradientTape() as tape:
            tape.watch(floats)
            total = ops.sum(model.forward_with_memory(ids[:, 12:24], memory)[0])
        assert all(x is None for x in tf.nest.flatten(tape.gradient(total, floats)))


def test_numbers_that_are_not_finite_are_not_remembered():
    stateful = StatefulModel(make(num_layers=2), batch_size=2)
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


@pytest.mark.full
@pytest.mark.parametrize(("jit_compile", "num_layers"), first([(False, 2), (True, 1), (True, 2)], 1))
def test_fit_trains_the_model_inside_and_moves_the_memory(jit_compile, num_layers):
    model = make(num_layers=num_layers, remat=jit_compile, dropout=0.1)
    stateful = StatefulModel(model, 2)
    stateful.compile(keras.optimizers.Adam(0.01), loss=language_model_loss(), jit_compile=jit_compile)
    inputs = text(length=48)
    batches = [(segment, inputs[:, 12 * i : 12 * i + 12]) for i, segment in enumerate(cut({"token_ids": inputs}, 12))]
    losses = [stateful.train_on_batch(*batch) for _ in range(12) for batch in batches]
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:4])
    names = [weight.name for weight in stateful.non_trainable_weights if weight.name.startswith("memory_")]
    assert names == ["memory_segment_ids", "memory_block_0", "memory_block_1"][: 1 + num_layers]
    assert all(np.any(weight.numpy()) for weight in stateful.non_trainable_weights if "block" in weight.name)


def test_a_saved_model_goes_on_where_it_was(tmp_path):
    stateful, inputs = StatefulModel(make(), 2), cut({"token_ids": text()}, 12)
    stateful(inputs[0])
    stateful.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs[1]), stateful(inputs[1]))


def test_memory_that_no_layer_can_see_is_not_computed():
    model = make(memory_length=1000)
    memory = model.init_memory(2)
    seen = []
    attention = model.backbone.blocks[0].attention.parts[0]
    project = attention.key_dense.call
    attention.key_dense.call = lambda x: (seen.append(x.shape[1]), project(x))[1]
    model.forward_with_memory(text(length=12), memory)
    assert seen == [12 + 6]  # a window of 7 reaches 6 positions back


def test_half_precision_keeps_the_memory_in_half_precision():
    model = make(dtype="mixed_bfloat16")
    stateful = StatefulModel(model, 2)
    for segment in cut({"token_ids": text()}, 12):
        assert np.all(np.isfinite(np.asarray(ops.cast(stateful(segment), "float32"))))
    assert {weight.dtype for weight in stateful.weights if "memory_block" in weight.name} == {"bfloat16"}


def test_only_patterns_of_distance_have_a_memory():
    routing = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 3, "cluster_size": 5}
    with pytest.raises(ValueError, match="`memory_length`"):
        Backbone(50, 2, 16, [PARTS["window"], routing], memory_length=8)


def test_a_model_without_memory_has_no_forward_with_memory():
    with pytest.raises(ValueError, match="`memory_length`"):
        StatefulModel(make(memory_length=0), 2)


def test_a_batch_of_another_size_is_an_error():
    with pytest.raises(ValueError, match="`inputs`"):
        StatefulModel(make(), 2)(text(batch=3))


@pytest.fixture(scope="module")
def for_two_rows():
    return StatefulModel(make(num_layers=1), 2)


def pairs_of(ids, count=2):
    return ((ids, ids) for _ in range(count))


@pytest.mark.parametrize(
    ("make_batches", "rows"),
    [
        (lambda ids: tf.data.Dataset.from_tensor_slices(ids).batch(2), "batches of unknown rows"),
        (lambda ids: tf.data.Dataset.from_tensor_slices(ids).batch(4, drop_remainder=True), "4 rows"),
        (lambda ids: tf.data.Dataset.from_tensor_slices((ids, ids)).batch(2), "batches of unknown rows"),
        (lambda ids: ids, "4 rows"),  # a batch of Keras has 32 rows, where there are as many
        (lambda ids: ids[:3], "3 rows"),
        (lambda ids: ops.convert_to_tensor(ids[:3]), "3 rows"),
        (lambda ids: {"token_ids": ids[:3]}, "3 rows"),
        (pairs_of, "4 rows"),
    ],
)
def test_batches_of_other_rows_are_refused(for_two_rows, make_batches, rows):
    with pytest.raises(ValueError, match=rf"`x` must be batches of `batch_size` rows, 2\. .* Received: {rows}"):
        for_two_rows.predict(make_batches(text(batch=4)), verbose=0)


def test_a_refused_batch_made_no_program_that_others_would_run_in():
    stateful = StatefulModel(make(num_layers=1), 2)
    with pytest.raises(ValueError, match="must be batches of `batch_size` rows"):
        stateful.predict(text(batch=4), verbose=0)
    assert stateful.predict(text(batch=4), batch_size=2, verbose=0).shape[0] == 4


class Pairs(keras.utils.PyDataset):
    """Two batches of token ids, with themselves as targets."""

    def __init__(self, ids):
        super().__init__()
        self.ids = ids

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.ids, self.ids


@pytest.mark.parametrize("kind", [Pairs, pairs_of])
def test_rows_that_a_program_does_not_know_are_those_of_the_batches(kind):
    ids, model = text(length=12), make()
    stateful, reader = StatefulModel(model, 2), StatefulModel(model, 2)
    nats = [keras.losses.sparse_categorical_crossentropy(ids, reader(ids), from_logits=True) for _ in range(2)]
    stateful.compile("sgd", loss=language_model_loss())
    loss = stateful.evaluate(kind(ids), steps=2, verbose=0)
    np.testing.assert_allclose(loss, np.mean([ops.convert_to_numpy(x) for x in nats]), rtol=1e-5)


def test_what_would_validate_is_refused():
    stateful, ids = StatefulModel(make(), 2), text(length=12)
    for given in ({"validation_data": (ids, ids)}, {"validation_split": 0.5}):
        with pytest.raises(ValueError, match="`validation_data`"):
            stateful.fit(ids, ids, verbose=0, **given)


def test_several_replicas_are_an_error(two_replicas):
    with two_replicas.scope(), pytest.raises(ValueError, match="must be created on one device"):
        StatefulModel(make(), 2)


@pytest.mark.full
def test_on_jax_it_trains_and_segments_give_what_the_whole_text_gives(run_jax):
    code = textwrap.dedent(
        """
        import keras, numpy as np
        from tests.models.test_stateful import cut, make, text
        from tf_sparse_attention.models import StatefulModel, language_model_loss
        model = make(["all"], remat=True, dropout=0.1)
        reader = StatefulModel(model, 2)
        reader.compile(keras.optimizers.Adam(0.01), loss=language_model_loss())
        ids = text(length=49)
        segments = cut({"token_ids": ids[:, :48]}, 12)
        pairs = [(x, ids[:, 12 * i + 1 : 12 * i + 13]) for i, x in enumerate(segments)]
        losses = [float(reader.train_on_batch(*pair)) for _ in range(6) for pair in pairs]
        assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])
        reader.reset_state()
        read = np.concatenate([reader(x) for x in segments], axis=1)
        np.testing.assert_allclose(read, model(ids[:, :48]), rtol=0, atol=1e-5)
        """
    )
    run_jax(code)
