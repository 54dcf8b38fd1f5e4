"""Replacement of dense attention in Keras models by sparse layers."""

from tf_sparse_attention.convert.swap.dense_attention import arguments_of
from tf_sparse_attention.convert.swap.heal import Healing, heal
from tf_sparse_attention.convert.swap.make_sparse import make_sparse
from tf_sparse_attention.convert.swap.replace import register_presets, replace_attention

__all__ = ["Healing", "arguments_of", "heal", "make_sparse", "register_presets", "replace_attention"]
