"""Samples from a trained model: what `trainers.generate` does once its flags are read."""

import json
import time
import unicodedata

from absl import logging

from tf_sparse_attention.models.generation import Generator
from trainers import workdir
from trainers.files import replacing

SAMPLES = "samples.jsonl"
BATCH_SIZE = 8


def generate(folder, prompt=None, num_samples=1, length=None, temperature=None, top_p=None, seed=0):
    """Continues a prompt with the model of a work folder and writes the samples there, one JSON object a line.

    Sample i draws from the seed `seed + i` whatever else is drawn, so that each can be had again by itself.

    Args:
        folder: The work folder.
        prompt: `bytes`, UTF-8 or not; empty: a document from its beginning. None, here and below: as in the `generate`
            section of the run's configuration.
        num_samples: How many.
        length: Tokens to add at most; a sample ends sooner with the document.
        temperature: 0 takes the most likely token each time; 1 draws as the model says.
        top_p: Draw from the most likely tokens that have this probability together, in (0, 1].
        seed: Integer.

    Returns:
        List of dictionaries: "prompt", "text" (prompt and continuation, with U+FFFD for what is no UTF-8), "num_tokens"
        (that were added), "finished" (whether the document ended), "seed", "temperature" and "top_p".

    Raises:
        ValueError: If there is no trained model, or a setting is out of range.
    """
    defaults = workdir.load_config(folder).generate
    prompt = defaults.prompt.encode("utf-8") if prompt is None else prompt
    length = defaults.length if length is None else length
    settings = {
        "temperature": defaults.temperature if temperature is None else temperature,
        "top_p": defaults.top_p if top_p is None else top_p,
    }
    for name, value in {"num_samples": num_samples, "length": length}.items():
        if value < 1:
            raise ValueError(f"`{name}` must be positive. Received: {name}={value}.")
    tokenizer = workdir.load_tokenizer(folder)
    ids = tokenizer.tokenize(prompt)
    seeds = range(seed, seed + num_samples)
    started = time.monotonic()
    rows = _rows(Generator(workdir.load_model(folder)), ids, len(ids) + length, seeds, settings, tokenizer.end_id)
    num_tokens, seconds = sum(len(row) - len(ids) for row in rows), time.monotonic() - started
    logging.info("%d tokens in %.1f s, compiling included.", num_tokens, seconds)
    samples = [
        {
            "prompt": tokenizer.detokenize(ids),
            "text": tokenizer.detokenize(row),
            "num_tokens": len(row) - len(ids),
            "finished": bool(row[-1] == tokenizer.end_id),
            "seed": row_seed,
            **settings,
        }
        for row, row_seed in zip(rows, seeds, strict=True)
    ]
    _write(samples, workdir.open_workdir(folder) / SAMPLES)
    return samples


def _rows(generator, ids, max_length, seeds, settings, end_id):
    rows = []
    size = min(BATCH_SIZE, len(seeds))
    for begin in range(0, len(seeds), size):
        # Another number of rows would need another program; what is too much is drawn and thrown away.
        batch = [*range(seeds[begin], seeds[begin] + size)]
        rows += generator.generate([ids] * size, max_length, seed=batch, stop_id=end_id, **settings)
    return rows[: len(seeds)]


def _write(samples, path):
    with replacing(path) as beside:
        lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples]
        beside.write_text("".join(lines), encoding="utf-8")


def as_text(samples):
    """Returns samples for a person: the text alone, or under a line each if there are several.

    Characters that would move the cursor or change the terminal become U+FFFD.
    """
    if len(samples) == 1:
        return _printable(samples[0]["text"])
    return "\n".join(f"=== seed {sample['seed']}\n{_printable(sample['text'])}" for sample in samples)


def _printable(text):
    return "".join("\ufffd" if _is_control(character) else character for character in text)


def _is_control(character):
    return unicodedata.category(character) == "Cc" and character not in "\n\t"
