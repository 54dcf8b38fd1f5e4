"""Continues a prompt with a trained model: python -m trainers.generate --workdir=runs/demo --prompt='def main():'

The text comes from a run (--workdir; while it is still training, from its newest checkpoint), a model in a file
(--model=NAME.keras with --tokenizer and --vocabulary), a SavedModel (--saved_model=FOLDER) or a preset with random
weights (--preset=NAME). The prompt is a flag, a file (--prompt_file=FILE) or the standard input (--prompt_file=-); what
is not given is as in the `generate` section of the run's configuration.

One sample is printed as it comes, several at the end. They are written to --output, by default WORKDIR/samples.jsonl,
one JSON object a line. Ctrl-C keeps what there is.

The backend is TensorFlow unless the variable KERAS_BACKEND says jax.
"""

import pathlib
import sys
import time

from absl import app, flags, logging

from trainers.shared import console, sampling, sources, tokenizers, workdir

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run to sample from.")
MODEL = flags.DEFINE_string("model", None, "A file NAME.keras with a language model, for instance a converted one.")
PRESET = flags.DEFINE_string("preset", None, "Name of a published size, with random weights.")
SAVED_MODEL = flags.DEFINE_string("saved_model", None, "Folder of a SavedModel that `trainers.export` wrote.")
TOKENIZER = flags.DEFINE_enum("tokenizer", "bytes", list(tokenizers.KINDS), "For --model and --preset.")
VOCABULARY = flags.DEFINE_string("vocabulary", None, "File of the tokenizer, for --model and --preset.")
PROMPT = flags.DEFINE_string("prompt", None, "Text to continue; '' begins a document.")
PROMPT_FILE = flags.DEFINE_string("prompt_file", None, "File with the text to continue; - is the standard input.")
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "How many samples.", lower_bound=1)
LENGTH = flags.DEFINE_integer("length", None, "Tokens to add at most.", lower_bound=1)
TEMPERATURE = flags.DEFINE_float("temperature", None, "0: the most likely token each time.", lower_bound=0)
TOP_K = flags.DEFINE_integer("top_k", None, "Draw from so many of the most likely tokens.", lower_bound=1)
TOP_P = flags.DEFINE_float("top_p", None, "Draw from the most likely tokens with this probability together.")
MIN_P = flags.DEFINE_float("min_p", None, "Draw from tokens of this probability beside that of the most likely one.")
PENALTY = flags.DEFINE_float("repetition_penalty", None, "Above 1: the last tokens become less likely to come again.")
PENALTY_WINDOW = flags.DEFINE_integer("repetition_window", None, "How many of the last tokens; 64.", lower_bound=1)
NGRAM = flags.DEFINE_integer("no_repeat_ngram", None, "No so many tokens in a row come twice.", lower_bound=1)
NUM_BEAMS = flags.DEFINE_integer("num_beams", None, "The likeliest text that so many beams find.", lower_bound=1)
LENGTH_PENALTY = flags.DEFINE_float("length_penalty", None, "Of beams: 0 for short texts, 1 or more for long ones.")
SETTINGS = (TEMPERATURE, TOP_K, TOP_P, MIN_P, PENALTY, PENALTY_WINDOW, NGRAM, NUM_BEAMS, LENGTH_PENALTY)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the first sample; those of the others follow.")
OUTPUT = flags.DEFINE_string("output", None, "File to write. With --workdir: samples.jsonl in it; else none.")
SOURCES = ("workdir", "model", "preset", "saved_model")
SECONDS = 5.0  # from one line of progress to the next
INTERRUPTED = 130  # the exit status of what Ctrl-C ended


def read_prompt():
    """Returns the prompt as bytes, or None if none is given."""
    if PROMPT_FILE.value == "-":
        return sys.stdin.buffer.read()
    if PROMPT_FILE.value is not None:
        return pathlib.Path(PROMPT_FILE.value).read_bytes()
    # Bytes of the command line that are no UTF-8 come as lone surrogates.
    return None if PROMPT.value is None else PROMPT.value.encode("utf-8", errors="surrogateescape")


def make_source():
    """Returns what the flags say the text comes from: see `trainers.shared.sources`."""
    if (flags.FLAGS["tokenizer"].present or VOCABULARY.value) and MODEL.value is None and PRESET.value is None:
        raise ValueError(
            "--tokenizer and --vocabulary are for --model and --preset; a run and a SavedModel have theirs."
        )
    if WORKDIR.value is not None:
        return sources.of_run(WORKDIR.value)
    if SAVED_MODEL.value is not None:
        return sources.SavedModel(SAVED_MODEL.value)
    tokenizer = tokenizers.make_tokenizer(TOKENIZER.value, VOCABULARY.value, ("--tokenizer", "--vocabulary"))
    if MODEL.value is not None:
        return sources.of_file(MODEL.value, tokenizer)
    return sources.of_preset(PRESET.value, tokenizer)


class Progress:
    """Prints one sample as it comes, or says now and then how far several are.

    Args:
        num_samples: How many there will be.
    """

    def __init__(self, num_samples):
        self._num_samples = num_samples
        self._printed = 0
        self._started = self._told = time.monotonic()

    def __call__(self, samples):
        if self._num_samples == 1:
            text = sampling.printable(samples[0]["text"])
            sys.stdout.write(text[self._printed :])
            sys.stdout.flush()
            self._printed = len(text)
        elif time.monotonic() - self._told > SECONDS:
            self._told = time.monotonic()
            self.tell(samples)

    def tell(self, samples):
        """Logs how far samples are."""
        count, seconds = sum(sample["num_tokens"] for sample in samples), time.monotonic() - self._started
        logging.info("%d of %d samples, %d tokens in %.1f s.", len(samples), self._num_samples, count, seconds)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"No arguments are expected. Received: {' '.join(argv[1:])}.")
    sys.stdout.reconfigure(encoding="utf-8")
    source, progress = make_source(), Progress(NUM_SAMPLES.value)
    path = OUTPUT.value
    if path is None and WORKDIR.value is not None:
        path = workdir.open_workdir(WORKDIR.value) / sampling.SAMPLES
    settings = {flag.name: flag.value for flag in SETTINGS}
    samples = sampling.generate(
        source, read_prompt(), NUM_SAMPLES.value, LENGTH.value, SEED.value, path, progress, **settings
    )
    print("" if len(samples) == NUM_SAMPLES.value == 1 else sampling.as_text(samples), flush=True)
    progress.tell(samples)
    if path is not None:
        logging.info("Written to %s.", path)
    if any(sample["interrupted"] for sample in samples):
        logging.info("Interrupted: this is what there was.")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    flags.mark_flags_as_mutual_exclusive(SOURCES, required=True)
    flags.mark_flags_as_mutual_exclusive(["prompt", "prompt_file"])
    console.run(main)
