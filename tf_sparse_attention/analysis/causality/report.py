"""Results of the causality audit: report, leaks and error."""

import dataclasses
import json

_HOW = {
    "gradient": "with a gradient of {:.2g}",
    "perturbation": "with a change of {:.2g} of its scale",
    "prefix": "with a change of {:.2g} of its scale if the sequence ends there",
}


@dataclasses.dataclass(frozen=True)
class Leak:
    """Leak of later inputs into an earlier output, found by one check.

    Attributes:
        check: "gradient", "perturbation" or "prefix".
        cut: first position of later inputs.
        position: first output position before `cut` that depends on inputs from `cut` on.
        size: largest gradient with respect to later inputs, or largest change of an output before `cut` in units of
            the output's scale.
        layer: path of the first layer, inner layers first, whose outputs before `cut` change although its inputs there
            do not; None if unknown.
        distance: distance from `position` to the farthest later input that its output depends on.
        heads: indices of the layer's heads whose outputs change. Known for attention layers of this library,
            `keras.layers.MultiHeadAttention` and `GroupQueryAttention`; empty for other layers.
    """

    check: str
    cut: int
    position: int
    size: float
    layer: str | None
    distance: int | None = None
    heads: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = f", in layer {self.layer!r}" if self.layer else ""
        where += f", heads {', '.join(map(str, self.heads))}" if self.heads else ""
        far = f", up to {self.distance} positions later" if self.distance else ""
        return (
            f"the output at position {self.position} depends on inputs at positions >= {self.cut}{far}, "
            f"{_HOW[self.check].format(self.size)} ({self.check} check{where})"
        )


@dataclasses.dataclass(frozen=True)
class CausalityReport:
    """Results of the causality audit.

    Attributes:
        sequence_length: number of positions of the inputs.
        cuts: tried first positions of later inputs, ascending.
        max_gradient: largest gradient of an earlier output with respect to a later input; None without this check.
        max_change: largest change of an earlier output for other later inputs, in units of the output's scale (its
            largest magnitude).
        atol: largest `max_change` that passes.
        embeddings: names of the embedding layers whose outputs have gradients, in call order; empty for vectors.
        leaks: the `Leak` of each failed check.
        powerless: checks that could not fail, because no output depends on an input.
        checks: names of the performed checks.
        skipped_cuts: cuts that the check "prefix" skipped, because the target does not accept such short sequences.
    """

    sequence_length: int
    cuts: tuple[int, ...]
    max_gradient: float | None
    max_change: float
    atol: float
    embeddings: tuple[str, ...]
    leaks: tuple[Leak, ...]
    powerless: tuple[str, ...]
    checks: tuple[str, ...] = ()
    skipped_cuts: tuple[int, ...] = ()

    @property
    def is_causal(self) -> bool:
        """Whether all checks passed, and all of them could have failed."""
        return not self.leaks and not self.powerless

    def to_json(self) -> str:
        """Return `is_causal` and all attributes as one line of JSON; infinite numbers are the string "inf"."""
        return json.dumps(_finite({"is_causal": self.is_causal, **dataclasses.asdict(self)}), allow_nan=False)

    def to_text(self) -> str:
        """Return the results, the leaks and the verdict as lines of text."""
        gradient = "not taken" if self.max_gradient is None else f"{self.max_gradient:.3g} (0 passes)"
        lines = [
            f"{self.sequence_length} positions, cuts at {', '.join(map(str, self.cuts))}",
            f"largest gradient from later inputs: {gradient}",
            f"largest change from later inputs:   {self.max_change:.3g} (up to {self.atol:.0e} passes as rounding)",
            *(f"leak: {leak}" for leak in self.leaks),
            *(f"inconclusive {check} check: no output depends on an input" for check in self.powerless),
            *self._skipped(),
            "causal" if self.is_causal else "NOT CAUSAL" if self.leaks else "inconclusive",
        ]
        return "\n".join(lines)

    def _skipped(self):
        """Return a list with one line on skipped cuts, or an empty list."""
        if not self.skipped_cuts:
            return []
        cuts = ", ".join(map(str, self.skipped_cuts))
        return [f"skipped cuts at {cuts}: the target does not accept such short sequences"]


class CausalityError(AssertionError):
    """Error for a layer or model that leaks later tokens; `report` is the `CausalityReport`."""

    def __init__(self, report: CausalityReport) -> None:
        super().__init__(
            "`target` must be causal, but " + "; ".join(map(str, report.leaks)) + ". Call attention layers with "
            "`use_causal_mask=True`."
        )
        self.report = report


def _finite(value):
    """Replace infinite numbers by the string "inf", at any depth."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return "inf" if value == float("inf") else value
