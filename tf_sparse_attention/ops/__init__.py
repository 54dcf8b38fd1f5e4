"""Pure functions of tensors, written in `keras.ops` only."""
