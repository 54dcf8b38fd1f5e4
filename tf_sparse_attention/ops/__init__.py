"""Pure functions of tensors, written in `keras.ops` only.

The modules are the interface: `from tf_sparse_attention.ops import attend, grid`.
"""
