"""Configurations of the trainer, one a file; `base.py` lists every setting."""
