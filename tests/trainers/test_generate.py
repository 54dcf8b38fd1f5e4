"""Samples from a run: prompts, settings, seeds, the file of samples and the program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainers import untrained_run
from tf_sparse_attention.models.generation import Generator, generate_ids
from trainers import sampling, workdir

ROOT = Path(__file__).parents[2]


class EagerGenerator(Generator):
    """Compiling takes longer than the few tokens of these tests."""

    def __init__(self, model):
        super().__init__(model)
        self.compile(run_eagerly=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run.write(tmp_path_factory.mktemp("run"))


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(sampling, "Generator", EagerGenerator)


def records(run):
    return [json.loads(line) for line in (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_sample_is_what_the_model_generates(run):
    (sample,) = sampling.generate(run, b"Hi", length=4, temperature=0.5, top_p=0.8, seed=3)
    generator = EagerGenerator(workdir.load_model(run))
    (row,) = generate_ids(generator, [[74, 107]], 6, temperature=0.5, top_p=0.8, seed=[3])
    assert sample == {
        "prompt": "Hi",
        "text": workdir.load_tokenizer(run).detokenize(row),
        "num_tokens": len(row) - 2,
        "finished": bool(row[-1] == 1),
        "seed": 3,
        "temperature": 0.5,
        "top_p": 0.8,
    }


def test_what_is_not_given_is_as_the_run_was_configured(run):
    (sample,) = sampling.generate(run)
    assert sample["prompt"] == "def "
    assert sample["text"].startswith("def ")
    assert (sample["num_tokens"], sample["temperature"], sample["top_p"]) == (4, 0.7, 0.9)


def test_an_empty_prompt_begins_a_document(run):
    (sample,) = sampling.generate(run, b"")
    assert sample["prompt"] == ""
    assert sample["num_tokens"] == 4


def test_each_sample_can_be_had_again_by_its_seed(run, monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_SIZE", 2)
    samples = sampling.generate(run, num_samples=5, seed=10)
    assert [sample["seed"] for sample in samples] == [10, 11, 12, 13, 14]
    assert len({sample["text"] for sample in samples}) == 5
    assert sampling.generate(run, seed=12) == samples[2:3]
    assert sampling.generate(run, num_samples=2, seed=13) == samples[3:]


def test_samples_are_written_a_line_each_in_place_of_earlier_ones(run):
    sampling.generate(run, num_samples=3)
    samples = sampling.generate(run, "é\n".encode(), num_samples=2)
    assert records(run) == samples
    assert "é" in (run / "samples.jsonl").read_text(encoding="utf-8")


def test_the_end_of_the_document_finishes_a_sample(run, monkeypatch):
    class EndingGenerator(EagerGenerator):
        def __init__(self, model):
            model.to_vocabulary.bias.assign([99.0 if i == 1 else 0.0 for i in range(258)])
            super().__init__(model)

    monkeypatch.setattr(sampling, "Generator", EndingGenerator)
    (sample,) = sampling.generate(run)
    assert (sample["text"], sample["num_tokens"], sample["finished"]) == ("def ", 1, True)


@pytest.mark.parametrize("name", ["num_samples", "length"])
def test_counts_must_be_positive(run, name):
    with pytest.raises(ValueError, match=rf"`{name}` must be positive\. Received: {name}=0\."):
        sampling.generate(run, **{name: 0})


def test_a_setting_out_of_range_is_refused(run):
    with pytest.raises(ValueError, match=r"`top_p` must be .* Received: top_p=2\.0"):
        sampling.generate(run, top_p=2.0)


def test_one_sample_is_shown_as_it_is_and_several_under_their_seeds():
    samples = [{"text": "a\tb\n", "seed": 4}, {"text": "c", "seed": 5}]
    assert sampling.as_text(samples[:1]) == "a\tb\n"
    assert sampling.as_text(samples) == "=== seed 4\na\tb\n\n=== seed 5\nc"


def test_what_would_change_the_terminal_is_not_shown():
    assert sampling.as_text([{"text": "a\x1b[2Jb\rc\x9b\x00é", "seed": 0}]) == "a\ufffd[2Jb\ufffdc\ufffd\ufffdé"


def test_the_program_reads_standard_input_and_prints_the_text(run):
    # Not UTF-8, and printed where the locale says ASCII.
    result = subprocess.run(
        [sys.executable, "-m", "trainers.generate", f"--workdir={run}", "--prompt_file=-", "--length=5", "--seed=2"],
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


def read_prompt_of(*arguments):
    """Returns the lines that the program's `read_prompt` gives, without starting TensorFlow."""
    code = (
        "import sys, types\n"
        "sys.modules['trainers.sampling'] = types.ModuleType('trainers.sampling')\n"
        "from absl import flags\n"
        "from trainers import generate\n"
        "flags.FLAGS(sys.argv)\n"
        "print(generate.read_prompt())\n"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().strip()


def test_the_program_takes_the_prompt_as_a_flag_or_from_a_file(tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"a\xff\n")
    assert read_prompt_of(f"--prompt_file={tmp_path / 'prompt.txt'}") == r"b'a\xff\n'"
    assert read_prompt_of("--prompt=aé") == r"b'a\xc3\xa9'"
    assert read_prompt_of(b"--prompt=a\xff") == r"b'a\xff'"
    assert read_prompt_of("--prompt=") == "b''"
    assert read_prompt_of() == "None"
