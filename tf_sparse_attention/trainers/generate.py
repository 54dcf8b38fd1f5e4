"""Continues a prompt with a trained model; draws images, writes sound, transcripts or labels.

The model is that of a run (--workdir; while it is still training, of its newest checkpoint), of a
file (--model with --tokenizer and --vocabulary), a SavedModel, or a preset with random weights.
Settings that are not given are those of the run. One sample is printed while it is generated,
several at the end, and written to --output, by default WORKDIR/samples.jsonl; Ctrl-C and SIGTERM
keep the samples so far.

Of an image run: a PNG, WORKDIR/samples.png or completions.png. Of sound: WAV files; the prompt is
--prompt_file=FILE.wav. Of speech: transcripts of --prompt, a file NAME.wav or NAME.npz, or a split.
Of a classifier: labels and their probabilities. The backend is TensorFlow unless KERAS_BACKEND says
jax.

Examples:
  tsa-generate --workdir=runs/demo --prompt='def main():'
  tsa-generate --workdir=runs/demo --prompt_file=- --num_samples=4 --temperature=0.7
  tsa-generate --model=pg19.keras --tokenizer=subword --vocabulary=FILE --length=500
"""

import pathlib
import sys
import time
from typing import Any

from absl import flags, logging

from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import command_line

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run to sample from.")
MODEL = flags.DEFINE_string("model", None, "A file NAME.keras with a language model, for instance a converted one.")
PRESET = flags.DEFINE_string("preset", None, "Name of a published size, with random weights.")
SAVED_MODEL = flags.DEFINE_string("saved_model", None, "Folder of a SavedModel that `tsa-export` wrote.")
TOKENIZER = flags.DEFINE_enum("tokenizer", "bytes", base.TOKENIZERS, "For --model and --preset.")
VOCABULARY = flags.DEFINE_string("vocabulary", None, "File of the tokenizer, for --model and --preset.")
PROMPT = flags.DEFINE_string("prompt", None, "Text to continue; '' begins a document.")
PROMPT_FILE = flags.DEFINE_string("prompt_file", None, "File with the text to continue; - is the standard input.")
COMPLETE = flags.DEFINE_string(
    "complete", None, "Of an image run: a split, the lower halves of whose images are completed; unset: whole images."
)
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Number of samples.", lower_bound=1)
LENGTH = flags.DEFINE_integer("length", None, "Maximum number of tokens to add.", lower_bound=1)
TEMPERATURE = flags.DEFINE_float("temperature", None, "0: greedy decoding.", lower_bound=0)
TOP_K = flags.DEFINE_integer("top_k", None, "Sample from this many of the most likely tokens.", lower_bound=1)
TOP_P = flags.DEFINE_float("top_p", None, "Sample from the most likely tokens with this total probability.")
MIN_P = flags.DEFINE_float(
    "min_p", None, "Sample from tokens with at least this probability relative to the most likely one."
)
PENALTY = flags.DEFINE_float("repetition_penalty", None, "Above 1: recent tokens become less likely to be repeated.")
PENALTY_WINDOW = flags.DEFINE_integer(
    "repetition_window", None, "Number of recent tokens that count. Default: 64.", lower_bound=1
)
NGRAM = flags.DEFINE_integer("no_repeat_ngram", None, "Forbids repeated n-grams of this size.", lower_bound=1)
NUM_BEAMS = flags.DEFINE_integer("num_beams", None, "Beam search with this many beams.", lower_bound=1)
LENGTH_PENALTY = flags.DEFINE_float(
    "length_penalty", None, "Of beam search: 0 prefers short texts, 1 or more long ones."
)
SETTINGS = (TEMPERATURE, TOP_K, TOP_P, MIN_P, PENALTY, PENALTY_WINDOW, NGRAM, NUM_BEAMS, LENGTH_PENALTY)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the first sample; sample i has seed + i.")
OUTPUT = flags.DEFINE_string("output", None, "File to write. With --workdir: one in it; else none.")
SOURCES = ("workdir", "model", "preset", "saved_model")
SECONDS = 5.0  # between two lines of progress


def read_prompt() -> bytes | None:
    """Returns the prompt as bytes, or None if none is given."""
    if PROMPT_FILE.value == "-":
        return sys.stdin.buffer.read()
    if PROMPT_FILE.value is not None:
        return pathlib.Path(PROMPT_FILE.value).read_bytes()
    # Bytes of the command line that are not UTF-8 are passed as lone surrogates.
    return None if PROMPT.value is None else PROMPT.value.encode("utf-8", errors="surrogateescape")


def make_sample_source() -> Any:
    """Returns the sample source that the flags name, but for a run: see `trainers.shared.sample_sources`."""
    from tf_sparse_attention.trainers.shared import sample_sources, tokenizers

    if SAVED_MODEL.value is not None:
        return sample_sources.SavedModelSource(SAVED_MODEL.value)
    tokenizer = tokenizers.make_tokenizer(TOKENIZER.value, VOCABULARY.value, ("--tokenizer", "--vocabulary"))
    if MODEL.value is not None:
        return sample_sources.from_file(MODEL.value, tokenizer)
    return sample_sources.from_preset(PRESET.value, tokenizer)  # type: ignore[arg-type]  # one of the four is given


def _check_tokenizer():
    if (flags.FLAGS["tokenizer"].present or VOCABULARY.value) and MODEL.value is None and PRESET.value is None:
        raise ValueError(
            "--tokenizer and --vocabulary are for --model and --preset; a run and a SavedModel have theirs."
        )


class Progress:
    """Prints one text while it is generated, or logs the progress of several, or of images, at intervals.

    Args:
        num_samples: total number of samples.
    """

    def __init__(self, num_samples: int) -> None:
        from tf_sparse_attention.trainers.shared import sampling

        self._num_samples = num_samples
        self._printed = 0
        self._printable = sampling.printable
        self._started = self._last_log = time.monotonic()
        self._logged: tuple[int, int] | None = None

    def __call__(self, samples: list[dict[str, Any]]) -> None:
        if self._num_samples == 1 and "text" in samples[0]:
            text = self._printable(samples[0]["text"])
            sys.stdout.write(text[self._printed :])
            sys.stdout.flush()
            self._printed = len(text)
        elif time.monotonic() - self._last_log > SECONDS:
            self._last_log = time.monotonic()
            self.log(samples)

    def log(self, samples: list[dict[str, Any]]) -> None:
        """Logs the progress, unless the last line said so."""
        count, seconds = sum(sample["num_tokens"] for sample in samples), time.monotonic() - self._started
        if self._logged != (len(samples), count):
            self._logged = (len(samples), count)
            logging.info("%d of %d samples, %d tokens in %.1f s.", len(samples), self._num_samples, count, seconds)


def main() -> None:
    from tf_sparse_attention.trainers.shared import remote_run, sampling, signals, workdir
    from tf_sparse_attention.trainers.tasks import registry
    from tf_sparse_attention.trainers.tasks.task import Request

    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    request = Request(
        read_prompt(),
        COMPLETE.value,
        NUM_SAMPLES.value,
        LENGTH.value,
        SEED.value,
        OUTPUT.value,
        {flag.name: flag.value for flag in SETTINGS if flag.value is not None},
    )
    progress = Progress(NUM_SAMPLES.value)
    _check_tokenizer()
    with signals.InterruptOnSignal() as stop:
        if WORKDIR.value is None:
            made = sampling.generate_text(make_sample_source(), request, progress)
        else:
            with remote_run.reading(WORKDIR.value) as folder:
                request = request._replace(path=OUTPUT.value or folder)
                made = registry.load_task(folder).generate(workdir.load_model(folder), request, progress)
    print(made.text, flush=True)
    progress.log(made.samples)
    if made.path is not None:
        logging.info("Written to %s.", made.path)
    if stop.received is not None or any(sample["interrupted"] for sample in made.samples):
        logging.info("Interrupted: these are the samples so far.")
        sys.exit(stop.status)


def run() -> None:
    """Runs the program."""
    flags.mark_flags_as_mutual_exclusive(SOURCES, required=True)
    flags.mark_flags_as_mutual_exclusive(["prompt", "prompt_file"])
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
