"""Longformer and BigBird checkpoints give what torch computed with them (tests/make_hugging_face.py)."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

from tests.make_hugging_face import CASES
from tf_sparse_attention.convert import from_hugging_face

pytest.importorskip("safetensors")
GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "hugging_face"
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


def assert_published(results, arrays, rows=slice(None)):
    """Compare states, those of some rows, and pooled outputs with those of torch."""
    for name, published in arrays.items():
        chosen = rows if name == "sequence_output" else slice(None)
        np.testing.assert_allclose(results[name][chosen], published[chosen], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_states_are_those_of_torch(case):
    inputs, arrays = numbers(GOLDEN / case)
    # With sparse attention, padding has the published states too.
    rows = slice(None) if case in ("longformer", "big_bird") else inputs["padding_mask"] == 1
    assert_published(from_hugging_face(GOLDEN / case)(inputs), arrays, rows)


@pytest.mark.full
def test_lengths_unknown_in_a_graph_decide_whether_a_big_bird_is_dense():
    import tensorflow as tf

    encoder = from_hugging_face(GOLDEN / "big_bird")
    signature = {name: tf.TensorSpec((None, None), "int64") for name in numbers(GOLDEN / "big_bird")[0]}
    program = tf.function(encoder, input_signature=[signature])
    for case in ("big_bird", "big_bird_short"):
        inputs, arrays = numbers(GOLDEN / case)
        encoder.set_weights(from_hugging_face(GOLDEN / case).get_weights())
        assert_published(program(inputs), arrays, inputs["padding_mask"] == 1)


@pytest.mark.full
@pytest.mark.parametrize("case", ["longformer", "big_bird"])
def test_a_loaded_encoder_is_saved_trained_and_its_config_is_enough(case, tmp_path):
    inputs, _ = numbers(GOLDEN / case)
    encoder = from_hugging_face(GOLDEN / case)
    encoder.save(tmp_path / "encoder.keras")
    loaded = keras.models.load_model(tmp_path / "encoder.keras")
    np.testing.assert_array_equal(loaded(inputs)["sequence_output"], encoder(inputs)["sequence_output"])
    ids = {name: keras.Input((None,), dtype="int64", name=name) for name in inputs}
    model = keras.Model(ids, keras.layers.Dense(2)(loaded(ids)["pooled_output"]))
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(True), run_eagerly=True)
    losses = model.fit(inputs, np.array([0, 1]), epochs=2, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.fixture
def checkpoint(tmp_path):
    return pathlib.Path(shutil.copytree(GOLDEN / "longformer", tmp_path / "checkpoint"))


@pytest.mark.full
def test_shards_and_older_spellings_are_read(checkpoint):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): values for name, values in tensors.items()}
    old["embeddings.position_ids"] = np.arange(64)
    weight_map = {name: f"{number % 2}.safetensors" for number, name in enumerate(sorted(old))}
    for file in set(weight_map.values()):
        save_file({name: old[name] for name in old if weight_map[name] == file}, checkpoint / file)
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    (checkpoint / "model.safetensors").unlink()
    inputs, arrays = numbers(checkpoint)
    assert_published(from_hugging_face(checkpoint)(inputs), arrays)


def test_invalid_configs_are_errors(checkpoint, subtests):
    path = checkpoint / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for message, content in [
        ("`model_type`", {**config, "model_type": "bert"}),
        ("`hidden_act`", {**config, "hidden_act": "swish"}),
        ("`is_decoder`", {**config, "is_decoder": True}),
        (r"`attention_window` .*2 in all", {**config, "attention_window": [4]}),
        (r"`attention_window` .*\[None, None\]", {**config, "attention_window": None}),
        ("`num_attention_heads` must be a positive integer", {**config, "num_attention_heads": 0}),
        ("`hidden_size` .*'16'", {**config, "hidden_size": "16"}),
        (r"missing \['vocab_size', ", {"model_type": "longformer", "hidden_act": "gelu"}),
        ("one JSON object.* a list", []),
    ]:
        path.write_text(json.dumps(content), encoding="utf-8")
        with subtests.test(message), pytest.raises(ValueError, match=message):
            from_hugging_face(checkpoint)
    path.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="valid JSON file"):
        from_hugging_face(checkpoint)
    path.unlink()
    with pytest.raises(ValueError, match=r"local folder with a config\.json"):
        from_hugging_face(checkpoint)


def test_invalid_weights_are_errors_that_name_them(checkpoint, subtests):
    from safetensors.numpy import load_file, save_file

    path = checkpoint / "model.safetensors"
    content, tensors = path.read_bytes(), load_file(path)
    missing, unknown = "encoder.layer.1.output.dense.bias", {"encoder.layer.0.more": np.zeros(3, "float32")}
    embeddings = {"embeddings.word_embeddings.weight": np.zeros((41, 16), "float32")}
    for message, changed in [
        (
            rf"missing \['{missing}'\], unknown \['encoder.layer.0.more'\]",
            {name: x for name, x in tensors.items() if name != missing} | unknown,
        ),
        (r"word_embeddings.weight with 640 values.*\(41, 16\)", tensors | embeddings),
    ]:
        save_file(changed, path)
        with subtests.test(message), pytest.raises(ValueError, match=message):
            from_hugging_face(checkpoint)
    path.write_bytes(content[:-100])
    with pytest.raises(ValueError, match=r"complete safetensors files.*model\.safetensors: "):
        from_hugging_face(checkpoint)
    path.unlink()
    with pytest.raises(ValueError, match=r"must have model\.safetensors or its index"):
        from_hugging_face(checkpoint)
    (checkpoint / "model.safetensors.index.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="must have a `weight_map`"):
        from_hugging_face(checkpoint)
