"""Selectors of an attention layer: the inputs that they compare, and their weights, such as centroids."""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.layers import data_parallel
from tf_sparse_attention.layers.parts.variables import random_directions, state_dtype
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan, Leaf, Selections, select_tokens
from tf_sparse_attention.patterns.pattern import primitives
from tf_sparse_attention.patterns.selection import SelectionInputs, Selector
from tf_sparse_attention.types import Shape, Tensor

NOISE = 0.1  # standard deviation added to revived centroids, whose channels have unit variance


class Centroids(keras.layers.Layer):
    """Centroids (N, K, H) of online k-means and their moving averages, float32 for any dtype policy.

    `observe` updates the centroids in training: immediately on one device and on JAX. With several TensorFlow replicas
    it stores the sums of the replica in `pending`; the training step of `tsa.models.Model` adds them and calls
    `advance`.

    Args:
        num_heads: N.
        num_clusters: K.
        size: H, channels of a token.
        ema_decay: decay of the exponential moving averages, in [0, 1).
        revive_after: training steps without tokens after which a centroid is re-initialized; 0: never.
        seed: integer seed of the initial centroids and of the noise of revived centroids.
        commitment_loss: factor of the commitment loss that `learn` adds. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.
    """

    def __init__(
        self,
        num_heads: int,
        num_clusters: int,
        size: int,
        ema_decay: float,
        revive_after: int,
        seed: int,
        commitment_loss: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads, self.num_clusters, self.size = num_heads, num_clusters, size
        self.ema_decay = ema_decay
        self.revive_after = revive_after
        self.seed = seed
        self.commitment_loss = commitment_loss
        self.pending: list[keras.Variable] = []
        self.build()

    def build(self, input_shape: Shape | None = None) -> None:
        sizes = (self.num_heads, self.num_clusters, self.size)
        dtype = state_dtype(self)
        first = keras.initializers.RandomNormal(stddev=1.0, seed=self.seed)

        def directions(shape, dtype=None):
            return kmeans.normalize(first(shape, dtype=dtype))

        state = {"trainable": False, "autocast": False}
        self.centroids = self.add_weight(name="centroids", shape=sizes, dtype=dtype, initializer=directions, **state)
        self.sums = self.add_weight(name="sums", shape=sizes, dtype=dtype, initializer=directions, **state)
        self.counts = self.add_weight(name="counts", shape=sizes[:2], dtype=dtype, initializer="ones", **state)
        self.unused = self.add_weight(name="unused", shape=sizes[:2], dtype="int32", initializer="zeros", **state)
        if data_parallel.replica_count() > 1:
            shapes = {"pending_sums": sizes, "pending_counts": sizes[:2]}
            self.pending = [
                self.add_weight(name=name, shape=shape, dtype=dtype, initializer="zeros", **state)
                for name, shape in shapes.items()
            ]
        self.built = True

    @property
    def state(self) -> kmeans.State:
        """The weights as a `kmeans.State`."""
        return kmeans.State(*(ops.copy(variable) for variable in self._state_weights()))

    def _state_weights(self):
        return self.centroids, self.sums, self.counts, self.unused

    def read(self) -> Tensor:
        """Return a copy of the centroids, so that a later update in a TensorFlow graph does not change it."""
        return ops.copy(self.centroids)

    def set_state(self, state: kmeans.State) -> None:
        """Assign a `kmeans.State` to the weights."""
        for variable, value in zip(self._state_weights(), state, strict=True):
            # In a stateless call, the variable would otherwise carry the gradient of the assigned value.
            variable.assign(ops.stop_gradient(ops.cast(value, variable.dtype)))

    def start_from_data(self, x: Tensor, mask: Tensor | None = None, seed: int | None = None) -> None:
        """Initialize the centroids with random tokens of `x`, (B, N, T, H).

        Args:
            x: float (B, N, T, H).
            mask: bool (B, T), False for padding. None: no padding.
            seed: integer seed. None: the seed of the layer.

        Raises:
            ValueError: if there are fewer tokens than centroids.
        """
        tokens = None if mask is None else int(ops.sum(ops.cast(mask, "int32")))
        if tokens is not None and tokens < self.num_clusters:
            raise ValueError(
                "`mask` must leave at least `num_clusters` tokens to start from. "
                f"Received: {tokens} tokens, num_clusters={self.num_clusters}."
            )
        state = kmeans.init_state_from_data(x, self.num_clusters, self.seed if seed is None else seed, mask)
        # Copies: centroids and sums start equal, and a JAX training step donates both buffers.
        self.set_state(kmeans.State(*map(ops.copy, state)))

    def assign(self, heads: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the nearest centroid of each normalized token (B, N, T, H), int32 (B, N, T), at any position."""
        return kmeans.nearest(heads, self.read())

    def scores(self, heads: Tensor) -> Tensor:
        """Return the score of each normalized token (B, N, T, H) for each centroid, float (B, N, T, K)."""
        return kmeans.scores(heads, self.read())

    def learn(self, sides: Sequence[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Update the centroids by the tokens of one training step, and add the commitment loss.

        Args:
            sides: tuples of normalized tokens (B, N, T, H), their mask bool (B, T) or None, and their clusters.
        """
        if self.commitment_loss:
            centroids = self.read()
            loss = sum(kmeans.commitment(x, clusters, centroids, mask) for x, mask, clusters in sides)
            self.add_loss(ops.cast(self.commitment_loss * loss, keras.config.floatx()))
        seen = [kmeans.statistics(x, clusters, self.num_clusters, mask) for x, mask, clusters in sides]
        self.observe(kmeans.Statistics(*(sum(parts[1:], parts[0]) for parts in zip(*seen, strict=True))))

    def observe(self, seen: kmeans.Statistics) -> None:
        """Update the centroids, or store the update of this replica, by the `kmeans.Statistics` of a training step."""
        if not data_parallel.in_several_replicas():
            self.advance(seen)
            return
        data_parallel.check_deferring(self)
        for variable, value in zip(self.pending, seen, strict=True):
            variable.assign(ops.cast(value, variable.dtype))

    def advance(self, seen: Sequence[Tensor]) -> None:
        """Update the centroids by the total sums and counts of all replicas. Sums that are not finite are skipped."""
        sums, counts = seen
        is_finite = ops.all(ops.isfinite(sums), axis=-1)  # (N, K)
        # A NaN would stay in the state and reach the attention of every later batch.
        seen = kmeans.Statistics(ops.where(is_finite[..., None], sums, 0), ops.where(is_finite, counts, 0))
        state = kmeans.update(self.state, seen, self.ema_decay)
        if self.revive_after:
            # A function of the seed alone: equal on all replicas, and no state to save.
            noise = NOISE * keras.random.normal(self.centroids.shape, dtype=self.centroids.dtype, seed=self.seed)
            state = kmeans.revive(state, self.revive_after, noise)
        self.set_state(state)

    def save_own_variables(self, store: MutableMapping[str, Tensor]) -> None:
        for variable in self._state_weights():
            store[variable.name] = variable

    def load_own_variables(self, store: MutableMapping[str, Tensor]) -> None:
        for variable in self._state_weights():
            variable.assign(store[variable.name])


class LayerWeights:
    """Weights of a selector as variables of an attention layer, see `patterns.selection.SelectorWeights`.

    Args:
        layer: an attention layer that is being built.
        num_heads: heads of keys.
        names: names of centroids and of directions.
        seed: integer seed.
        normalizes: whether selectors layer-normalize heads before they compare them.
    """

    def __init__(self, layer: Any, num_heads: int, names: tuple[str, str], seed: Any, normalizes: bool) -> None:
        self._layer, self._names = layer, names
        self.num_heads, self.key_dim, self.dtype = num_heads, layer.key_dim, layer.dtype_policy
        self.seed, self.normalizes = seed, normalizes

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
            name=self._names[0],
            dtype=self.dtype,
        )

    def directions(self, num_directions: int) -> keras.Variable:
        """Create random directions (n, H, num_directions), float32 and not trained."""
        sizes = self.num_heads, self.key_dim, num_directions
        return random_directions(self._layer, self._names[1], sizes, self.seed)


def make_selectors(
    layer: Any, plans: Sequence[HeadPlan], normalizes: bool = False, names: tuple[str, str] | None = None
) -> list[Selector | None]:
    """Create the selector of each primitive pattern of a layer, None for patterns that are not content-based.

    Args:
        layer: an attention layer that is being built.
        plans: the `HeadPlan`s of its pattern.
        normalizes: whether selectors must normalize the heads of the layer. Default False.
        names: names of the weights of a single primitive pattern, which then have the seed of the layer. None: the
            names and the seed of each primitive pattern have its index.
    """
    made: dict[int, Selector] = {}
    for plan in plans:
        for leaf in plan.leaves:
            if leaf.pattern.content_based:
                seed = layer.seed if names else derived_seed(layer.seed, leaf.index)
                own_names = names or (f"clusters_{leaf.index}", f"axes_{leaf.index}")
                weights = LayerWeights(layer, len(plan.key_heads), own_names, seed, normalizes)
                selector = leaf.pattern.make_selector(weights)
                made[leaf.index] = selector_for_leaf(selector, leaf)
    return [made.get(index) for index in range(len(primitives(layer.pattern)))]


def selector_for_leaf(selector: Any, leaf: Leaf) -> Selector:
    """Return a selector for the keys of a leaf; with successor values it shifts them by one position."""
    return selector.for_successors() if leaf.reads_successors else selector


def find_layers(selectors: Sequence[Selector | None]) -> list[keras.layers.Layer]:
    """Return the Keras layers that are attributes of selectors, so that an attention layer can track their weights."""
    attributes = (vars(selector).values() for selector in selectors if selector is not None)
    return [x for values in attributes for x in values if isinstance(x, keras.layers.Layer)]


def make_select(
    layer: Any, query: Tensor, key: Tensor | None, masks: TokenMasks, training: bool = False
) -> Callable[[Tensor, Tensor, Sequence[HeadPlan]], Selections]:
    """Return the `select` of `attend_pattern` for a call of a layer.

    Args:
        layer: an attention layer.
        query: projected queries (B, N, T, H).
        key: projected keys (B, M, S, H), or None if queries are used as keys.
        masks: a `TokenMasks`.
        training: whether selectors update their weights. Default False.
    """
    compared = query if key is None else key

    def select(rotated_query, rotated_key, plans):
        inputs = SelectionInputs(query, compared, rotated_query, rotated_key, masks, training and layer.trainable)
        return select_tokens(plans, layer.selectors, inputs)

    return select
