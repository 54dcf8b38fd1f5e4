"""Keras layers: weights, state, configuration and cache around the functions of `ops`."""
