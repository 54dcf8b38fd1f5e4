"""Batches for training and evaluation, each a pure function of its number."""
