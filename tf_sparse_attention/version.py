"""The version of the library, written here and nowhere else."""

__version__ = "0.1.0"
