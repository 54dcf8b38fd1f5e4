"""Samples of a run: prompts, settings, seeds, output file and command."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import tf_sparse_attention as tsa
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.generation import BeamSearch, Sampling
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.trainers.shared import sample_sources, sampling, workdir
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.task import Request

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(untrained):
    return untrained


def eager_source(run):
    """Return the sample source of a run, without compilation, which takes longer than a few tokens."""
    source = registry.load_task(run).make_sample_source(workdir.load_model(run))
    source.model._generator = Generator(source.model, run_eagerly=True)
    return source


def samples_of(run, *arguments, **settings):
    return sampling.generate(eager_source(run), *arguments, path=run / sampling.SAMPLES, **settings)


def texts_of(samples):
    """Return samples without log-probabilities, whose rounding depends on the batch size."""
    return [{name: value for name, value in sample.items() if name != "log_prob"} for sample in samples]


def records(run):
    return [json.loads(line) for line in (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_sample_equals_the_text_that_the_model_generates(run):
    (sample,) = samples_of(run, b"Hi", length=4, temperature=0.5, top_p=0.8, seed=3)
    generator = Generator(workdir.load_model(run), run_eagerly=True)
    ((row, log_probs, finished),) = generator.generate([[74, 107]], 6, Sampling(temperature=0.5, top_p=0.8), seed=[3])
    assert sample == {
        "prompt": "Hi",
        "text": workdir.load_tokenizer(run).detokenize(row),
        "num_tokens": len(row) - 2,
        "log_prob": pytest.approx(log_probs.sum(), abs=1e-3),
        "finished": finished,
        "interrupted": False,
        "seed": 3,
        "temperature": 0.5,
        "top_p": 0.8,
    }


def test_a_sample_that_nobody_shows_is_returned_as_text(run):
    source, request = eager_source(run), Request(b"ab", length=3)
    generated = sampling.generate_text(source, request)
    assert generated.text == sampling.as_text(generated.samples)
    assert sampling.generate_text(source, request, lambda samples: None).text == ""


def test_beams_find_one_text(run):
    (sample,) = samples_of(run, b"ab", length=3, num_beams=2, no_repeat_ngram=1)
    generator = Generator(workdir.load_model(run), run_eagerly=True)
    ((row, log_probs, _),) = generator.generate([[99, 100]], 5, BeamSearch(num_beams=2, no_repeat_ngram=1))
    assert sample["text"] == workdir.load_tokenizer(run).detokenize(row)
    assert sample["log_prob"] == pytest.approx(log_probs.sum(), abs=1e-3)
    assert (sample["num_beams"], sample["no_repeat_ngram"]) == (2, 1)
    assert "temperature" not in sample


def test_settings_that_do_not_go_together_or_are_out_of_range_are_errors_that_name_them(run):
    source = eager_source(run)
    for settings, name in [
        ({"num_beams": 2, "temperature": 0.5}, r"\(`num_beams`\) must be unset for temperature"),
        ({"length_penalty": 0.5}, r"\(`num_beams`\) is required for length_penalty"),
        ({"num_beams": 2, "num_samples": 3}, "`num_samples`"),
        ({"no_repeat_ngram": 33}, "`no_repeat_ngram`"),
        ({"num_samples": 0}, "`num_samples`"),
        ({"length": 0}, "`length`"),
        ({"top_p": 2.0}, "`top_p`"),
    ]:
        with pytest.raises(ValueError, match=name):
            sampling.generate(source, b"ab", **settings)


@pytest.mark.full
def test_each_sample_can_be_had_again_by_its_seed(run, monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_SIZE", 2)
    samples = samples_of(run, num_samples=5, seed=10)
    assert [sample["seed"] for sample in samples] == [10, 11, 12, 13, 14]
    assert len({sample["text"] for sample in samples}) == 5
    assert texts_of(samples_of(run, seed=12)) == texts_of(samples[2:3])
    assert texts_of(samples_of(run, num_samples=2, seed=13)) == texts_of(samples[3:])


def test_samples_replace_those_of_the_file_and_have_the_settings_of_the_run_by_default(run):
    samples_of(run)
    samples = samples_of(run, "é".encode(), num_samples=2)
    assert records(run) == samples and len(samples) == 2
    assert "é" in (run / "samples.jsonl").read_text(encoding="utf-8")
    (sample,) = samples_of(run)
    assert sample["prompt"] == "def " and sample["text"].startswith("def ")
    assert (sample["num_tokens"], sample["temperature"], sample["top_p"]) == (4, 0.7, 0.9)


def test_an_empty_prompt_begins_a_document_and_the_end_of_the_document_finishes_a_sample(run):
    source = eager_source(run)
    (sample,) = sampling.generate(source, b"")
    assert (sample["prompt"], sample["num_tokens"]) == ("", 4)
    source.model.to_vocabulary.bias.assign([99.0 if i == 1 else 0.0 for i in range(258)])
    (sample,) = sampling.generate(source)
    assert (sample["text"], sample["num_tokens"], sample["finished"]) == ("def ", 1, True)


def test_an_interruption_keeps_the_samples_so_far(run, monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_SIZE", 2)
    monkeypatch.setattr(sample_sources, "CHUNK", 1)
    whole = samples_of(run, num_samples=3, length=4)

    def stop(samples):
        if len(samples) == 3 and samples[2]["num_tokens"] == 2:
            raise KeyboardInterrupt

    kept = samples_of(run, num_samples=3, length=4, show=stop)
    assert kept == records(run)
    assert kept[:2] == whole[:2]
    assert kept[2]["interrupted"]
    assert whole[2]["text"].startswith(kept[2]["text"].rstrip("\ufffd"))


def test_an_interruption_before_anything_is_one(run):
    class Interrupted(sample_sources.LocalModelSource):
        def snapshots(self, *arguments):
            raise KeyboardInterrupt

    samples_of(run, b"ab", length=1)
    before = records(run)
    with pytest.raises(KeyboardInterrupt):
        sampling.generate(Interrupted(None, None), path=run / sampling.SAMPLES)
    assert records(run) == before


def test_a_folder_without_the_saved_model_of_a_language_model_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="`saved_model` must be the folder"):
        sample_sources.SavedModelSource(tmp_path)
    module = tf.Module()
    module.classify = tf.function(lambda text: {"label": text}, input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, tmp_path, signatures={"classify": module.classify})
    with pytest.raises(ValueError, match=r"`saved_model` must be a language model .*, with {'classify': {'label'}}"):
        sample_sources.SavedModelSource(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"other bytes")
    with pytest.raises(ValueError, match="`saved_model` must be a readable"):
        sample_sources.SavedModelSource(tmp_path)


def test_a_model_in_a_file_and_a_preset_go_on_too(run, monkeypatch):
    tokenizer = ByteTokenizer()
    source = sample_sources.from_file(run / "model.keras", tokenizer)
    source.model._generator = Generator(source.model, run_eagerly=True)
    wanted = samples_of(run, b"ab", length=3, temperature=1.0, top_p=0.95)
    assert sampling.generate(source, b"ab", length=3) == wanted
    monkeypatch.setattr(tsa.models.LanguageModel, "from_preset", classmethod(lambda cls, name, size: (name, size)))
    assert sample_sources.from_preset("pg19_local", tokenizer).model == ("pg19_local", 258)


@pytest.fixture
def endless(run, tmp_path):
    """A copy of the run whose documents never end."""
    folder = shutil.copytree(run, tmp_path / "endless")
    model = workdir.load_model(folder)
    model.to_vocabulary.bias.assign([-99.0 if i == 1 else 0.0 for i in range(258)])
    workdir.save_model(folder, model)
    return folder


@pytest.mark.large
def test_ctrl_c_keeps_the_text_so_far(endless):
    program = "tf_sparse_attention.trainers.generate"
    command = [sys.executable, "-u", "-m", program, f"--workdir={endless}", "--length=60000", "--prompt=ab"]
    # Unbuffered: `communicate` would lose the content of a buffer.
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        # Background processes of scripts, and their children, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    shown = process.stdout.read(200)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=120)
    assert process.returncode == 130, said.decode()
    (sample,) = records(endless)
    assert sample["interrupted"] and not sample["finished"]
    assert (shown + rest).decode() == sampling.as_text([sample]) + "\n"


def test_samples_are_shown_under_their_seeds_without_control_characters_of_the_terminal():
    samples = [{"text": "a\tb\n", "seed": 4}, {"text": "c", "seed": 5}]
    assert sampling.as_text(samples[:1]) == "a\tb\n"
    assert sampling.as_text(samples) == "=== seed 4\na\tb\n\n=== seed 5\nc"
    assert sampling.as_text([{"text": "a\x1b[2Jb\rc\x9b\x00é", "seed": 0}]) == "a\ufffd[2Jb\ufffdc\ufffd\ufffdé"


def test_the_program_reads_standard_input_and_prints_the_text(run):
    # Not UTF-8, and the locale is ASCII.
    command = [sys.executable, "-m", "tf_sparse_attention.trainers.generate", f"--workdir={run}"]
    result = subprocess.run(
        [*command, "--prompt_file=-", "--length=5", "--seed=2"],
        input=b"\xffabc\n",
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()
    (sample,) = records(run)
    assert sample["prompt"] == "\ufffdabc\n"
    assert sample["seed"] == 2
    assert result.stdout.decode("utf-8") == sampling.as_text([sample]) + "\n"


WITHOUT_BACKEND = """
import sys, types
for name in ("sampling", "sample_sources", "tokenizers", "workdir"):
    name = f"tf_sparse_attention.trainers.shared.{name}"
    sys.modules[name] = types.ModuleType(name)
from absl import flags
from tf_sparse_attention.trainers import generate

for given in (["--prompt_file=FILE"], ["--prompt=a\\u00e9"], ["--prompt=a\\udcff"], ["--prompt="], []):
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    flags.FLAGS(["generate", *given])
    print(generate.read_prompt())
generate.SECONDS_BETWEEN_LINES, generate.logging.info = -1.0, lambda text, *values: print(values[:3])
sys.modules["tf_sparse_attention.trainers.shared.sampling"].printable = None
progress, samples = generate.Progress(2), [{"num_tokens": 3}] * 2
progress(samples[:1]), progress(samples), progress.log(samples)
"""


def test_the_program_takes_a_prompt_as_a_flag_or_from_a_file_and_logs_progress_once(run_python, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"a\xff\n")
    *prompts, first, second = run_python(WITHOUT_BACKEND.replace("FILE", str(tmp_path / "prompt.txt"))).splitlines()
    assert prompts == [r"b'a\xff\n'", r"b'a\xc3\xa9'", r"b'a\xff'", "b''", "None"]
    assert (first, second) == ("(1, 2, 3)", "(2, 2, 6)")
