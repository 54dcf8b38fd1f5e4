"""The projections around attention: of tokens to heads, and of attended heads to the output."""

import functools

import keras

from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.pattern_heads import PatternHeads, ProjectedHeads
from tf_sparse_attention.layers.parts import head_parts, projections
from tf_sparse_attention.ops import positions
from tf_sparse_attention.types import Shape, Tensor


class HeadProjections(PatternHeads):
    """Heads that an attention layer projects its inputs to, with what `HeadSettings` adds to them."""

    def copy_projections(self, attention: keras.layers.Layer, heads: slice = slice(None)) -> None:
        """Takes over the projections of a built attention of Keras, also one with shared keys, or of this library.

        Args:
            attention: `keras.layers.MultiHeadAttention`, `keras.layers.GroupQueryAttention`, or a layer with such
                sublayers: `query`, `key`, `value`, `attention_output` and perhaps `gate`.
            heads: slice of the heads of `attention` that are those of this layer. Default: all.

        Raises:
            ValueError: if the layer is not built, or a projection is missing or has other shapes.
        """
        projections.copy(attention, self, heads)

    @property
    def query_dense(self) -> keras.layers.EinsumDense:
        """The projection of the query, as in Keras."""
        return self._query

    @property
    def key_dense(self) -> keras.layers.EinsumDense | None:
        """The projection of the key, as in Keras. None where queries serve as keys."""
        return self._key

    @property
    def value_dense(self) -> keras.layers.EinsumDense:
        """The projection of the value, as in Keras."""
        return self._value

    @property
    def output_dense(self) -> keras.layers.EinsumDense:
        """The projection of the attended heads to the output, as in Keras."""
        return self._attention_output

    # Files of weights name a layer by its attribute. These are the names in files of `GroupQueryAttention`; the
    # public ones, and `_gate_dense`, are those in files of `MultiHeadAttention`.
    _query_dense, _key_dense, _value_dense, _output_dense = query_dense, key_dense, value_dense, output_dense

    @property
    def num_features(self) -> int:
        """D, the channels of the query that the layer was built for."""
        return self._query.kernel.shape[0]

    @property
    def has_relative_values(self) -> bool:
        """Whether relative positions have a table for the values."""
        return True

    def build_projections(self, query_shape: Shape, value_shape: Shape, key_shape: Shape) -> None:
        """Makes the weights for inputs of some shapes (B, T, D)."""
        make = functools.partial(projections.input_projection, self, use_bias=self.use_bias, objects=self._objects)
        self._query = make("query", query_shape, self.num_heads, self.key_dim)
        self._key = None if self.share_qk else make("key", key_shape, self.num_key_heads, self.key_dim)
        self._gate_dense = head_parts.make_gate(self, query_shape, self._objects)  # before the value, as in Keras
        self._value = make("value", value_shape, self.num_key_heads, self.value_dim)
        self._attention_output = projections.output_projection(
            self,
            "attention_output",
            (*query_shape[:-1], self.num_heads, self.value_dim),
            self._output_sizes or (query_shape[-1],),  # type: ignore[arg-type]  # features are known
            self.use_output_bias,
            self._objects,
        )
        self.head_norms = head_parts.make_norms(self)
        self.head_sinks = head_parts.make_sinks(self)
        if self.position == "relative":
            num_rows = 2 * (self.max_distance or max(self.reach, 1)) + 1
            self._relative_key, self._relative_value = projections.relative_tables(self, num_rows, self._objects)

    @property
    def position_encoding(self) -> positions.NoPosition:
        """The position object that `ops` functions take."""
        tables = (self._relative_key, self._relative_value) if self.position == "relative" else (None, None)
        return positions.make_position(self.position, self.num_heads, *tables, self.head_settings.rotary)

    def project(self, query: Tensor, value: Tensor | None = None, key: Tensor | None = None) -> ProjectedHeads:
        """Returns the heads of queries, keys (None where queries serve) and values, heads first."""
        attention_checks.check_sources(self, value, key)
        value = query if value is None else value
        keys = None if self.share_qk else self.project_heads(self._key, value if key is None else key)
        return self.project_heads(self._query, query), keys, projections.heads_of(self._value, value)

    def join_heads(self, query: Tensor, heads: Tensor) -> Tensor:
        """Returns the output (B, T, D) of the attended heads (B, N, T, Hv) of a query (B, T, D)."""
        return projections.join_heads(self._attention_output, head_parts.gated(self._gate_dense, query, heads))

    def project_heads(self, projection: keras.layers.Layer, x: Tensor, norm: str | None = None) -> Tensor:
        """Returns the heads of queries or keys (B, N, T, H) that a projection makes of tokens.

        Args:
            projection: layer of the heads.
            x: tokens (B, T, D).
            norm: "query" or "key", whose norm serves. Default: None, that of the projection's name.
        """
        heads = projections.heads_of(projection, x)
        norm = norm or projection.name
        return self.head_norms[norm](heads) if norm in self.head_norms else heads
