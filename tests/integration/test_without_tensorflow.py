"""A language model on JAX where TensorFlow is not installed: data, training, scores, samples, saving."""

import wave

import pytest

from tests.jax_worker import run_on_devices
from tf_sparse_attention.data import ByteTokenizer, open_source, open_token_store, training_batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("without")
    (folder / "texts").mkdir()
    for number in range(8):
        (folder / "texts" / f"{number}.txt").write_text(f"text {number}, " * 40)
    (folder / "pairs.jsonl").write_text('{"en": "one", "fr": "un", "split": "train"}\n' * 2)
    for name in ("spoken/train/a.txt", "images/train/a.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("a b")
    with wave.open(str(folder / "spoken" / "train" / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(1000))
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return run_on_devices("tests.without_tensorflow", str(folder), count=1)


@pytest.mark.full
def test_it_trains_scores_samples_and_saves(found):
    *losses, score = found["losses"]
    assert score < losses[0] < 6
    assert found["sample"].startswith("text")
    assert (found["subwords"], found["imported"]) == ("text 1", [])


def test_documents_batches_and_files_are_those_that_tensorflow_reads(found, folder):
    source = open_source(path=folder / "texts", data_dir=folder / "with")
    assert found["documents"] == len(list(source.documents("train")))
    batches = training_batches(open_token_store(source, ByteTokenizer(), "train"), 2, 32, seed=1)
    assert found["batch"] == batches[3][1].tolist()
    read = found["read"]
    assert (read["pairs"], read["labels"]) == (["one", "one", "un", "un"], ["un", "un"])
    assert (read["samples"], read["frames"], read["imported"]) == ([[0] * 500], [[1, 40]], False)


def test_what_needs_tensorflow_is_an_error_that_names_it(found):
    assert found["read"]["images"].startswith("Decoding PNG and JPEG files needs TensorFlow: pip install")
    assert found["export"].startswith("`tf_sparse_attention.export` needs TensorFlow: pip install")
    assert "needs tensorflow-text" in found["wordpiece"]
