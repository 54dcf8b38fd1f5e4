"""Token ids that no model can have: fractions, and ids beyond the vocabulary, called and in training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.layers import LocalAttention
from tf_sparse_attention.models import Backbone, Encoder, LanguageModel, StatefulModel

PART = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 3}
TOO_LARGE = np.array([[1, 2, 20], [3, 4, 5]])
NEGATIVE = np.array([[1, 2, -1], [3, 4, 5]])


def backbone(**arguments):
    return Backbone(20, 1, 8, [PART], **arguments)


MODELS = {
    "backbone": backbone,
    "language model": lambda: LanguageModel(backbone()),
    "stateful": lambda: StatefulModel(LanguageModel(backbone(memory_length=2)), batch_size=2),
    "encoder": lambda: Encoder(20, 1, 8, 12, [PART], max_length=8),
}


def compiled(run_eagerly=True):
    model = LanguageModel(backbone())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=run_eagerly, jit_compile=False)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_ids_beyond_the_vocabulary_ragged_ids_and_fractions_are_refused_in_a_call(name):
    model = MODELS[name]()
    for ids, message in [
        (TOO_LARGE, "must be token ids from 0 to 19.*Received: id 20"),
        (NEGATIVE, "must be token ids from 0 to 19.*Received: id -1"),
        (tf.ragged.constant([[1, 2], [3, 4, 5]]), r"a dense tensor\. Pass `\w+\.to_tensor\(\)` .* a padding mask"),
        (np.full((2, 3), 1.5, "float32"), "must be integers; cast them.*Received: float32 with fractions"),
    ]:
        with pytest.raises(ValueError, match=message):
            model(ids)


@pytest.mark.parametrize("ids", [TOO_LARGE, NEGATIVE])
def test_ids_beyond_the_vocabulary_are_refused_in_decoding(ids):
    model = LanguageModel(backbone())
    with pytest.raises(ValueError, match="`inputs` must be token ids from 0 to 19"):
        model.extend(ids, model.init_cache(2, 4))
    with pytest.raises(ValueError, match="must be token ids from 0 to 19"):
        model.extend(ids[:, 2:], model.init_cache(2, 4), index=0)


def test_whole_floats_are_the_integers_they_say_in_half_precision():
    model = LanguageModel(Backbone(1000, 1, 8, [PART], dtype="mixed_bfloat16"), dtype="mixed_bfloat16")
    inputs = {"token_ids": np.array([[301, 303, 999]]), "segment_ids": np.array([[301, 302, 302]])}
    as_floats = {name: ids.astype("float32") for name, ids in inputs.items()}
    symbolic = {name: keras.Input((None,), name=name) for name in inputs}  # float32 by default
    expected = model(inputs)
    np.testing.assert_array_equal(model(as_floats), expected)
    np.testing.assert_array_equal(keras.Model(symbolic, model(symbolic))(inputs), expected)


@pytest.mark.full
def test_a_model_is_exported_for_integers(tmp_path):
    half, ids = {"dtype": "mixed_bfloat16"}, np.array([[3, 17, 5]], "int32")
    model = LanguageModel(backbone(**half), **half)
    expected = model(ids)
    model.export(tmp_path, verbose=False)
    served = tf.saved_model.load(tmp_path)
    (spec,) = served.signatures["serving_default"].structured_input_signature[1].values()
    assert spec.dtype == "int32"
    np.testing.assert_allclose(served.serve(ids), expected, atol=0.02)


def test_documents_in_half_precision_and_fractions_are_refused():
    layer = LocalAttention(1, 4, window=3, dtype="mixed_bfloat16")
    with pytest.raises(ValueError, match="`segment_ids`"):
        layer(np.ones((2, 3, 4), "float32"), segment_ids=np.ones((2, 3), "float32"))
    with pytest.raises(ValueError, match="`segment_ids`"):
        LanguageModel(backbone())({"token_ids": np.ones((2, 3), int), "segment_ids": np.full((2, 3), 0.5, "float32")})


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_dataset_stops_at_a_wrong_batch_with_one_line(method):
    ids = NEGATIVE if method == "evaluate" else TOO_LARGE
    data = tf.data.Dataset.from_tensor_slices((ids, ids)).batch(1)
    data = data.map(lambda x, y: x) if method == "predict" else data
    run, options = getattr(compiled(), method), {"shuffle": False} if method == "fit" else {}
    with pytest.raises(ValueError, match=r"^`x` must be token ids from 0 to 19, the vocabulary of the") as error:
        run(data, verbose=0, **options)
    assert len(str(error.value).splitlines()) == 1


def test_arrays_lists_generators_and_validation_data_are_checked(subtests):
    model, good = compiled(), NEGATIVE % 20
    dataset = tf.data.Dataset.from_tensor_slices((TOO_LARGE, TOO_LARGE)).batch(2)
    generator = (pair for pair in [(good, good), (TOO_LARGE, TOO_LARGE)])
    for kind, run in {
        "arrays": lambda: model.fit(NEGATIVE, NEGATIVE),
        "dictionary": lambda: model.fit({"token_ids": TOO_LARGE}, TOO_LARGE),
        "list": lambda: model.predict([good], verbose=0),
        "ragged": lambda: model.predict(tf.ragged.constant([[1, 2], [3, 4, 5]]), verbose=0),
        "generator": lambda: model.fit(generator, steps_per_epoch=2, shuffle=False, verbose=0),
        "validation arrays": lambda: model.fit(good, good, validation_data=(TOO_LARGE, TOO_LARGE), verbose=0),
        "validation dataset": lambda: model.fit(good, good, validation_data=dataset, verbose=0),
    }.items():
        with subtests.test(kind), pytest.raises(ValueError, match="`x`"):
            run()
    with pytest.raises(ValueError, match="compile"):  # other errors of training stay as they are
        LanguageModel(backbone()).fit(good, good, verbose=0)


def test_valid_ids_train_and_predict_from_a_dataset_of_dictionaries():
    ids = NEGATIVE % 20
    data = tf.data.Dataset.from_tensor_slices(({"token_ids": ids}, ids)).batch(2)
    model = compiled(run_eagerly=False)
    assert np.isfinite(model.fit(data, shuffle=False, verbose=0).history["loss"]).all()
    np.testing.assert_array_equal(model.predict(data.map(lambda x, y: x), verbose=0), model.predict(ids, verbose=0))
