"""Samples of a run: prompts, settings, seeds, output file and command."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import tensorflow as tf
from absl import flags

import tf_sparse_attention as tsa
from tests.conftest import ROOT
from tests.trainers import task_runs
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.generation import BeamSearch, Sampling
from tf_sparse_attention.trainers import generate
from tf_sparse_attention.trainers.shared import sampling, workdir
from tf_sparse_attention.trainers.tasks import registry


@pytest.fixture(scope="module")
def source(task, model):
    """The sample source of the run, without compilation."""
    return task.make_sample_source(model)


def texts_of(samples):
    """Return samples without log-probabilities, whose rounding depends on the batch size."""
    return [{name: value for name, value in sample.items() if name != "log_prob"} for sample in samples]


def records(run):
    return [json.loads(line) for line in (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_sample_equals_the_text_that_the_model_generates(source):
    sampled = Sampling(temperature=0.5, top_p=0.8), {"temperature": 0.5, "top_p": 0.8}
    beams = BeamSearch(num_beams=2, no_repeat_ngram=1), {"num_beams": 2, "no_repeat_ngram": 1}
    for strategy, settings in (sampled, beams):
        (sample,) = task_runs.draw_samples(source, b"Hi", length=2, seed=3, **settings)
        ((row, log_probs, finished),) = source.model.generator.generate([[74, 107]], 4, strategy, seed=[3])
        expected = {"prompt": "Hi", "text": source.tokenizer.detokenize(row), "num_tokens": len(row) - 2, "seed": 3}
        expected |= {"log_prob": pytest.approx(log_probs.sum(), abs=1e-3), "finished": finished, "interrupted": False}
        assert sample == {**expected, **settings}


@pytest.mark.full
def test_each_sample_can_be_had_again_by_its_seed(source, monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_SIZE", 2)
    samples = task_runs.draw_samples(source, num_samples=5, seed=10)
    assert [sample["seed"] for sample in samples] == [10, 11, 12, 13, 14]
    assert len({sample["text"] for sample in samples}) == 5
    assert texts_of(task_runs.draw_samples(source, seed=12)) == texts_of(samples[2:3])
    assert texts_of(task_runs.draw_samples(source, num_samples=2, seed=13)) == texts_of(samples[3:])


@pytest.mark.full
def test_an_interruption_keeps_the_samples_so_far_and_before_anything_the_file(run, source, monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_SIZE", 2)
    monkeypatch.setattr(sampling, "CHUNK", 1)
    path = run / sampling.SAMPLES
    whole = task_runs.draw_samples(source, "é".encode(), num_samples=3, length=3, path=path)
    assert records(run) == whole and "é" in path.read_text(encoding="utf-8")

    def stop(samples):
        if len(samples) == 3 and samples[2]["num_tokens"] == 2:
            raise KeyboardInterrupt

    kept = task_runs.draw_samples(source, "é".encode(), num_samples=3, length=3, path=path, show=stop)
    assert kept == records(run)
    assert kept[:2] == whole[:2]
    assert kept[2]["interrupted"]
    assert whole[2]["text"].startswith(kept[2]["text"].rstrip("\ufffd"))

    class Interrupted(sampling.LocalModelSource):
        def snapshots(self, *arguments):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        task_runs.draw_samples(Interrupted(None, None), path=path)
    assert records(run) == kept


def test_an_empty_prompt_begins_a_document_and_the_end_of_the_document_finishes_a_sample(run):
    source = registry.load_task(run).make_sample_source(task_runs.load_model(run))
    (sample,) = task_runs.draw_samples(source, b"", length=1)
    assert (sample["prompt"], sample["num_tokens"]) == ("", 1)
    source.model.to_vocabulary.bias.assign([99.0 if i == 1 else 0.0 for i in range(258)])
    (sample,) = task_runs.draw_samples(source)  # with the settings of the run
    assert (sample["prompt"], sample["temperature"], sample["top_p"]) == ("def ", 0.7, 0.9)
    assert (sample["text"], sample["num_tokens"], sample["finished"]) == ("def ", 1, True)


def test_a_folder_without_the_saved_model_of_a_language_model_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="`saved_model` must be the folder"):
        sampling.SavedModelSource(tmp_path)
    module = tf.Module()
    module.classify = tf.function(lambda text: {"label": text}, input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, tmp_path, signatures={"classify": module.classify})
    with pytest.raises(ValueError, match=r"`saved_model` must be a language model .*, with {'classify': {'label'}}"):
        sampling.SavedModelSource(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"other bytes")
    with pytest.raises(ValueError, match="`saved_model` must be a readable"):
        sampling.SavedModelSource(tmp_path)


def test_a_model_in_a_file_and_a_preset_are_sources(run, monkeypatch):
    parse(f"--model={run / 'model.keras'}")
    source = generate.make_sample_source()
    for found, expected in zip(source.model.get_weights(), workdir.load_model(run).get_weights(), strict=True):
        assert (found == expected).all()
    assert isinstance(source.tokenizer, ByteTokenizer)
    monkeypatch.setattr(tsa.models.LanguageModel, "from_preset", classmethod(lambda cls, name, size: (name, size)))
    parse("--preset=pg19_local")
    assert generate.make_sample_source().model == ("pg19_local", 258)
    parse()


@pytest.mark.large
def test_ctrl_c_keeps_the_text_so_far(run, tmp_path):
    endless = shutil.copytree(run, tmp_path / "endless")
    model = workdir.load_model(endless)
    model.to_vocabulary.bias.assign([-99.0 if i == 1 else 0.0 for i in range(258)])
    workdir.save_model(endless, model)
    program = "tf_sparse_attention.trainers.generate"
    command = [sys.executable, "-u", "-m", program, f"--workdir={endless}", "--length=60000", "--prompt=ab"]
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options["bufsize"] = 0  # `communicate` would lose the content of a buffer
    # Background processes of scripts, and their children, ignore the signal.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, **options)
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


def parse(*arguments):
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    flags.FLAGS(["generate", *arguments])


def test_the_program_reads_a_prompt_and_prints_the_text(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "prompt.txt").write_bytes(b"a\xff\n")
    for argument, prompt in [
        (f"--prompt_file={tmp_path / 'prompt.txt'}", b"a\xff\n"),
        ("--prompt=a\u00e9", "aé".encode()),
        ("--prompt=a\udcff", b"a\xff"),
        ("--prompt=", b""),
        ("--seed=1", None),
    ]:
        parse(argument)
        assert generate.read_prompt() == prompt
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xffabc\n")))  # not UTF-8
    monkeypatch.setattr(workdir, "load_model", task_runs.load_model)
    parse(f"--workdir={run}", "--prompt_file=-", "--length=2", "--seed=2")
    generate.main()
    (sample,) = records(run)
    assert (sample["prompt"], sample["seed"], sample["num_tokens"]) == ("\ufffdabc\n", 2, 2)
    assert capsys.readouterr().out == sampling.as_text([sample]) + "\n"
    parse()


@pytest.mark.full
def test_a_chat_answers_each_line_and_refuses_other_models(source, monkeypatch):
    shown = []
    sampling.chat(source, ["a\n", "b\n"], shown.append, 3, 1, 4096, {"temperature": 0.5})
    strategy = Sampling(temperature=0.5, top_p=source.defaults["top_p"])
    session = source.model.chat_session(4096, strategy, source.tokenizer, 1, (1,))
    expected = []
    for turn in ("a\n", "b\n"):
        session.append(turn)
        expected.append("".join(session.generate(3)))
    assert "".join(shown) == "".join(f"{sampling.printable(text)}\n" for text in expected)
    with pytest.raises(ValueError, match="`chat` must be False"):
        sampling.chat(sampling.PrefixSource(source.model, source.tokenizer), ["a"], print, 3, 1, 9, {})


@pytest.mark.full
def test_the_program_prints_utf_8_in_any_locale(run):
    flags, ascii_only = ["--prompt_file=-", "--length=5", "--seed=2"], {**os.environ, "PYTHONIOENCODING": "ascii"}
    printed, _ = task_runs.run_program("generate", f"--workdir={run}", *flags, input=b"\xffabc\n", env=ascii_only)
    (sample,) = records(run)
    assert printed == sampling.as_text([sample]) + "\n"
