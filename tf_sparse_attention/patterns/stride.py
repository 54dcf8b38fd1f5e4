"""Positions a whole number of strides apart."""

import dataclasses

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.ops.phases import PhaseGrid
from tf_sparse_attention.patterns.caches import PhaseRings
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Stride(Pattern):
    """Every `stride`-th position, counted from the query: (i - j) mod stride = 0. O(T^2 / stride).

    Source: Child et al. 2019, section 4.3.

    Args:
        stride: l, about the square root of the length, or the length of a row of an image.

    Raises:
        ValueError: for a number that is no positive integer.
    """

    stride: int
    period = 1

    def __post_init__(self) -> None:
        checks.check_count("stride", self.stride)

    @property
    def reach(self) -> int:
        return self.stride

    def visible(self, query: Place, key: Place) -> Tensor:
        return (query.position - key.position) % self.stride == 0

    def arrange(self, call: Call, known: Known = None) -> PhaseGrid:
        return _Exact(call.query_length, call.key_length, self.stride)

    def cache(self) -> PhaseRings:
        return PhaseRings(self.stride)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Dilated(Pattern):
    """The `window` nearest positions a whole number of `dilation`s away, on a side and counting the query. O(T window).

    i - j is a multiple of d with |i - j| < window d, and in a causal call j <= i. Source: WaveNet's dilation (van den
    Oord et al. 2016) as attention, Longformer (Beltagy et al. 2020, section 3.1).

    Args:
        window: positions on a side, counting the query itself.
        dilation: d, the distance from one to the next.

    Raises:
        ValueError: for a number that is no positive integer.
    """

    window: int
    dilation: int
    period = 1

    def __post_init__(self) -> None:
        checks.check_count("window", self.window)
        checks.check_count("dilation", self.dilation)

    @property
    def reach(self) -> int:
        return (self.window - 1) * self.dilation

    def visible(self, query: Place, key: Place) -> tuple[Tensor, ...]:
        apart = query.position - key.position
        return apart % self.dilation == 0, abs(apart) < self.window * self.dilation

    def arrange(self, call: Call, known: Known = None) -> PhaseGrid:
        return PhaseGrid.of_window(call.query_length, call.key_length, self.dilation, self.window, call.causal)

    def cache(self) -> PhaseRings:
        return PhaseRings(self.dilation, self.window)


class _Exact(PhaseGrid):
    """Phases whole: all that is side by side is a whole number of strides apart."""

    is_exact = True
