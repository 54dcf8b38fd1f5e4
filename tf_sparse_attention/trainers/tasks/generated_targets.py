"""Targets that a model generates for the sources of a split, with the references."""

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

BATCH_SIZE = 8  # sources that are read together
NAMES = ("pair", "source", "target", "generated")
NUM_SHOWN, SHOWN_CHARACTERS = 2, 400  # examples in the text of an evaluation, and of each of their texts


class GeneratedTargets:
    """The targets that a model writes of some pairs of a split, in a file of JSON lines that grows meanwhile.

    What was generated before a process was killed is read again. The file ends in .partial.jsonl until it is complete.

    Args:
        path: the file, NAME.jsonl.
        identity: plain data that identifies model, data and settings; what another one left is ignored.
    """

    def __init__(self, path: pathlib.Path, identity: Any) -> None:
        self.path, self._partial = path, path.with_suffix(".partial.jsonl")
        self._identity = json.loads(json.dumps(identity))

    def complete(self, task: Any, model: Any, buckets: Any, pairs: np.ndarray) -> list[dict[str, Any]]:
        """Generates what is missing, writes the file and returns its lines.

        Args:
            task: a `PairTask`.
            model: its model.
            buckets: the `PairBuckets` of the split.
            pairs: numbers of the pairs.

        Returns:
            A dictionary for each pair, in their order: "pair", "source", "target" and "generated".
        """
        found = {line["pair"]: line for line in self._read()}
        left = np.array([pair for pair in pairs if int(pair) not in found], "int64")
        left = left[np.argsort([len(buckets.source.document(pair)) for pair in left], kind="stable")]
        with self._partial.open("a", encoding="utf-8") as file:
            for begin in range(0, len(left), BATCH_SIZE):
                for line in _generated(task, model, buckets, left[begin : begin + BATCH_SIZE]):
                    found[line["pair"]] = line
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                logging.info("%d of %d targets are generated.", len(found), len(pairs))
        lines = [found[int(pair)] for pair in pairs]
        write_samples(lines, self.path)
        self._partial.unlink()
        return lines

    def _read(self):
        """Returns the lines that a killed process left, and makes a file with their identity where there are none."""
        lines = list(_whole_lines(self._partial)) if self._partial.exists() else []
        if not lines or lines[0] != self._identity:
            lines = [self._identity]
        write_samples(lines, self._partial)  # without a line that is half written
        return lines[1:]


def _whole_lines(path: pathlib.Path) -> Iterator[Any]:
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)


def _generated(task, model, buckets, pairs):
    """Returns the lines of some pairs."""
    beams, tokenizer = task.config.train.generated_beams, task.tokenizer
    sources, targets = ([store.document(pair) for pair in pairs] for store in (buckets.source, buckets.target))
    texts = task.write_targets(model, sources, BeamSearch(num_beams=beams) if beams > 1 else "greedy")
    sides = [[tokenizer.detokenize(ids[:-1]) for ids in side] for side in (sources, targets)]
    return [dict(zip(NAMES, row, strict=True)) for row in zip(map(int, pairs), *sides, texts, strict=True)]


def rows(path: str | os.PathLike) -> list[tuple[str, str]]:
    """Returns the beginnings of some generated targets in a file, each after its source, as lines of an evaluation."""
    return [
        (f"--- {name}\n", line[name][:SHOWN_CHARACTERS] + "..." * (len(line[name]) > SHOWN_CHARACTERS))
        for line in itertools.islice(_whole_lines(pathlib.Path(path)), NUM_SHOWN)
        for name in NAMES[1:]
    ]
