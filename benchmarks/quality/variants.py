"""Variants of routed heads with one change each: temperature, gate, centroid initialization, shifted keys."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.layers import RoutingAttention
from tf_sparse_attention.layers.parts.selectors import Centroids
from tf_sparse_attention.ops import kmeans


@keras.saving.register_keras_serializable(package="quality")
class LearnedTemperature(RoutingAttention):
    """Routing attention with a learned factor exp(s) of the scores per head, initially `start`.

    The published scores LN(q) . LN(k) are at most H, the size of a head; scores divided by sqrt(H) are at most sqrt(H).
    """

    def __init__(self, *args: Any, start: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start = start

    def build(self, *shapes: Any, **named: Any) -> None:
        super().build(*shapes, **named)
        begin = keras.initializers.Constant(math.log(self.start))
        self._log_scale = self.add_weight(name="log_scale", shape=(self.num_heads, 1, 1), initializer=begin)

    def score_inputs(self, query: Any, key: Any) -> Any:
        query, key = super().score_inputs(query, key)
        scale = ops.cast(ops.exp(self._log_scale), query.dtype)
        return (query * ops.sqrt(scale), None) if key is None else (query * scale, key)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "start": self.start}


@keras.saving.register_keras_serializable(package="quality")
class Gated(RoutingAttention):
    """Routing attention whose output is multiplied by sigmoid(x w + b), one number per token."""

    def build(self, *shapes: Any, **named: Any) -> None:
        super().build(*shapes, **named)
        self._gate = keras.layers.Dense(1, "sigmoid", name="gate", dtype=self.dtype_policy)
        self._gate.build((None, None, self.num_features))

    def call(
        self,
        query: Any,
        value: Any = None,
        key: Any = None,
        query_mask: Any = None,
        segment_ids: Any = None,
        training: bool | None = None,
        use_causal_mask: bool = False,
        mask: Any = None,
        **others: Any,
    ) -> Any:
        if any(x is not None and x is not False for x in others.values()):
            raise ValueError(f"`{type(self).__name__}` takes no other arguments. Received: {[*others]}.")
        given = {"query_mask": query_mask, "segment_ids": segment_ids, "mask": mask}
        output = super().call(query, value, key, training=training, use_causal_mask=use_causal_mask, **given)
        return self._gate(query) * output


@keras.saving.register_keras_serializable(package="quality")
class ShiftedKeys(RoutingAttention):
    """Routing attention whose key j is computed from token j - 1, so that a match gives the value after the token."""

    def keys_of(self, x: Any) -> Any:
        """Return the inputs of the key projection, (B, T, D)."""
        return ops.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]

    def project(self, query: Any, value: Any = None, key: Any = None) -> Any:
        return super().project(query, query, self.keys_of(query))


@keras.saving.register_keras_serializable(package="quality")
class ConvolvedKeys(ShiftedKeys):
    """Routing attention with keys from a learned channelwise sum of a token and the three before it.

    Initially, keys use only the token itself.
    """

    def build(self, *shapes: Any, **named: Any) -> None:
        super().build(*shapes, **named)
        self._taps = self.add_weight(name="taps", shape=(4, self.num_features), initializer="zeros")

    def keys_of(self, x: Any) -> Any:
        shifted = [ops.pad(x, ((0, 0), (count, 0), (0, 0)))[:, : ops.shape(x)[1]] for count in range(4)]
        return x + sum(ops.cast(self._taps[count], x.dtype) * own for count, own in enumerate(shifted))


class CentroidsByStep(Centroids):
    """Centroids with another initial phase: initialization from the first batch, or faster moving averages.

    Args:
        *args: arguments of `Centroids`.
        start: "data" for initialization with tokens of the first batch. "fast" for a decay of (1 + n) / (10 + n) in
            step n, up to `ema_decay`.
        **kwargs: arguments of `Centroids`.
    """

    def __init__(self, *args: Any, start: str, **kwargs: Any) -> None:
        self.start = start
        super().__init__(*args, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        super().build()
        self.steps = self.add_weight(name="steps", shape=(), dtype="int32", initializer="zeros", trainable=False)

    def learn(self, sides: Sequence[Any]) -> Any:
        loss = super().learn(sides)
        if self.start == "data":
            tokens, mask, _ = sides[0]

            def drawn():
                first = kmeans.init_state_from_data(tokens, self.num_clusters, self.seed, mask)
                return [ops.cast(value, now.dtype) for value, now in zip(first, self.state, strict=True)]

            self.set_state(kmeans.State(*ops.cond(self.steps == 0, drawn, lambda: list(self.state))))
        self.steps.assign_add(1)
        return loss

    def advance(self, seen: Sequence[Any]) -> None:
        slowest = self.ema_decay
        if self.start == "fast":
            done = ops.cast(self.steps, "float32")
            self.ema_decay = ops.minimum(slowest, (1 + done) / (10 + done))
        super().advance(seen)
        self.ema_decay = slowest


@keras.saving.register_keras_serializable(package="quality")
class Started(RoutingAttention):
    """Routing attention with `CentroidsByStep`."""

    def __init__(self, *args: Any, start: str = "data", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start = start

    def _make_centroids(self) -> Centroids:
        sizes = self.num_heads, self.num_clusters, self.key_dim
        settings = self.ema_decay, self.revive_after, self.seed, self.commitment_loss
        return CentroidsByStep(*sizes, *settings, start=self.start, name="clusters", dtype=self.dtype_policy)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "start": self.start}
