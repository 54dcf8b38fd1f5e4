"""Suggestion of initial attention heads for a sequence length, with their cost."""

import dataclasses
import math
from typing import Any

from tf_sparse_attention import checks
from tf_sparse_attention.analysis.cost import cost
from tf_sparse_attention.layers import LocalAttention
from tf_sparse_attention.models.blocks import make_attention, parse_part

SMALLEST = 64  # keys per query; smaller blocks are hardly faster


@dataclasses.dataclass(frozen=True)
class Choice:
    """Sizes of local and routed heads in one layer, with their cost.

    Attributes:
        window: number of positions that a query of a local head sees.
        cluster_size: number of keys that a query of a routed head sees in its cluster.
        num_clusters: number of clusters per routed head.
        num_operations: operations in the matrix products of one layer over one sequence, see `cost`.
        share_of_dense: `num_operations` as a fraction of dense attention.
    """

    window: int
    cluster_size: int
    num_clusters: int
    num_operations: int
    share_of_dense: float


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """Suggested attention. `str(suggestion)` is a table of choices, the suggested parts and a hint on their placement.

    Attributes:
        attention: list of dictionaries, the argument `attention` of `tsa.models.Backbone`.
        choices: list of `Choice`: the sizes in `attention`, then half and twice these sizes.
        sequence_length: T, number of tokens.
    """

    attention: list[dict[str, Any]]
    choices: list[Choice]
    sequence_length: int

    def table(self) -> str:
        """Return a Markdown table with a row per choice, the proposed choice first."""
        name = f"million operations at {self.sequence_length:,}"
        lines = [f"| | window | cluster_size | num_clusters | {name} | of dense |", "|---" * 6 + "|"]
        for each, kind in zip(self.choices, ("proposed", "smaller", "larger"), strict=False):
            figures = f"{each.num_operations / 1e6:,.0f} | {each.share_of_dense:.2f}"
            lines.append(f"| {kind} | {each.window} | {each.cluster_size} | {each.num_clusters} | {figures} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        parts = ["", "Proposed `attention` of a Backbone:", *map(str, self.attention)]
        if any(part.get("use_successor_values") for part in self.attention):
            parts.append(
                "Routed heads help most in the last layers: set `num_local_layers` for local heads in earlier ones."
            )
        return "\n".join([self.table(), *parts])


def suggest(
    sequence_length: int, num_heads: int, key_dim: int = 64, hidden_dim: int | None = None, causal: bool = True
) -> Suggestion:
    """Suggest initial heads for a layer: some local heads and some routed heads.

    The window is the smallest power of two that is at least 2 sqrt(T) and at least 64. The number of clusters is
    T / window, so clusters of equal size have as many tokens as the window. In a causal model, a quarter of the heads
    are local. Routed heads use successor values (key j has the value of token j + 1) and a `cluster_size` of two
    windows, the best settings on Python source code (docs/quality.md). Routed heads help most in the last layers, after
    layers with only local heads (`num_local_layers` of `AttentionOptions`). In a model that is not causal, half of the
    heads are local, and `cluster_size` equals the window, as in the published models (16 clusters of 512 at 8,192
    tokens; Roy et al. 2021). After some training, `tsa.analysis.health` reports whether clusters are well used.

    Args:
        sequence_length: T, number of tokens.
        num_heads: number of heads per layer, at least 2.
        key_dim: size of a head. Default: 64.
        hidden_dim: size of the layer's inputs. None: `num_heads` times `key_dim`.
        causal: whether later tokens are masked. Default: True.

    Returns:
        A `Suggestion`; `print` shows it.

    Raises:
        ValueError: If an argument is invalid, or the backend is not TensorFlow or JAX.

    Example:
        >>> print(suggest(sequence_length=8192, num_heads=8).table())  # doctest: +ELLIPSIS
        | | window | cluster_size | num_clusters | million operations at 8,192 | of dense |
        |---|---|---|---|---|---|
        | proposed | 256 | 512 | 32 | ...
    """
    checks.check_count("sequence_length", sequence_length)
    checks.check_count("num_heads", num_heads, minimum=2)
    checks.check_count("key_dim", key_dim)
    checks.check_optional_count("hidden_dim", hidden_dim)
    checks.check_switch("causal", causal)
    size = max(SMALLEST, 2 ** math.ceil(math.log2(2 * math.sqrt(sequence_length))))
    size = min(size, sequence_length)
    features = num_heads * key_dim if hidden_dim is None else hidden_dim
    dense = _operations(
        LocalAttention(num_heads, key_dim, block_size=sequence_length), features, sequence_length, causal
    )
    choices = []
    for own in dict.fromkeys((size, max(size // 2, 1), min(2 * size, sequence_length))):
        parts = _parts(sequence_length, num_heads, key_dim, own, causal)
        layer = make_attention(
            [parse_part(part) for part in parts], index=0, seed=None, dtype=None
        )  # as in a `Backbone`
        operations = _operations(layer, features, sequence_length, causal)
        routed = parts[1]
        choices.append(Choice(own, routed["cluster_size"], routed["num_clusters"], operations, operations / dense))
    return Suggestion(_parts(sequence_length, num_heads, key_dim, size, causal), choices, sequence_length)


def _parts(length, num_heads, key_dim, window, causal):
    """Return the parts of a layer in the format of `Backbone`."""
    num_local = max(num_heads // 4, 1) if causal else num_heads - num_heads // 2
    local = {"layer": "LocalAttention", "num_heads": num_local, "key_dim": key_dim, "window": window}
    local["position"] = "rotary" if key_dim % 2 == 0 else "relative"
    routed = {"layer": "RoutingAttention", "num_heads": num_heads - num_local, "key_dim": key_dim}
    routed |= {"num_clusters": max(round(length / window), 1)}
    if causal:
        return [local, {**routed, "cluster_size": min(2 * window, length), "use_successor_values": True}]
    return [local, {**routed, "cluster_size": window, "selection": "nearest"}]


def _operations(layer, features, length, causal):
    layer.build((None, None, features))
    return cost(layer, length, causal).num_operations
