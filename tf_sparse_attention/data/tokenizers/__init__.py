"""Tokenizers for Python text and for string tensors of TensorFlow."""
