"""Longformer and BigBird checkpoints give what torch computed with them (tests/make_hugging_face.py)."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
from keras import ops

from tests.make_hugging_face import CASES, make
from tf_sparse_attention.convert import from_hugging_face

pytest.importorskip("safetensors")
GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "hugging_face"
NAMES = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "token_type_ids": "token_type_ids",
    "global_mask": "global_attention_mask",
}


def numbers(folder):
    """Return the inputs of a case as an `Encoder` takes them, and what torch made of them."""
    arrays = dict(np.load(folder / "numbers.npz"))
    inputs = {own: arrays.pop(theirs) for own, theirs in NAMES.items() if theirs in arrays}
    return inputs, arrays


def largest_difference(results, arrays, rows):
    found = ops.convert_to_numpy(results["sequence_output"])
    far = np.abs(found - arrays["sequence_output"])[rows].max()
    if "pooled_output" in arrays:
        far = max(far, np.abs(ops.convert_to_numpy(results["pooled_output"]) - arrays["pooled_output"]).max())
    return far


@pytest.mark.parametrize("case", CASES)
def test_states_are_those_of_torch(case):
    inputs, arrays = numbers(GOLDEN / case)
    real = inputs["padding_mask"] == 1
    results = from_hugging_face(GOLDEN / case)(inputs)
    for name, published in arrays.items():
        rows = real if name == "sequence_output" else slice(None)
        np.testing.assert_allclose(results[name][rows], published[rows], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", ["longformer", "big_bird"])
def test_padding_beside_sparse_attention_has_the_published_states_too(case):
    inputs, arrays = numbers(GOLDEN / case)
    assert largest_difference(from_hugging_face(GOLDEN / case)(inputs), arrays, slice(None)) < 1e-5


@pytest.mark.full
def test_lengths_unknown_in_a_graph_decide_whether_a_big_bird_is_dense():
    import tensorflow as tf

    encoder = from_hugging_face(GOLDEN / "big_bird")
    signature = {name: tf.TensorSpec((None, None), "int64") for name in numbers(GOLDEN / "big_bird")[0]}
    program = tf.function(encoder, input_signature=[signature])
    for case in ("big_bird", "big_bird_short"):
        inputs, arrays = numbers(GOLDEN / case)
        encoder.set_weights(from_hugging_face(GOLDEN / case).get_weights())
        assert largest_difference(program(inputs), arrays, inputs["padding_mask"] == 1) < 1e-5


@pytest.mark.parametrize("case", ["longformer", pytest.param("big_bird", marks=pytest.mark.full)])
def test_a_loaded_encoder_is_saved_trained_and_its_config_is_enough(case, tmp_path):
    inputs, _ = numbers(GOLDEN / case)
    encoder = from_hugging_face(GOLDEN / case)
    encoder.save(tmp_path / "encoder.keras")
    loaded = keras.models.load_model(tmp_path / "encoder.keras")
    np.testing.assert_array_equal(loaded(inputs)["sequence_output"], encoder(inputs)["sequence_output"])
    ids = {name: keras.Input((None,), dtype="int64", name=name) for name in inputs}
    model = keras.Model(ids, keras.layers.Dense(2)(loaded(ids)["pooled_output"]))
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(True), run_eagerly=True)
    losses = model.fit(inputs, np.array([0, 1]), epochs=3, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.full
def test_the_encoders_are_the_same_on_jax(run_jax):
    found = run_jax(
        """
import json, warnings
from tests.convert.hugging_face.test_encoder import CASES, GOLDEN, from_hugging_face, largest_difference, numbers
warnings.simplefilter("ignore")
far = {}
for case in CASES:
    inputs, arrays = numbers(GOLDEN / case)
    far[case] = float(largest_difference(from_hugging_face(GOLDEN / case)(inputs), arrays, inputs["padding_mask"] == 1))
print(json.dumps(far))
"""
    )
    assert max(json.loads(found).values()) < 1e-5


@pytest.fixture
def checkpoint(tmp_path):
    """A copy of a checkpoint that may be spoiled, and a function that changes its tensors."""
    from safetensors.numpy import load_file, save_file

    folder = pathlib.Path(shutil.copytree(GOLDEN / "longformer", tmp_path / "checkpoint"))

    def change(edit):
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")

    return folder, change


def test_shards_and_older_spellings_are_read(checkpoint):
    from safetensors.numpy import load_file, save_file

    folder, _ = checkpoint
    tensors = load_file(folder / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): values for name, values in tensors.items()}
    old["embeddings.position_ids"] = np.arange(64)
    names = sorted(old)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: old[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    (folder / "model.safetensors").unlink()
    inputs, arrays = numbers(folder)
    assert largest_difference(from_hugging_face(folder)(inputs), arrays, slice(None)) < 1e-5


def test_missing_and_unknown_weights_are_named(checkpoint):
    folder, change = checkpoint

    def edit(tensors):
        del tensors["encoder.layer.1.output.dense.bias"]
        tensors["encoder.layer.0.more"] = np.zeros(3, "float32")

    change(edit)
    message = r"missing \['encoder.layer.1.output.dense.bias'\], unknown \['encoder.layer.0.more'\]"
    with pytest.raises(ValueError, match=message):
        from_hugging_face(folder)


def test_a_tensor_of_another_size_is_named(checkpoint):
    folder, change = checkpoint
    change(lambda tensors: tensors.update({"embeddings.word_embeddings.weight": np.zeros((41, 16), "float32")}))
    with pytest.raises(
        ValueError, match=r"embeddings.word_embeddings.weight with 640 values. Received: shape \(41, 16\)"
    ):
        from_hugging_face(folder)


def test_a_truncated_file_is_named(checkpoint):
    folder, _ = checkpoint
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"complete safetensors files. Received: model.safetensors: "):
        from_hugging_face(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "`model_type` of config.json must be 'longformer' or 'big_bird'. Received: 'bert'"),
        ({"hidden_act": "swish"}, r"`hidden_act` of config.json must be one of .* Received: 'swish'"),
        ({"is_decoder": True}, "`is_decoder` of config.json must be false"),
        ({"attention_window": [4]}, r"`attention_window` .* one integer per layer, 2 in all. Received: \[4\]"),
    ],
)
def test_a_config_without_a_counterpart_is_refused(checkpoint, change, message):
    folder, _ = checkpoint
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **change}), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        from_hugging_face(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "valid JSON file config.json"),
        (None, "must be a local folder with a config.json"),
        ("[]", "config.json must hold one JSON object. Received: a list"),
        (
            '{"model_type": "longformer", "hidden_act": "gelu"}',
            r"of a longformer must have .* missing \['vocab_size', ",
        ),
    ],
)
def test_a_config_that_is_none_is_refused(checkpoint, content, message):
    folder, _ = checkpoint
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        from_hugging_face(folder)


def test_a_folder_without_weights_is_refused(checkpoint):
    folder, _ = checkpoint
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"must have model.safetensors or its index"):
        from_hugging_face(folder)


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_made_anew_by_torch_is_read(case, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    make(case, tmp_path)
    inputs, arrays = numbers(tmp_path / case)
    real = inputs["padding_mask"] == 1
    assert largest_difference(from_hugging_face(tmp_path / case)(inputs), arrays, real) < 1e-5
