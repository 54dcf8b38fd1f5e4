"""What a rule says of some places."""

from typing import TYPE_CHECKING

from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor

if TYPE_CHECKING:
    from tf_sparse_attention.patterns.pattern import Pattern


def rule_conditions(pattern: "Pattern", query: Place, key: Place) -> tuple[Tensor, ...]:
    """Returns what `visible` of a pattern says of some places, a tuple of conditions all of which must hold."""
    seen = pattern.visible(query, key)
    if seen is None:
        raise ValueError(f"`visible` of {type(pattern).__name__} must return a condition, or several. Received: None.")
    return seen if isinstance(seen, tuple) else (seen,)
