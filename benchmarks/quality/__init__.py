"""Quality of several types of heads on real text.

A cell of the study is a model for one text, length, kind of heads, number of steps and seed. `python -m
benchmarks.quality` trains the cells that `results.jsonl` does not have, and prints the tables; see `__main__.py`.
"""

__all__ = []
