"""What kinds of heads are worth on real text: cells of one text, length, kind, number of steps and seed.

`python -m benchmarks.quality` trains the cells that `results.jsonl` does not have yet, one after the other, and prints
the tables; see `__main__.py`.
"""

__all__ = []
