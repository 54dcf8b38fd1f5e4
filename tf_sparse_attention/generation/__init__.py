"""Samplers and decoding loops over a step function; they know no model."""
