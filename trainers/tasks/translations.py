"""What a translator writes itself: the translations of a split beside their targets, with BLEU and chrF."""

import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import sacrebleu
from absl import logging

from tf_sparse_attention.generation import BeamSearch
from trainers.shared.files import atomic_file

BATCH_SIZE = 8  # sources that are translated together
NUM_SHOWN, SHOWN_CHARACTERS = 2, 400  # examples in the text of an evaluation, and of each of their texts


class Translations:
    """Translations of some pairs of a split, written to a file of JSON lines while they are made.

    What was translated before a process was killed is read again. The file ends in .partial.jsonl until it is complete.

    Args:
        path: the file, NAME.jsonl.
        identity: plain data that identifies model, data and settings; what another one left is ignored.
    """

    def __init__(self, path: pathlib.Path, identity: Any) -> None:
        self.path, self._partial = path, path.with_suffix(".partial.jsonl")
        self._identity = json.loads(json.dumps(identity))

    def complete(self, task: Any, model: Any, stores: Sequence[Any], pairs: np.ndarray) -> list[dict[str, Any]]:
        """Translates what is missing, writes the file and returns its lines.

        Args:
            task: a `trainers.tasks.translate.Task`.
            model: its `SequenceToSequence`.
            stores: token stores of the sources and the targets.
            pairs: numbers of the pairs.

        Returns:
            A dictionary for each pair, in their order: "pair", "source", "target" and "translation".
        """
        found = {line["pair"]: line for line in self._read()}
        left = np.array([pair for pair in pairs if int(pair) not in found], "int64")
        left = left[np.argsort([len(stores[0].document(pair)) for pair in left], kind="stable")]
        with self._partial.open("a", encoding="utf-8") as file:
            for begin in range(0, len(left), BATCH_SIZE):
                for line in _translated(task, model, stores, left[begin : begin + BATCH_SIZE]):
                    found[line["pair"]] = line
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                logging.info("%d of %d sources are translated.", len(found), len(pairs))
        lines = [found[int(pair)] for pair in pairs]
        with atomic_file(self.path) as temporary:
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            temporary.write_text(text, encoding="utf-8")
        self._partial.unlink()
        return lines

    def _read(self):
        """Returns the lines that a killed process left, and makes a file with their identity where there are none."""
        lines = list(_whole_lines(self._partial)) if self._partial.exists() else []
        if not lines or lines[0] != self._identity:
            lines = [self._identity]
        with atomic_file(self._partial) as temporary:  # without a line that is half written
            temporary.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
        return lines[1:]


def _whole_lines(path: pathlib.Path) -> Iterator[Any]:
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)


def _translated(task, model, stores, pairs):
    """Returns the lines of some pairs."""
    settings, tokenizer = task.config.train, task.tokenizer
    sources, targets = ([store.document(pair) for pair in pairs] for store in stores)
    strategy = BeamSearch(num_beams=settings.evaluation_beams) if settings.evaluation_beams > 1 else "greedy"
    texts = model.generate(sources, task.config.generate.length, strategy, tokenizer=tokenizer)
    sides = [[tokenizer.detokenize(ids[:-1]) for ids in side] for side in (sources, targets)]
    names = ("pair", "source", "target", "translation")
    return [dict(zip(names, row, strict=True)) for row in zip(map(int, pairs), *sides, texts, strict=True)]


def scores_of(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns BLEU and chrF of translations, each text one segment, and of the sources left as they are, by sacrebleu.

    Args:
        lines: what `Translations.complete` returns.

    Returns:
        Dictionary: "translations", how many there are, "bleu" and "chrf" from 0 to 100, both again under
        "of_sources", and "bleu_signature" and "chrf_signature", which say how they are computed.
    """
    targets = [[line["target"] for line in lines]]
    metrics = {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}
    of_translations, of_sources = (
        {name: metric.corpus_score([line[side] for line in lines], targets).score for name, metric in metrics.items()}
        for side in ("translation", "source")
    )
    signatures = {f"{name}_signature": str(metric.get_signature()) for name, metric in metrics.items()}
    return {"translations": len(lines), **of_translations, "of_sources": of_sources, **signatures}


def read(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Returns the lines of a file of translations."""
    return list(_whole_lines(pathlib.Path(path)))


def as_text(lines: Sequence[dict[str, Any]]) -> str:
    """Returns the beginnings of some translations, each under its source and above its target."""
    parts = []
    for line in lines[:NUM_SHOWN]:
        for name in ("source", "translation", "target"):
            text = line[name]
            parts.append(f"--- {name}\n{text[:SHOWN_CHARACTERS]}{'...' * (len(text) > SHOWN_CHARACTERS)}")
    return "\n".join(parts)
