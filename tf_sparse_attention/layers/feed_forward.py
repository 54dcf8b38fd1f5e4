"""Feed-forward layers of Transformer blocks."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.all_attention import PersistentVectors
from tf_sparse_attention.layers.data_parallel import SeedGenerator
from tf_sparse_attention.layers.parts.adaptation import AdaptableMixin, sublayer_policy
from tf_sparse_attention.layers.parts.projections import clone_initializer
from tf_sparse_attention.ops.attend import Dropout, attend_persistent
from tf_sparse_attention.ops.shapes import merge_heads, unmerge_heads
from tf_sparse_attention.types import Config, Initializer, Shape, Tensor

ACTIVATIONS = ("relu", "gelu", "exact_gelu", "quick_gelu", "geglu", "swiglu")
GATED = ("geglu", "swiglu")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class FeedForward(AdaptableMixin, keras.layers.Layer):
    """Feed-forward layer of a Transformer block: two dense layers with an activation, per position.

    The layer computes f(x W_inner + b) W_output + b, with an activation f:

    - "relu", as in the original Transformer;
    - "gelu": GELU with the tanh approximation, as in the published Routing Transformer;
    - "exact_gelu": GELU without approximation, as in BERT;
    - "quick_gelu": x sigmoid(1.702 x), as in the Sparse Transformer (Child et al. 2019, section 5.2).

    "geglu" and "swiglu" (Shazeer 2020) compute (f(x W_gate) * (x W_inner)) W_output, with approximate GELU or SiLU.

    Args:
        intermediate_dim: number of channels between the dense layers.
        activation: "relu", "gelu", "exact_gelu", "quick_gelu", "geglu" or "swiglu". Default "gelu".
        dropout: dropout rate after the activation, in [0, 1). Default 0.
        use_bias: whether the dense layers have biases. None: False for "geglu" and "swiglu", as published, otherwise
            True.
        kernel_initializer: initializer of the kernels. Default "glorot_uniform".
        seed: integer seed of the dropout.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (B, T, D).
        training: whether to apply dropout.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: if an argument is invalid.

    Example:
        >>> tuple(FeedForward(intermediate_dim=256, activation="geglu")(keras.random.normal((2, 10, 64))).shape)
        (2, 10, 64)
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: str = "gelu",
        dropout: float = 0.0,
        use_bias: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        checks.check_count("intermediate_dim", intermediate_dim)
        checks.check_choice("activation", activation, ACTIVATIONS)
        checks.check_rate("dropout", dropout)
        if use_bias is not None:
            checks.check_switch("use_bias", use_bias)
        checks.check_optional_count("seed", seed, minimum=0)
        self.supports_masking = True
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.dropout = dropout
        self.use_bias = activation not in GATED if use_bias is None else use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self._seeds = SeedGenerator(seed) if dropout > 0 else None

    def build(self, inputs_shape: Shape) -> None:
        is_gated = self.activation in GATED
        self._gate = self._dense("gate", self.intermediate_dim, inputs_shape) if is_gated else None
        self._inner = self._dense("inner", self.intermediate_dim, inputs_shape)
        self._output_dense = self._dense("output", inputs_shape[-1], (*inputs_shape[:-1], self.intermediate_dim))

    def _dense(self, name, units, input_shape):
        layer = keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            dtype=sublayer_policy(self, name),
            name=name,
        )
        layer.build(input_shape)
        return layer

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        checks.check_dense("inputs", inputs)
        x = self._inner(inputs)
        if self._gate is not None:
            gate = self._gate(inputs)
            x = (ops.silu(gate) if self.activation == "swiglu" else ops.gelu(gate, approximate=True)) * x
        elif self.activation == "quick_gelu":
            x = x * ops.sigmoid(1.702 * x)
        else:
            x = ops.relu(x) if self.activation == "relu" else ops.gelu(x, approximate=self.activation != "exact_gelu")
        if training and self._seeds is not None:
            x = keras.random.dropout(x, self.dropout, seed=self._seeds)
        return self._output_dense(x)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> Config:
        names = ("intermediate_dim", "activation", "dropout", "use_bias", "seed")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SoftmaxFeedForward(keras.layers.Layer):
    """Feed-forward layer with a softmax instead of the activation: softmax(x K) V, in O(T M D).

    Each position attends to `num_persistent` persistent vectors. This is the variant "FF-attn" of Sukhbaatar et al.
    2019, "Augmenting self-attention with persistent memory", section 5.3. `AllAttention` uses one softmax for these
    vectors and its window. The layer can replace `FeedForward` in a `TransformerBlock`.

    Args:
        num_persistent: M, number of learned keys and values.
        num_heads: number of heads, each with separate vectors. Must divide the number of channels. Default 1.
        dropout: dropout rate of the attention weights, in [0, 1). Default 0.
        seed: integer seed of the initial vectors and the dropout.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (B, T, D).
        training: whether to apply dropout.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: if an argument is invalid, or if `num_heads` does not divide the number of channels.

    Example:
        >>> tuple(SoftmaxFeedForward(num_persistent=256)(keras.random.normal((2, 10, 64))).shape)
        (2, 10, 64)
    """

    def __init__(
        self, num_persistent: int, num_heads: int = 1, dropout: float = 0.0, seed: int | None = None, **kwargs: Any
    ) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        checks.check_count("num_persistent", num_persistent)
        checks.check_count("num_heads", num_heads)
        checks.check_rate("dropout", dropout)
        checks.check_optional_count("seed", seed, minimum=0)
        self.supports_masking = True
        self.num_persistent = num_persistent
        self.num_heads = num_heads
        self.dropout = dropout
        self.seed = seed
        self._seeds = SeedGenerator(seed) if dropout > 0 else None

    def build(self, inputs_shape: Shape) -> None:
        size: Any = inputs_shape[-1]  # never None
        if size % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the number of features. "
                f"Received: num_heads={self.num_heads}, inputs of shape {tuple(inputs_shape)}."
            )
        size //= self.num_heads
        self._vectors = PersistentVectors(
            self.num_heads, self.num_persistent, size, size, seed=self.seed, dtype=self.dtype_policy, name="vectors"
        )
        self._scale = size**-0.5

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        dropout = Dropout.for_call(self.dropout, self._seeds, training)
        query = unmerge_heads(inputs[:, None], self.num_heads) * self._scale
        return merge_heads(attend_persistent(query, self._vectors.read(), dropout))[:, 0]

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> Config:
        names = ("num_persistent", "num_heads", "dropout", "seed")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
