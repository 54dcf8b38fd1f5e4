"""Selectors of an attention layer: their weights, and the inputs that they compare."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tf_sparse_attention.layers.parts.centroids import Centroids
from tf_sparse_attention.layers.parts.variables import random_directions
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan, Leaf, select_tokens
from tf_sparse_attention.patterns.engine.inputs import Selections
from tf_sparse_attention.patterns.group_band import GroupSelector
from tf_sparse_attention.patterns.pattern import primitives
from tf_sparse_attention.patterns.selection import SelectionInputs, Selector
from tf_sparse_attention.types import Tensor


class LayerWeights:
    """Weights of a selector as variables of an attention layer, see `patterns.selection.SelectorWeights`.

    Args:
        layer: an attention layer that is being built.
        leaf: the `Leaf` of the pattern.
        num_heads: heads of keys.
        normalizes: whether heads must be layer-normalized before they are compared.
    """

    def __init__(self, layer: Any, leaf: Leaf, num_heads: int, normalizes: bool) -> None:
        self._layer, self._index = layer, leaf.index
        self.num_heads, self.key_dim, self.dtype = num_heads, layer.key_dim, layer.dtype_policy
        self.seed: Any = derived_seed(layer.seed, leaf.index)
        self.normalizes = normalizes

    def centroids(self, num_clusters: int, ema_decay: float, revive_after: int, commitment_loss: float) -> Centroids:
        """Create the centroids of online k-means."""
        return Centroids(
            self.num_heads,
            num_clusters,
            self.key_dim,
            ema_decay,
            revive_after,
            self.seed,
            commitment_loss,
            name=f"clusters_{self._index}",
            dtype=self.dtype,
        )

    def directions(self, num_directions: int) -> keras.Variable:
        """Create random directions (n, H, num_directions), float32 and not trained."""
        sizes = self.num_heads, self.key_dim, num_directions
        return random_directions(self._layer, f"axes_{self._index}", sizes, self.seed)


def make_selectors(layer: Any, plans: Sequence[HeadPlan], normalizes: bool = False) -> list[Selector | None]:
    """Create the selector of each leaf of the pattern of a layer, None for leaves that are not content-based.

    Args:
        layer: an attention layer that is being built.
        plans: the `HeadPlan`s of its pattern.
        normalizes: whether selectors must normalize the heads of the layer. Default False.
    """
    made: dict[int, Selector] = {}
    for plan in plans:
        for leaf in plan.leaves:
            if leaf.pattern.content_based:
                selector = leaf.pattern.make_selector(LayerWeights(layer, leaf, len(plan.key_heads), normalizes))
                made[leaf.index] = for_leaf(selector, leaf)
    return [made.get(index) for index in range(len(primitives(layer.pattern)))]


def for_leaf(selector: Any, leaf: Leaf) -> Selector:
    """Return a selector for the keys of a leaf, which may be one position later."""
    return selector.for_successors() if leaf.reads_successors else selector


def groupers_of(selectors: Sequence[Selector | None]) -> list[keras.layers.Layer]:
    """Return the groupers that are layers, so that an attention layer can track their weights."""
    groupers = [selector.grouper for selector in selectors if isinstance(selector, GroupSelector)]
    return [grouper for grouper in groupers if isinstance(grouper, keras.layers.Layer)]


def selection_of(
    layer: Any, query: Tensor, key: Tensor | None, masks: TokenMasks, training: bool = False
) -> Callable[[Tensor, Tensor, Sequence[HeadPlan]], Selections]:
    """Return the `select` of `attend_pattern` for a call of a layer.

    Args:
        layer: an attention layer.
        query: projected queries (B, N, T, H).
        key: projected keys (B, M, S, H), or None where queries are used as keys.
        masks: a `TokenMasks`.
        training: whether selectors update their weights. Default False.
    """
    compared = query if key is None else key

    def select(rotated_query, rotated_key, plans):
        inputs = SelectionInputs(query, compared, rotated_query, rotated_key, masks, training and layer.trainable)
        return select_tokens(plans, layer.selectors, inputs)

    return select
