"""Generated targets of a split, with their sources and references."""

import contextlib
import itertools
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import logging

from tf_sparse_attention.generation import BeamSearch
from tf_sparse_attention.trainers.shared.sampling import write_samples

BATCH_SIZE = 8
NAMES = ("pair", "source", "target", "generated")
NUM_SHOWN, SHOWN_CHARACTERS = 2, 400  # examples in a report, and characters per text


class GeneratedTargets:
    """File of JSON lines with generated targets. Generation resumes if the process was killed.

    Targets are collected in NAME.partial.jsonl, which the caller removes when the evaluation is complete.

    Args:
        path: the file, NAME.jsonl.
        identity: plain data that identifies model, data and settings. A partial file with another identity is replaced.
    """

    def __init__(self, path: pathlib.Path, identity: Any) -> None:
        self.path, self.partial = path, path.with_suffix(".partial.jsonl")
        self._identity = json.loads(json.dumps(identity))

    def complete(self, task: Any, model: Any, buckets: Any, pairs: np.ndarray) -> list[dict[str, Any]]:
        """Generate the missing targets, write the file and return its lines.

        Args:
            task: a `PairTask`.
            model: its model.
            buckets: the `PairBuckets` of the split.
            pairs: indices of the pairs.

        Returns:
            One dictionary per pair, in the order of `pairs`: "pair", "source", "target" and "generated".
        """
        done = {line["pair"]: line for line in self._read_partial()}
        missing = np.array([pair for pair in pairs if int(pair) not in done], "int64")
        missing = missing[np.argsort([len(buckets.source.document(pair)) for pair in missing], kind="stable")]
        with self.partial.open("a", encoding="utf-8") as file:
            for begin in range(0, len(missing), BATCH_SIZE):
                for line in _generate_lines(task, model, buckets, missing[begin : begin + BATCH_SIZE]):
                    done[line["pair"]] = line
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                logging.info("%d of %d targets are generated.", len(done), len(pairs))
        lines = [done[int(pair)] for pair in pairs]
        write_samples(lines, self.path)
        return lines

    def _read_partial(self):
        """Return the lines of the partial file. Create it if it is missing or has another identity."""
        lines = []
        with contextlib.suppress(OSError, ValueError):  # missing, or damaged from some line on
            for line in _read_lines(self.partial):
                lines.append(line)
        if not lines or lines[0] != self._identity:
            lines = [self._identity]
        write_samples(lines, self.partial)  # without an incomplete last line
        return lines[1:]


def _read_lines(path: pathlib.Path) -> Iterator[Any]:
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)


def _generate_lines(task, model, buckets, pairs):
    beams, tokenizer = task.config.train.generated_beams, task.tokenizer
    sources, targets = ([store.document(pair) for pair in pairs] for store in (buckets.source, buckets.target))
    texts = task.write_targets(model, sources, BeamSearch(num_beams=beams) if beams > 1 else "greedy")
    sides = [[tokenizer.detokenize(ids[:-1]) for ids in side] for side in (sources, targets)]
    return [dict(zip(NAMES, row, strict=True)) for row in zip(map(int, pairs), *sides, texts, strict=True)]


def rows(path: str | os.PathLike) -> list[tuple[str, str]]:
    """Return the first generated targets of a file, with sources and references, as rows of `Validation.describe`."""
    return [
        (f"--- {name}\n", line[name][:SHOWN_CHARACTERS] + "..." * (len(line[name]) > SHOWN_CHARACTERS))
        for line in itertools.islice(_read_lines(pathlib.Path(path)), NUM_SHOWN)
        for name in NAMES[1:]
    ]
