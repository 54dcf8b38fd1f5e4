"""Division of two patterns among the heads of strided and fixed attention (Child et al. 2019)."""

from collections.abc import Sequence

from tf_sparse_attention import checks
from tf_sparse_attention.patterns.pattern import Pattern, Union
from tf_sparse_attention.patterns.per_head import Heads, InTurn

HEADS = ("split", "merged", "interleaved")


def check_heads(num_heads: int, heads: str, layer_index: int | None) -> None:
    """Raise a `ValueError` for an invalid `heads`, a single split head, or a missing or superfluous `layer_index`."""
    checks.check_choice("heads", heads, HEADS)
    checks.check_optional_count("layer_index", layer_index, minimum=0)
    if heads == "split" and num_heads == 1:
        raise ValueError(
            "`heads` must be 'merged' or 'interleaved' for a single head, which cannot be split. "
            f"Received: heads={heads!r}, num_heads={num_heads}."
        )
    if (heads == "interleaved") != (layer_index is not None):
        raise ValueError(
            "`layer_index` must be given where `heads` is 'interleaved', and only there. "
            f"Received: layer_index={layer_index}, heads={heads!r}."
        )


def num_far_heads(num_heads: int, heads: str) -> int:
    """Return the number of heads with the far pattern; all heads of interleaved layers."""
    return num_heads // 2 if heads == "split" else num_heads


def divide_heads(num_heads: int, heads: str, layer_index: int | None, near: Pattern, far: Sequence[Pattern]) -> Pattern:
    """Return the pattern of all heads.

    Args:
        num_heads: N.
        heads: "split": the first half of the heads, rounded up, has the near pattern, the others a far pattern
            (equation 8). "merged": every head has the union of both (equation 7). "interleaved": all heads of a layer
            have one of them, the near pattern if `layer_index` is even (equation 6).
        layer_index: index of the layer, for "interleaved".
        near: pattern.
        far: patterns that the heads take in turn.
    """
    if layer_index is not None:  # "interleaved"
        return near if layer_index % 2 == 0 else in_turn(far)
    if heads == "merged":
        return in_turn([Union((near, pattern)) for pattern in far])
    own = num_far_heads(num_heads, heads)
    return Heads(((num_heads - own, near), (own, in_turn(far))))


def in_turn(patterns: Sequence[Pattern]) -> Pattern:
    """Return the pattern of heads that take some patterns in turn."""
    return patterns[0] if len(patterns) == 1 else InTurn(tuple(patterns))
