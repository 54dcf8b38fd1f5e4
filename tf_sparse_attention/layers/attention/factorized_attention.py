"""How the heads of strided and fixed attention divide two patterns among them (Child et al. 2019)."""

from collections.abc import Sequence

from tf_sparse_attention import checks
from tf_sparse_attention.patterns.heads import Heads, InTurn
from tf_sparse_attention.patterns.pattern import Pattern, Union

HEADS = ("split", "merged", "interleaved")


def check_heads(num_heads: int, heads: str, layer_index: int | None) -> None:
    """Raises a `ValueError` for a wrong `heads`, one head to be split, and "interleaved" without `layer_index`."""
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
    """Returns how many heads see the far part; of interleaved layers all, so that only their number differs."""
    return num_heads // 2 if heads == "split" else num_heads


def divide_heads(num_heads: int, heads: str, layer_index: int | None, near: Pattern, far: Sequence[Pattern]) -> Pattern:
    """Returns the pattern of all heads.

    Args:
        num_heads: N.
        heads: "split": the first half of the heads (of an odd number the larger half) has the near pattern, the others
            the far one (equation 8). "merged": every head has the union of both (equation 7). "interleaved": all heads
            have one of them, the near one in layers of an even `layer_index` (equation 6).
        layer_index: number of the layer, for "interleaved".
        near: pattern.
        far: list of the patterns that heads take in turn.
    """
    if layer_index is not None:  # "interleaved"
        return near if layer_index % 2 == 0 else in_turn(far)
    if heads == "merged":
        return in_turn([Union((near, pattern)) for pattern in far])
    own = num_far_heads(num_heads, heads)
    return Heads(((num_heads - own, near), (own, in_turn(far))))


def in_turn(patterns: Sequence[Pattern]) -> Pattern:
    """Returns the pattern of heads that take turns with some patterns, the pattern itself if it is one."""
    return patterns[0] if len(patterns) == 1 else InTurn(tuple(patterns))
