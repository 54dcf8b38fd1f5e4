"""Benchmarks of time, memory and quality, one command per module: `python -m benchmarks.attention --help`."""
