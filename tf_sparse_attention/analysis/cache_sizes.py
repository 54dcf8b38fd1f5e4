"""Size of each layer's KV cache, without allocating it."""

import dataclasses

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.analysis.attention_layers import attention_layers
from tf_sparse_attention.layers.attention.attention_layer import check_has_cache
from tf_sparse_attention.layers.parts.cache_tensors import cache_tensors, num_bytes


@dataclasses.dataclass(frozen=True)
class CacheSize:
    """Cache size of one attention layer.

    Attributes:
        name: path of the layer.
        kind: class name of the layer.
        num_slots: number of cached tokens per row, averaged over heads.
        num_bytes: bytes of all cache tensors, for all rows.
        bytes_per_token: `num_bytes` per row and token of context.
    """

    name: str
    kind: str
    num_slots: float
    num_bytes: int
    bytes_per_token: float


@dataclasses.dataclass(frozen=True)
class CacheSizes:
    """Cache sizes of all attention layers. `str(sizes)` is a Markdown table.

    Attributes:
        rows: list of `CacheSize`.
        max_length: number of tokens of context.
        batch_size: number of rows.
    """

    rows: list[CacheSize]
    max_length: int
    batch_size: int

    @property
    def num_bytes(self) -> int:
        """Total bytes of all caches."""
        return sum(row.num_bytes for row in self.rows)

    def table(self) -> str:
        """Return a Markdown table with a row per layer and a row of totals."""
        lines = [f"| layer | attention | slots of {self.max_length:,} | bytes | bytes per token |", "|---" * 5 + "|"]
        for row in self.rows:
            sizes = f"{_format_number(row.num_slots)} | {row.num_bytes:,} | {_format_number(row.bytes_per_token)}"
            lines.append(f"| {row.name} | {row.kind} | {sizes} |")
        per_token = self.num_bytes / (self.batch_size * self.max_length)
        lines.append(f"| all | | | {self.num_bytes:,} | {_format_number(per_token)} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def cache_sizes(target: keras.layers.Layer, max_length: int, batch_size: int = 1) -> CacheSizes:
    """Return the KV-cache sizes of a model or layer, without allocating caches.

    A slot holds the key and value of one token. The number of slots is constant for patterns that see a fixed number of
    earlier tokens; full attention has `max_length` slots.

    Args:
        target: Keras model or layer with attention layers of this library, built.
        max_length: number of tokens of context, see `init_cache`.
        batch_size: number of rows. Default: 1.

    Returns:
        A `CacheSizes`; `print` shows the table.

    Raises:
        ValueError: If there is no attention layer, or if a layer is not built or cannot decode with a cache.

    Example:
        >>> part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 64}
        >>> model = LanguageModel(Backbone(258, 1, 16, [part], intermediate_dim=64, name="text"))
        >>> print(cache_sizes(model, max_length=8192))
        | layer | attention | slots of 8,192 | bytes | bytes per token |
        |---|---|---|---|---|
        | text/block_0/attention/local_0 | LocalAttention | 64 | 8,452 | 1.03 |
        | all | | | 8,452 | 1.03 |
    """
    checks.check_count("max_length", max_length)
    checks.check_count("batch_size", batch_size)
    if hasattr(target, "cache_unsupported_reason"):
        check_has_cache(target)
    found = attention_layers(target)
    if not found:
        raise ValueError(f"`target` must have attention layers of this library. Received: {target.name} without any.")
    return CacheSizes([_size(layer, max_length, batch_size) for layer in found], max_length, batch_size)


def _size(layer, max_length, batch_size):
    """Return the `CacheSize` of one attention layer."""
    tensors = cache_tensors(layer, batch_size, max_length)
    group_size = layer.num_pattern_heads // layer.num_key_heads
    keys = [tensor.shape for name, tensor in tensors if name == "key"]
    num_slots = sum(heads * group_size * slots / layer.num_heads for _, heads, slots, _ in keys)
    name, total = layer.path or layer.name, num_bytes(tensors)
    return CacheSize(name, type(layer).__name__, num_slots, total, total / (batch_size * max_length))


def _format_number(number):
    return f"{number:,.2f}".rstrip("0").rstrip(".")
