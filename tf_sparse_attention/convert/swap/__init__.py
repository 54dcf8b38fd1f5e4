"""Replacement of dense attention in Keras models by sparse layers."""
