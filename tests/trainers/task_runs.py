"""Small data, configurations and untrained runs of every task, interruption of runs, and comparison of checkpoints."""

import json
import os
import signal
import subprocess
import sys
import zipfile

import keras
import numpy as np

from tests.conftest import ROOT
from tf_sparse_attention.models import LanguageModel, SequenceToSequence
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.models.programs import Programs
from tf_sparse_attention.trainers.configs import answer, audio, base, classify, images, speech, translate_documents
from tf_sparse_attention.trainers.shared import callbacks, evaluation, sampling, training, workdir
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints
from tf_sparse_attention.trainers.shared.workdir import load_model as load_compiled
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.task import Request

HEAD = {"num_heads": 1, "key_dim": 8}
LOCAL = {"layer": "LocalAttention", **HEAD, "window": 16, "position": "rotary"}
SIZES = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 16}
IMAGE = (2, 2, 3)
RATE = 8000
PHONES = "abcd"
CLASSES = {"fruit": ["apple", "pear", "plum"], "tool": ["saw", "nail", "drill"], "beast": ["cat", "cow", "hen"]}
GERMAN = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}


def write_run(folder, config):
    """Write the run directory of an untrained model, as `tsa-train` would, and return it."""
    keras.utils.set_random_seed(0)
    task = registry.make_task(config)
    workdir.open_workdir(folder, create=True)
    workdir.save_config(folder, config)
    workdir.save_state(folder, task.get_state())
    if config.data.path is not None:
        workdir.save_source(folder, task.source)
    workdir.save_model(folder, task.make_model())
    return folder


def run_program(name, *flags, **options):
    """Run a program such as `tsa-generate`, and return what it printed, and what it logged."""
    command = [sys.executable, "-m", f"tf_sparse_attention.trainers.{name}", *flags]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, **options)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode(), result.stderr.decode()


def load_model(folder):
    """Return the model of a run. It generates without compilation, which takes longer than a few tokens."""
    model = load_compiled(folder)
    if isinstance(model, SequenceToSequence):
        model._programs = Programs(model, run_eagerly=True)
    decoder = getattr(model, "decoder", model)
    if isinstance(decoder, LanguageModel):
        decoder._generator = Generator(decoder, run_eagerly=True)
    return model


def load_tokenizer(folder):
    return registry.load_task(folder).tokenizer


def make_language_model_config(**data):
    config = base.get_config()
    config.data.update(sequence_length=64, batch_size=2, **data)
    config.model.update(**{**SIZES, "intermediate_dim": 32}, attention=[LOCAL])
    config.generate.update(prompt="def ", length=4, temperature=0.7, top_p=0.9)
    return config


def draw_samples(source, prompt=None, num_samples=1, length=None, seed=0, path=None, show=None, **settings):
    """Return the samples of a source for a request."""
    return sampling.generate(source, Request(prompt, None, num_samples, length, seed, path, settings), show).samples


def split_of(number, validation, test):
    return "train" if number < validation else "validation" if number < test else "test"


def draw_images():
    """Return images by split, uint8 (N, *IMAGE)."""
    random, counts = np.random.default_rng(0), {"train": 12, "validation": 3, "test": 5}
    return {name: random.integers(256, size=(count, *IMAGE), dtype=np.uint8) for name, count in counts.items()}


def draw_recordings():
    """Return five recordings, int16. The last two are the test split."""
    random = np.random.default_rng(0)
    return [random.integers(-9000, 9000, size=length).astype(np.int16) for length in (30, 17, 40, 23, 9)]


def draw_lines(task):
    random, lines = np.random.default_rng(0), []
    for number in range({"classify": 30, "translate": 24, "answer": 16}[task]):
        if task == "classify":  # one text is truncated
            label = list(CLASSES)[number % 3]
            words = random.choice(CLASSES[label], 60 if number == 4 else random.integers(2, 24))
            line = {"text": " ".join(words), "label": label, "split": split_of(number, 18, 23)}
        elif task == "translate":  # one pair is too long
            words = random.choice(list(GERMAN), 60 if number == 3 else random.integers(3, 9))
            line = {"de": " ".join(words), "en": " ".join(GERMAN[word] for word in words)}
            line["split"] = split_of(number, 16, 20)
        else:  # the answer repeats a word of a passage
            words = ["".join(chr(97 + c) for c in random.integers(0, 26, 4)) for _ in range(3)]
            line = {"question": f"which? {number}", "passages": words, "answer": f"{words[1]}."}
            line["split"] = split_of(number, 10, 13)
        lines.append(line)
    return lines


def write_lines(path, lines):
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def write_speech(path):
    """Write recordings where each phone is a band of features. One is empty, one is too long."""
    random, frames, phones = np.random.default_rng(0), [], []
    for number in range(24):
        labels = random.integers(0, 4, 0 if number == 3 else random.integers(3, 9))
        runs = [np.eye(4)[label].repeat(2)[None].repeat(random.integers(16, 24), axis=0) for label in labels]
        if number == 5:
            runs.append(np.zeros((900, 8)))
        frames.append(np.concatenate([*runs, np.zeros((20, 8))]) + random.normal(size=(1, 8)) * 0.1)
        phones.append(labels)
    arrays = {"features": np.concatenate(frames).astype("float32"), "phonemes": np.concatenate(phones)}
    arrays |= {"offsets": np.cumsum([0, *map(len, frames)]), "phoneme_offsets": np.cumsum([0, *map(len, phones)])}
    arrays |= {"vocabulary": np.array(list(PHONES)), "split": [split_of(number, 16, 20) for number in range(24)]}
    np.savez(path, **arrays)


def write_data(task, folder):
    """Write the data of a task, unless they exist, and return their path."""
    path = folder / (f"{task}.npz" if task in ("image", "audio", "speech") else f"{task}.jsonl")
    if path.exists():
        return path
    if task == "image":
        np.savez(path, **{f"x_{name}": array for name, array in draw_images().items()})
    elif task == "audio":
        recordings = draw_recordings()
        offsets, is_test = np.cumsum([0, *map(len, recordings)]), np.array([False] * 3 + [True] * 2)
        np.savez(path, audio=np.concatenate(recordings), offsets=offsets, sample_rate=RATE, is_test=is_test)
    elif task == "speech":
        write_speech(path)
    else:
        write_lines(path, draw_lines(task))
    return path


def make_config(task, folder, data_dir, variant=None):
    """Return a configuration of a task with one layer and 2 steps. Its data are written to a folder."""
    modules = {"image": images, "audio": audio, "translate": translate_documents, "answer": answer}
    modules |= {"classify": classify, "speech": speech}
    defaults = {"image": "local", "audio": "routed", "translate": "local", "answer": "small", "classify": "full"}
    variant = variant or defaults.get(task, "tiny")
    config = modules[task].get_config(variant)
    config.data.update(path=str(write_data(task, folder)), data_dir=str(data_dir))
    config.train.update(num_steps=2, log_every=1, evaluate_every=2, checkpoint_every=2, illustrate=False)
    config.train.update(deterministic=False, jit_compile=False)
    if task == "speech":
        config.data.update(sequence_length=399, batch_size=4)
        config.train.num_beams = 2
        return config
    config.model.update(SIZES)
    if task in ("image", "audio", "translate", "answer"):
        config.model.num_local_layers = 0
    if task == "image":
        config.data.update(image_shape=(), sequence_length=12, batch_size=2)
        config.model.grid = list(IMAGE)
        small = {"window": 8} if variant == "local" else {"width": 6, "height": 2, "block_shape": (1, 3)}
        config.model.attention = [{**config.model.attention[0], "num_heads": 2, "key_dim": 8, **small}]
    elif task == "audio":
        config.data.update(sequence_length=16, batch_size=2, train_split="train", validation_split="test")
        config.model.update(grid=[6, 8])
        config.model.attention = [{**config.model.attention[0], "num_heads": 2, "key_dim": 8, "window": 8}]
        config.generate.length = 6
    elif task == "classify":
        config.data.update(tokenizer="bytes", vocabulary=None, sequence_length=128, batch_size=2)
        config.model.attention = [{**part, **HEAD} for part in classify.VARIANTS[variant]]
        config.train.evaluation_windows = 0
    else:
        config.data.update(tokenizer="bytes", sequence_length=64, batch_size=4)
        config.generate.length = 5
    if task == "translate":
        config.data.update(source_field="de", target_field="en")
        for name in ("attention", "encoder_attention", "cross_attention"):
            config.model[name] = [{**part, **HEAD} for part in config.model[name]]
    elif task == "answer":
        config.model.attention = [{"layer": "LocalAttention", "window": 16, **HEAD}]
        if variant == "encoder":
            config.model.encoder_attention, config.model.cross_attention = [], [{"layer": "DenseAttention", **HEAD}]
    return config


class SignalAt(callbacks.StopOnSignal):
    """Receives a signal after step 5, which is not a multiple of any interval of these tests."""

    def on_steps_end(self, before, logs):
        if self.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        super().on_steps_end(before, logs)


def arrays_of(folder, step):
    """Return the arrays of a checkpoint in order, without their names: layers are numbered within a process."""
    with zipfile.ZipFile(Checkpoints(folder / workdir.CHECKPOINTS).path(step)) as archive:
        return [archive.read(name) for name in archive.namelist() if name.endswith(".npy")]


def check_resumed_run(config, folder, monkeypatch):
    """Check that a run of 7 steps, stopped after 5 and resumed, has the weights of a whole run. Return its folder."""
    config.train.num_steps = 7
    folders = folder / "whole", folder / "stopped"
    training.train(config, folders[0])
    with monkeypatch.context() as patched:
        patched.setattr(callbacks, "StopOnSignal", SignalAt)
        assert training.train(config, folders[1]).signal == signal.SIGTERM
    training.train(config, folders[1])
    assert arrays_of(folders[0], 7) == arrays_of(folders[1], 7)
    return folders[1]


def stop_evaluation(monkeypatch, chunk, call):
    """Interrupt an evaluation once, in its `call`-th chunk of `chunk` batches, and return the sizes of all chunks."""
    predict, calls = evaluation.Scorer.predict, []

    def stop_once(self, *arguments, **options):
        calls.append(options["steps"])
        if len(calls) == call:
            raise KeyboardInterrupt
        return predict(self, *arguments, **options)

    monkeypatch.setattr(evaluation, "BATCHES_PER_SAVE", chunk)
    monkeypatch.setattr(evaluation.Scorer, "predict", stop_once)
    return calls
