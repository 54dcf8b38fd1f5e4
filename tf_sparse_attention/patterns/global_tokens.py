"""Global tokens, which a call marks: every query sees them, and they see every key."""

import dataclasses

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.arrangement import Numbers
from tf_sparse_attention.ops.global_tokens import GlobalGrid, GlobalRows, GlobalTokens
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


@dataclasses.dataclass(frozen=True)
class Global(Pattern):
    """The tokens that a call marks as global, of which each counts as often as it says. O(T num_global).

    What is known of the tokens is an `ops.global_tokens.GlobalTokens`. Source: Longformer (Beltagy et al. 2020),
    BigBird (Zaheer et al. 2020).

    Args:
        num_global: M, global tokens that a row may have; of more, the first M are.
    """

    num_global: int
    in_span = False
    can_be_causal = False  # a global token depends on later tokens, and all tokens attend to it

    def __post_init__(self) -> None:
        checks.check_count("num_global", self.num_global)

    def visible(self, query: Place, key: Place) -> Tensor:
        return key.is_global == 1

    def arrange(self, call: Call, known: Known = None) -> GlobalGrid:
        return GlobalGrid(known)

    def describe(self, known: GlobalTokens) -> Numbers:
        return {}, {"is_global": ops.cast(known.marks, "int32")[:, None]}


@dataclasses.dataclass(frozen=True)
class FromGlobal(Pattern):
    """All keys, of the queries that are global tokens; other queries see nothing. O(T num_global).

    Args:
        num_global: M.
    """

    num_global: int
    in_span = False

    def visible(self, query: Place, key: Place) -> Tensor:
        return query.is_global == 1

    def arrange(self, call: Call, known: Known = None) -> GlobalRows:
        return GlobalRows(known)

    def describe(self, known: GlobalTokens) -> Numbers:
        return {"is_global": ops.cast(known.marks, "int32")[:, None]}, {}
