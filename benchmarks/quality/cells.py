"""Cells of the study, and sets of cells."""

import fnmatch
from collections.abc import Sequence
from typing import NamedTuple, Self

SEEDS = (0, 1)
MAIN = ("local", "last_random", "last_nearest", "last_successors")
BOTH = ("random", "nearest", "successors")
OTHERS = ("strided", "lsh", "top_k", "dense", "random_successors", "lsh_successors", "window_successors")
# Layers and heads with successor values, then variants of the last layer with one change each.
PLACES = ("first_successors", "one_routed", "three_routed", "added")
PLACES += ("last_one_routed", "last_three_routed", "last_four_routed", "last_added")
CHANGES = (
    "together",
    *("nearest", "random_successors", "window_successors", "lsh_successors", "one_cluster"),
    *("temperature_1", "temperature_half", "temperature_root", "gate", "one_softmax"),
    *("no_commitment", "more_commitment", "faster_centroids", "data_start", "fast_start", "sooner_revived"),
    *("half_the_clusters", "twice_the_clusters", "half_the_size", "twice_the_size"),
    *("rotary", "rank_distance", "token_distance", "shifted_keys", "convolved_keys"),
)
BLOCKS = ("local", "last_successors", "selected", "last_selected", "native")
CHANGED = ("local", "successors", "last_successors", *PLACES, *(f"last_{kind}" for kind in CHANGES))


class Cell(NamedTuple):
    """One model to train: text, tokens per window, kind of heads, number of steps, and seed."""

    text: str
    length: int
    kind: str
    steps: int
    seed: int

    @property
    def config(self) -> str:
        """Name of the configuration, TEXT-LENGTH-KIND-STEPS."""
        return f"{self.text}-{self.length}-{self.kind}-{self.steps}"

    @classmethod
    def of(cls, config: str) -> Self:
        """Return the first cell of a configuration."""
        try:
            text, length, kind, steps = config.split("-")
            return cls(text, int(length), kind, int(steps), SEEDS[0])
        except ValueError:
            raise ValueError(f"`config` must be TEXT-LENGTH-KIND-STEPS. Received: config={config}.") from None


def _cells(text, length, kinds, steps):
    return [Cell(text, length, kind, steps, seed) for kind in kinds for seed in SEEDS]


QUICK = _cells("python", 1024, MAIN, 500)
FULL = [
    *QUICK,
    *_cells("python", 1024, (*BOTH, *OTHERS), 500),
    *_cells("python", 2048, MAIN, 500),
    *_cells("books", 1024, MAIN, 500),
    *_cells("wiki_xml", 1024, MAIN, 500),
    *_cells("python", 1024, MAIN, 3000),
    *_cells("python", 2048, MAIN, 3000),
    *_cells("python", 4096, MAIN, 500),
]
SETS = {
    "quick": QUICK,
    "decides": _cells("python", 1024, CHANGED, 500),
    "blocks": [cell for text in ("python", "books") for cell in _cells(text, 1024, BLOCKS, 500)],
    "full": FULL,
}


def select(name: str, only: Sequence[str] = ("*",), seeds: Sequence[int] = SEEDS) -> list[Cell]:
    """Return the cells of a set with the given seeds whose configuration matches a pattern (python-1024-last_*-500).

    Raises:
        ValueError: If no cell matches a pattern, or if a seed is unknown.
    """
    cells = SETS[name]
    for pattern in only:
        if not any(fnmatch.fnmatchcase(cell.config, pattern) for cell in cells):
            known = ", ".join(dict.fromkeys(cell.config for cell in cells))
            raise ValueError(f"`only` must match cells of the set {name}: {known}. Received: {pattern}.")
    if unknown := set(seeds) - set(SEEDS):
        raise ValueError(f"`seeds` must be in {', '.join(map(str, SEEDS))}. Received: {sorted(unknown)}.")
    fits = [cell for cell in cells if any(fnmatch.fnmatchcase(cell.config, pattern) for pattern in only)]
    return [cell for cell in fits if cell.seed in seeds]
