"""The examples of the public docstrings run, with fewer steps, and where they state a result they give it."""

import doctest
import inspect
import shutil

import keras
import numpy as np
import pytest
import sentencepiece
from keras import ops

import tf_sparse_attention as tsa
from tests.convert import gguf_files
from tests.convert.t2t.cases import small
from tf_sparse_attention.trainers.tasks.audio import write_wav

pytestmark = pytest.mark.pages
PARTS = (
    *(tsa.patterns, tsa.layers, tsa.models, tsa.optimizers, tsa.distribution, tsa.data, tsa.generation, tsa.analysis),
    tsa.convert,
)
NAMES = {name: getattr(part, name) for part in PARTS for name in part.__all__}
SMALLER = {
    "open_source()": "open_source(path='books', data_dir='prepared')",
    'tfds="tiny_shakespeare"': "path='books', data_dir='prepared'",
    'path="books")': 'path="books", data_dir="prepared")',
    '"/tmp/data"': "'prepared'",
    "vocabulary_size=258)": "vocabulary_size=258, num_layers=2, hidden_dim=32, embedding={'dim': 32}, "
    "attention={'num_local_layers': 1})",
    "vocabulary_size=258, num_layers=2)": "vocabulary_size=258, num_layers=1)",
    "batch_size=8": "batch_size=2",
    "sequence_length=512": "sequence_length=64",
    "sequence_length=1024": "sequence_length=64",
    "steps_per_epoch=100": "steps_per_epoch=1",
    "max_length=300": "max_length=30",
    "max_new_tokens=50": "max_new_tokens=5",
    ', hparams="pg19_routing_published"': "",
    "vocabulary_size=8000": "vocabulary_size=60",
}


# Two recordings of two phonemes, as `data.open_speech` reads them.
SPEECH = {"features": np.ones((600, 40), "float32"), "offsets": [0, 300, 600], "phonemes": [0, 1, 1, 0]}
SPEECH |= {"phoneme_offsets": [0, 2, 4], "vocabulary": ["a", "b"], "split": ["train", "test"]}


class States(doctest.OutputChecker):
    """Holds an example to its result only where it states one."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def examples():
    finder = doctest.DocTestFinder()
    for name, thing in NAMES.items():
        if inspect.isclass(thing) or inspect.isfunction(thing):
            for found in finder.find(thing, name, globs={}):
                if found.examples:
                    yield pytest.param(found, id=found.name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder that examples run in: texts, pairs, pictures, sound, speech, SentencePiece, a small checkpoint."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "books").mkdir()
    for number in range(3):  # a file for each split
        (folder / "books" / f"{number}.txt").write_text(f"Text number {number}. " * 300, encoding="utf-8")
    (folder / "manpages.jsonl").write_text('{"en": "name", "fr": "nom", "split": "train"}\n' * 5, encoding="utf-8")
    pictures = np.random.default_rng(0).integers(256, size=(3, 32, 32, 3), dtype="uint8")
    (folder / "pictures" / "train").mkdir(parents=True)
    for number, picture in enumerate(pictures):
        keras.utils.save_img(folder / "pictures" / "train" / f"{number}.png", picture, scale=False)
    (folder / "recordings" / "train").mkdir(parents=True)
    write_wav(folder / "recordings" / "train" / "0.wav", np.arange(100, dtype="int16"), 8000)
    np.savez(folder / "speech.npz", **SPEECH)
    (folder / "reviews.jsonl").write_text('{"text": "fine", "label": "good", "split": "train"}\n' * 5, encoding="utf-8")
    lines = iter([f"Text number {number}." for number in (1, 2, 3)] * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_prefix=str(folder / "spm"), vocab_size=20, hard_vocab_limit=False, minloglevel=2
    )
    (folder / "files").mkdir()
    small().write(folder / "files")
    shutil.make_archive(folder / "checkpoint", "zip", folder / "files")
    tensors = gguf_files.tensors_of("llama", gguf_files.make_backbone("llama"))
    gguf_files.write_file(folder / "SmolLM2-135M-Instruct.Q4_1.gguf", "llama", tensors)
    return folder


@pytest.fixture(scope="module")
def store(folder):
    source = tsa.data.open_source(path=folder / "books", data_dir=folder / "prepared")
    return tsa.data.open_token_store(source, tsa.data.ByteTokenizer(), "train")


def a_model():
    part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 64, "adaptive_span": True}
    model = tsa.models.LanguageModel(tsa.models.Backbone(258, 1, 16, [part], intermediate_dim=32, memory_length=63))
    model.compile("sgd", loss=tsa.models.language_model_loss())
    return model


def a_translator():
    part = {"num_heads": 2, "key_dim": 8}
    local, dense = [{"layer": "LocalAttention", "window": 16, **part}], [{"layer": "DenseAttention", **part}]
    encoder = tsa.models.Backbone(258, 1, 16, local, intermediate_dim=32, causal=False)
    decoder = tsa.models.Backbone(258, 1, 16, local, intermediate_dim=32, cross_attention=dense)
    return tsa.models.SequenceToSequence(encoder, tsa.models.LanguageModel(decoder))


@pytest.mark.parametrize("example", list(examples()))
def test_an_example_gives_what_it_says(example, folder, store, monkeypatch):
    monkeypatch.chdir(folder)
    example.globs = {"keras": keras, "np": np, "ops": ops, "tsa": tsa, **NAMES, "store": store}
    example.globs |= {"x": np.ones((2, 64), "int32"), "y": np.zeros((2, 64, 258))}
    if "model" in "".join(step.source for step in example.examples):
        example.globs["model"] = example.globs["language_model"] = a_model()
    if "translator" in example.examples[-1].source:
        example.globs["translator"] = a_translator()
    for step in example.examples:
        for long, short in SMALLER.items():
            step.source = step.source.replace(long, short)
    report = []
    runner = doctest.DocTestRunner(checker=States(), verbose=False)
    failed, tried = runner.run(example, out=report.append)
    assert tried and not failed, "".join(report)


def test_every_layer_but_the_base_has_an_example():
    assert set(tsa.layers.__all__) - {example.id for example in examples()} == {"AttentionLayer"}
