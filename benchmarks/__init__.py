"""Time, memory and quality of the library's attention, each a command: `python -m benchmarks.attention --help`."""
