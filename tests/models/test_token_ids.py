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


def compiled():
    model = LanguageModel(backbone())
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_ids_beyond_the_vocabulary_are_refused_in_a_call(name):
    model = MODELS[name]()
    for ids, wrong in ((TOO_LARGE, 20), (NEGATIVE, -1)):
        with pytest.raises(ValueError, match=rf"must be token ids from 0 to 19.*Received: id {wrong}"):
            model(ids)


@pytest.mark.parametrize("ids", [TOO_LARGE, NEGATIVE])
def test_ids_beyond_the_vocabulary_are_refused_in_decoding(ids):
    model = LanguageModel(backbone())
    with pytest.raises(ValueError, match="must be token ids from 0 to 19"):
        model.prefill(ids, model.init_cache(2, 4))
    with pytest.raises(ValueError, match="must be token ids from 0 to 19"):
        model.decode(ids[:, 2:], model.init_cache(2, 4), 0)


@pytest.mark.parametrize("name", MODELS)
def test_ragged_ids_are_refused(name):
    model, ids = MODELS[name](), tf.ragged.constant([[1, 2], [3, 4, 5]])
    for call in (model, *((model.predict,) if name == "language model" else ())):
        with pytest.raises(ValueError, match=r"must be a dense tensor\. Pass `\w+\.to_tensor\(\)` .* a padding mask"):
            call(ids)


@pytest.mark.parametrize("name", MODELS)
def test_fractions_are_refused(name):
    with pytest.raises(ValueError, match=r"must be integers; cast them.*Received: float32 with fractions"):
        MODELS[name]()(np.full((2, 3), 1.5, "float32"))


@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16"])
def test_whole_floats_are_the_integers_they_say(dtype):
    model = LanguageModel(backbone(dtype=dtype), dtype=dtype)
    inputs = {"token_ids": np.array([[3, 4, 5]]), "segment_ids": np.array([[301, 302, 302]])}
    as_floats = {name: ids.astype("float32") for name, ids in inputs.items()}
    symbolic = {name: keras.Input((None,), name=name) for name in inputs}  # float32 unless told
    expected = model(inputs)
    np.testing.assert_array_equal(model(as_floats), expected)
    np.testing.assert_array_equal(keras.Model(symbolic, model(symbolic))(inputs), expected)


def test_a_model_is_exported_for_integers(tmp_path):
    import tensorflow as tf

    half, ids = {"dtype": "mixed_bfloat16"}, np.array([[3, 17, 5]], "int32")
    model = LanguageModel(backbone(**half), **half)
    expected = model(ids)
    model.export(tmp_path, verbose=False)
    served = tf.saved_model.load(tmp_path)
    (spec,) = served.signatures["serving_default"].structured_input_signature[1].values()
    assert spec.dtype == "int32"
    np.testing.assert_allclose(served.serve(ids), expected, atol=0.02)


def test_documents_in_half_precision_are_refused():
    layer = LocalAttention(1, 4, window=3, dtype="mixed_bfloat16")
    with pytest.raises(ValueError, match="`segment_ids`"):
        layer(np.ones((2, 3, 4), "float32"), segment_ids=np.ones((2, 3), "float32"))


def test_documents_that_are_fractions_are_refused():
    with pytest.raises(ValueError, match="`segment_ids`"):
        LanguageModel(backbone())({"token_ids": np.ones((2, 3), int), "segment_ids": np.full((2, 3), 0.5, "float32")})


def test_a_prompt_beyond_the_vocabulary_is_refused():
    model = LanguageModel(backbone())
    with pytest.raises(ValueError, match="`inputs`"):
        model.prefill(TOO_LARGE, model.init_cache(2, 5))


@pytest.mark.parametrize("ids", [TOO_LARGE, NEGATIVE])
@pytest.mark.parametrize("wrap", [lambda ids: ids, lambda ids: {"token_ids": ids}])
def test_arrays_are_checked_before_the_first_step(ids, wrap):
    with pytest.raises(ValueError, match="`x`"):
        compiled().fit(wrap(ids), ids, verbose=0)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_dataset_stops_at_a_wrong_batch_with_one_line(method):
    tf = pytest.importorskip("tensorflow")
    ids = NEGATIVE if method == "evaluate" else TOO_LARGE
    data = tf.data.Dataset.from_tensor_slices((ids, ids)).batch(1)
    data = data.map(lambda x, y: x) if method == "predict" else data
    run, options = getattr(compiled(), method), {"shuffle": False} if method == "fit" else {}
    with pytest.raises(ValueError, match=r"^`x` must be token ids from 0 to 19, the vocabulary of the") as error:
        run(data, verbose=0, **options)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("kind", ["arrays", "dataset", "generator"])
def test_what_validates_is_checked_too(kind):
    tf = pytest.importorskip("tensorflow")
    good, data = NEGATIVE % 20, {"arrays": (TOO_LARGE, TOO_LARGE), "generator": iter([(TOO_LARGE, TOO_LARGE)])}
    data["dataset"] = tf.data.Dataset.from_tensor_slices((TOO_LARGE, TOO_LARGE)).batch(2)
    with pytest.raises(ValueError, match="`x`"):
        compiled().fit(good, good, validation_data=data[kind], validation_steps=1, verbose=0)


def test_a_generator_is_checked_batch_by_batch():
    pairs = [(TOO_LARGE % 20,) * 2, (TOO_LARGE,) * 2]
    with pytest.raises(ValueError, match="`x`"):
        compiled().fit((pair for pair in pairs), steps_per_epoch=2, shuffle=False, verbose=0)


def test_a_list_of_arrays_is_refused():
    with pytest.raises(ValueError, match="`x`"):
        compiled().predict([NEGATIVE % 20], verbose=0)


def test_other_errors_of_training_stay_what_they_are():
    with pytest.raises(ValueError, match="compile"):
        LanguageModel(backbone()).fit(NEGATIVE % 20, NEGATIVE % 20, verbose=0)


def test_good_ids_train_and_predict_from_a_dataset_of_dictionaries():
    tf = pytest.importorskip("tensorflow")
    ids = NEGATIVE % 20
    data = tf.data.Dataset.from_tensor_slices(({"token_ids": ids}, ids)).batch(2)
    model = compiled()
    assert np.isfinite(model.fit(data, shuffle=False, verbose=0).history["loss"]).all()
    np.testing.assert_array_equal(model.predict(data.map(lambda x, y: x), verbose=0), model.predict(ids, verbose=0))
