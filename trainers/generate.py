"""Continues a prompt with a trained model: python -m trainers.generate --workdir=runs/demo --prompt='def main():'

The samples are printed and written to WORKDIR/samples.jsonl. The prompt is a flag, a file (--prompt_file=FILE) or the
standard input (--prompt_file=-); what is not given is as in the `generate` section of the run's configuration. While a
run is still training, its newest checkpoint is used.

The backend is TensorFlow unless the variable KERAS_BACKEND says jax.
"""

import pathlib
import sys

from absl import app, flags, logging

from trainers import console, sampling

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run to sample from.")
PROMPT = flags.DEFINE_string("prompt", None, "Text to continue; '' begins a document.")
PROMPT_FILE = flags.DEFINE_string("prompt_file", None, "File with the text to continue; - is the standard input.")
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "How many samples.", lower_bound=1)
LENGTH = flags.DEFINE_integer("length", None, "Tokens to add at most.", lower_bound=1)
TEMPERATURE = flags.DEFINE_float("temperature", None, "0: the most likely token each time.", lower_bound=0)
TOP_P = flags.DEFINE_float("top_p", None, "Draw from the most likely tokens with this probability together.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the first sample; those of the others follow.")


def read_prompt():
    """Returns the prompt as bytes, or None if none is given."""
    if PROMPT_FILE.value == "-":
        return sys.stdin.buffer.read()
    if PROMPT_FILE.value is not None:
        return pathlib.Path(PROMPT_FILE.value).read_bytes()
    # Bytes of the command line that are no UTF-8 come as lone surrogates.
    return None if PROMPT.value is None else PROMPT.value.encode("utf-8", errors="surrogateescape")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"No arguments are expected. Received: {' '.join(argv[1:])}.")
    samples = sampling.generate(
        WORKDIR.value, read_prompt(), NUM_SAMPLES.value, LENGTH.value, TEMPERATURE.value, TOP_P.value, SEED.value
    )
    sys.stdout.reconfigure(encoding="utf-8")
    print(sampling.as_text(samples), flush=True)
    logging.info("Written to %s.", pathlib.Path(WORKDIR.value) / sampling.SAMPLES)


if __name__ == "__main__":
    flags.mark_flag_as_required("workdir")
    flags.mark_flags_as_mutual_exclusive(["prompt", "prompt_file"])
    console.run(main)
