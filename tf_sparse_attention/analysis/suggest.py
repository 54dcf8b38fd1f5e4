"""Which heads to begin with at a length, and what they cost."""

import dataclasses
import math
from typing import Any

from tf_sparse_attention import checks
from tf_sparse_attention.analysis.cost import cost
from tf_sparse_attention.layers import LocalAttention
from tf_sparse_attention.models.attention_parts import make_attention, parse_part

SMALLEST = 64  # keys that a query sees; blocks are hardly cheaper with fewer


@dataclasses.dataclass(frozen=True)
class Choice:
    """Local heads beside routed ones of one size, and what they cost.

    Attributes:
        window: positions that a local head sees.
        cluster_size: keys of its cluster that a routed head sees.
        num_clusters: of a routed head.
        num_operations: of the matrix products of one layer over one sequence, see `cost`.
        share_of_dense: the same as a share of dense attention's.
    """

    window: int
    cluster_size: int
    num_clusters: int
    num_operations: int
    share_of_dense: float


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """What to begin with; as text, the choices with their costs, the parts of the first, and where they belong.

    Attributes:
        attention: list of dictionaries, the argument `attention` of `tsa.models.Backbone`.
        choices: list of `Choice`: what `attention` has, then half and twice of it.
        sequence_length: T.
    """

    attention: list[dict[str, Any]]
    choices: list[Choice]
    sequence_length: int

    def table(self) -> str:
        """Return a Markdown table, a row a choice, the proposed one first."""
        name = f"million operations at {self.sequence_length:,}"
        lines = [f"| | window | cluster_size | num_clusters | {name} | of dense |", "|---" * 6 + "|"]
        for each, kind in zip(self.choices, ("proposed", "smaller", "larger"), strict=False):
            figures = f"{each.num_operations / 1e6:,.0f} | {each.share_of_dense:.2f}"
            lines.append(f"| {kind} | {each.window} | {each.cluster_size} | {each.num_clusters} | {figures} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        parts = ["", "The proposed one, as `attention` of a Backbone:", *map(str, self.attention)]
        if any(part.get("use_successor_values") for part in self.attention):
            parts.append(
                "Routed heads are worth most in the last layers: `num_local_layers` blocks before have local ones."
            )
        return "\n".join([self.table(), *parts])


def suggest(
    sequence_length: int, num_heads: int, key_dim: int = 64, hidden_dim: int | None = None, causal: bool = True
) -> Suggestion:
    """Return heads to begin with: some local ones, the others routed.

    A window is the power of two from 2 sqrt(T) on, at least 64. There are T / window clusters, so that equally large
    ones hold as many tokens as it. In a causal model one head of four is local, and routed heads have the values of
    successors and see up to twice a window of their cluster, as was best on Python's source (docs/quality.md). They are
    worth most in the last layers, after layers of local heads alone (`num_local_layers` of `AttentionOptions`). Where
    later tokens are seen one half is local and a cluster as large as a window, as in the published models (16 clusters
    of 512 at 8,192; Roy et al. 2021). `tsa.analysis.health` says after some training whether the clusters are used.

    Args:
        sequence_length: T, tokens.
        num_heads: of a layer.
        key_dim: size of a head. Default 64.
        hidden_dim: size of the inputs of a layer. None: `num_heads` times `key_dim`.
        causal: whether later tokens are hidden. Default True.

    Returns:
        A `Suggestion`; `print` shows it.

    Raises:
        ValueError: for a wrong argument, and on a backend other than TensorFlow and JAX.

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
        )  # as a `Backbone` does
        operations = _operations(layer, features, sequence_length, causal)
        routed = parts[1]
        choices.append(Choice(own, routed["cluster_size"], routed["num_clusters"], operations, operations / dense))
    return Suggestion(_parts(sequence_length, num_heads, key_dim, size, causal), choices, sequence_length)


def _parts(length, num_heads, key_dim, window, causal):
    """Return the parts of a layer as `Backbone` takes them."""
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
