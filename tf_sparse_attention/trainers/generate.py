"""Generate text, images, audio, transcripts or labels with a trained model.

Model: --workdir (a run; during training, its newest checkpoint), --model (a file, with --tokenizer
and --vocabulary), --saved_model, or --preset (random weights). Default settings are from the run.
One sample is printed while it is generated; several are printed at the end. Samples are written to
--output, by default WORKDIR/samples.jsonl. Ctrl-C and SIGTERM keep the samples so far.

Images: a PNG file, WORKDIR/samples.png or completions.png. Audio: WAV files; the prompt is
--prompt_file=FILE.wav. Speech: transcripts of --prompt, a file NAME.wav or NAME.npz, or a split.
Classifiers: labels with probabilities. The backend is TensorFlow, or JAX with the environment
variable KERAS_BACKEND=jax.

Examples:
  tsa-generate --workdir=runs/demo --prompt='def main():'
  tsa-generate --workdir=runs/demo --chat --temperature=0.7
  tsa-generate --model=pg19.keras --tokenizer=subword --vocabulary=FILE --length=500
"""

import pathlib
import sys
import time
from typing import Any

from absl import flags, logging

from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import command_line

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory to sample from.")
MODEL = flags.DEFINE_string("model", None, "File NAME.keras with a language model, for example a converted model.")
PRESET = flags.DEFINE_string("preset", None, "Name of a published size, with random weights.")
SAVED_MODEL = flags.DEFINE_string("saved_model", None, "Folder of a SavedModel that `tsa-export` wrote.")
TOKENIZER = flags.DEFINE_enum("tokenizer", "bytes", base.TOKENIZERS, "Tokenizer for --model and --preset.")
VOCABULARY = flags.DEFINE_string("vocabulary", None, "Vocabulary file for --model and --preset.")
PROMPT = flags.DEFINE_string("prompt", None, "Text to continue. Empty: start of a document.")
PROMPT_FILE = flags.DEFINE_string("prompt_file", None, "File with the text to continue. -: standard input.")
COMPLETE = flags.DEFINE_string("complete", None, "Images: name of a split. The lower half of its images is generated.")
CHAT = flags.DEFINE_bool("chat", None, "Start a conversation: answer each line of standard input.")
CONTEXT = flags.DEFINE_integer("context_length", 4096, "--chat: maximum number of tokens of the conversation.", 1)
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Number of samples.", lower_bound=1)
LENGTH = flags.DEFINE_integer("length", None, "Maximum number of tokens to add.", lower_bound=1)
SETTINGS = (
    flags.DEFINE_float("temperature", None, "Sampling temperature. 0: greedy decoding.", lower_bound=0),
    flags.DEFINE_integer("top_k", None, "Sample from this many of the most likely tokens.", lower_bound=1),
    flags.DEFINE_float("top_p", None, "Sample from the most likely tokens with this total probability."),
    flags.DEFINE_float("min_p", None, "Sample from tokens with this probability, relative to the most likely one."),
    flags.DEFINE_float("repetition_penalty", None, "Above 1: makes recent tokens less likely."),
    flags.DEFINE_integer("repetition_window", None, "Number of recent tokens to penalize. Default: 64.", lower_bound=1),
    flags.DEFINE_integer("no_repeat_ngram", None, "Size of n-grams that must not repeat.", lower_bound=1),
    flags.DEFINE_integer("num_beams", None, "Beam width. Default: no beam search.", lower_bound=1),
    flags.DEFINE_float("length_penalty", None, "Beams: exponent of the length in the score. 0: short texts. 1: mean."),
)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the first sample; sample i has seed + i.")
OUTPUT = flags.DEFINE_string("output", None, "Output file. Default: a file in --workdir, if given.")
SOURCES = ("workdir", "model", "preset", "saved_model")
SECONDS_BETWEEN_LINES = 5.0


def read_prompt() -> bytes | None:
    """Return the prompt as bytes, or None without a prompt."""
    if PROMPT_FILE.value == "-":
        return sys.stdin.buffer.read()
    if PROMPT_FILE.value is not None:
        return pathlib.Path(PROMPT_FILE.value).read_bytes()
    # Bytes of the command line that are not UTF-8 are passed as lone surrogates.
    return None if PROMPT.value is None else PROMPT.value.encode("utf-8", errors="surrogateescape")


def make_sample_source() -> Any:
    """Create the sample source of --saved_model, --model or --preset."""
    from tf_sparse_attention.models import LanguageModel
    from tf_sparse_attention.trainers.shared import components, loading, sampling

    if SAVED_MODEL.value is not None:
        return sampling.SavedModelSource(SAVED_MODEL.value)
    tokenizer = components.make_tokenizer(TOKENIZER.value, VOCABULARY.value, ("--tokenizer", "--vocabulary"))
    if MODEL.value is not None:
        model = loading.load_language_model("model", MODEL.value, tokenizer.vocabulary_size)
    else:
        model = LanguageModel.from_preset(str(PRESET.value), tokenizer.vocabulary_size)
        logging.warning("The preset %s has random weights. Its text is meaningless.", PRESET.value)
    return sampling.LocalModelSource(model, tokenizer)


def given_settings() -> dict[str, Any]:
    """Return the sampling settings given on the command line, by name."""
    return {flag.name: flag.value for flag in SETTINGS if flag.value is not None}


def run_chat() -> None:
    """Answer the lines of the standard input."""
    from tf_sparse_attention.trainers.shared import remote_run, sampling, workdir
    from tf_sparse_attention.trainers.tasks import registry

    if NUM_SAMPLES.value > 1:
        raise ValueError(f"`--num_samples` must be 1 with --chat. Received: {NUM_SAMPLES.value}.")

    def answer(source):
        sampling.chat(source, sys.stdin, write, LENGTH.value, SEED.value, CONTEXT.value, given_settings())

    if WORKDIR.value is None:
        return answer(make_sample_source())
    with remote_run.reading(WORKDIR.value) as folder:
        task = registry.load_task(folder)
        if not hasattr(task, "make_sample_source"):
            raise ValueError(f"`--chat` must be False for runs without text. Received: {WORKDIR.value}.")
        return answer(task.make_sample_source(workdir.load_model(folder)))


def write(text: str) -> None:
    """Print a text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


class Progress:
    """Progress display: prints a single text as it grows, otherwise logs the progress at intervals."""

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
            write(text[self._printed :])
            self._printed = len(text)
        elif time.monotonic() - self._last_log > SECONDS_BETWEEN_LINES:
            self._last_log = time.monotonic()
            self.log(samples)

    def log(self, samples: list[dict[str, Any]]) -> None:
        """Log the progress, unless it is the same as in the last line."""
        count, seconds = sum(sample["num_tokens"] for sample in samples), time.monotonic() - self._started
        if self._logged != (len(samples), count):
            self._logged = (len(samples), count)
            logging.info("%d of %d samples, %d tokens in %.1f s.", len(samples), self._num_samples, count, seconds)


def main() -> None:
    """Run the command."""
    from tf_sparse_attention.trainers.shared import callbacks, remote_run, sampling, workdir
    from tf_sparse_attention.trainers.tasks import registry
    from tf_sparse_attention.trainers.tasks.task import Request

    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    given = [flag for flag in ("tokenizer", "vocabulary") if flags.FLAGS[flag].present and flags.FLAGS[flag].value]
    if given and MODEL.value is None and PRESET.value is None:
        raise ValueError(
            f"`--{given[0]}` must be unset with --workdir and --saved_model. Received: {flags.FLAGS[given[0]].value}."
        )
    if CHAT.value:
        return run_chat()
    request = Request(
        read_prompt(), COMPLETE.value, NUM_SAMPLES.value, LENGTH.value, SEED.value, OUTPUT.value, given_settings()
    )
    progress = Progress(NUM_SAMPLES.value)
    with callbacks.InterruptOnSignal() as stop:
        if WORKDIR.value is None:
            generated = sampling.generate(make_sample_source(), request, progress)
        else:
            with remote_run.reading(WORKDIR.value) as folder:
                request = request._replace(path=OUTPUT.value or folder)
                generated = registry.load_task(folder).generate(workdir.load_model(folder), request, progress)
    print(generated.text, flush=True)
    progress.log(generated.samples)
    if generated.path is not None:
        logging.info("Written to %s.", generated.path)
    if stop.received is not None or any(sample["interrupted"] for sample in generated.samples):
        logging.info("Interrupted; the samples so far are kept.")
        sys.exit(stop.status)


def run() -> None:
    """Run the command."""
    flags.mark_flags_as_mutual_exclusive(SOURCES, required=True)
    flags.mark_flags_as_mutual_exclusive(["prompt", "prompt_file"])
    for flag in (PROMPT, PROMPT_FILE, OUTPUT, COMPLETE, "num_beams"):
        flags.mark_flags_as_mutual_exclusive([CHAT, flag])
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
