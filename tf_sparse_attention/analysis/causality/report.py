"""What the causality audit finds: figures, leaks, and the error that carries them."""

import dataclasses
import json

_HOW = {
    "gradient": "with a gradient of {:.2g}",
    "perturbation": "changing by {:.2g} of its scale",
    "prefix": "changing by {:.2g} of its scale where the sequence ends there",
}


@dataclasses.dataclass(frozen=True)
class Leak:
    """A look into the future that one check found.

    Attributes:
        check: "gradient", "perturbation" or "prefix".
        cut: position from which on inputs count as later.
        position: first output position before `cut` that depends on inputs from `cut` on.
        size: largest gradient with respect to those inputs, or largest change of an output before `cut` in units of
            the output's scale.
        layer: path of the first layer, inner ones first, whose outputs before `cut` change though its inputs there do
            not; None where none is seen to.
        distance: how many positions ahead of `position` the farthest input lies that the output there depends on.
        heads: heads of that layer whose outputs change, of layers that show them: attention layers of this library,
            `keras.layers.MultiHeadAttention` and `GroupQueryAttention`; empty for others.
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
        where += f" in its heads {', '.join(map(str, self.heads))}" if self.heads else ""
        far = f", up to {self.distance} ahead" if self.distance else ""
        return (
            f"the output at position {self.position} depends on inputs at positions >= {self.cut}{far}, "
            f"{_HOW[self.check].format(self.size)} ({self.check} check{where})"
        )


@dataclasses.dataclass(frozen=True)
class CausalityReport:
    """What the audit measured.

    Attributes:
        sequence_length: positions of the inputs.
        cuts: the positions tried as the beginning of the future, ascending.
        max_gradient: largest gradient of an earlier output with respect to a later input, or None if not taken.
        max_change: largest change of an earlier output when later inputs were replaced, in units of the output's
            scale (its largest magnitude).
        atol: largest `max_change` that passes.
        embeddings: names of the layers at whose outputs gradients were taken, in call order; empty for vectors.
        leaks: the `Leak` of each check that failed.
        powerless: the checks that no leak could have failed, because the outputs depend on no input at all.
        checks: the checks that were made.
        skipped_cuts: cuts that the check "prefix" left out, since the target does not take so few positions.
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
        """Whether every check was passed and could have been failed."""
        return not self.leaks and not self.powerless

    def to_json(self) -> str:
        """Return `is_causal` and the attributes as JSON on one line, a leak as an object; figures that are infinite
        as the text "inf"."""
        return json.dumps(_finite({"is_causal": self.is_causal, **dataclasses.asdict(self)}), allow_nan=False)

    def to_text(self) -> str:
        """Return the figures, the leaks and the verdict as lines of text."""
        gradient = "not taken" if self.max_gradient is None else f"{self.max_gradient:.3g} (0 passes)"
        lines = [
            f"{self.sequence_length} positions, later ones from {', '.join(map(str, self.cuts))} on",
            f"largest gradient by a later input: {gradient}",
            f"largest change by later inputs:    {self.max_change:.3g} ({self.atol:.0e} passes, which is rounding)",
            *(f"looks ahead: {leak}" for leak in self.leaks),
            *(f"nothing was checked by the {check} check: no output depends on an input" for check in self.powerless),
            *self._skipped(),
            "causal" if self.is_causal else "NOT CAUSAL" if self.leaks else "nothing can be concluded",
        ]
        return "\n".join(lines)

    def _skipped(self):
        """Return a line of the cuts that were left out, if there are any."""
        if not self.skipped_cuts:
            return []
        cuts = ", ".join(map(str, self.skipped_cuts))
        return [f"not cut off at {cuts}, since the target does not take so few positions"]


class CausalityError(AssertionError):
    """Raised for a layer or model that looks into the future; `report` holds the `CausalityReport`."""

    def __init__(self, report: CausalityReport) -> None:
        super().__init__(
            "`target` must not look ahead, but " + "; ".join(map(str, report.leaks)) + ". Attention layers are causal "
            "where they are called with `use_causal_mask=True`."
        )
        self.report = report


def _finite(value):
    """Exchanges what JSON cannot hold, at any depth."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return "inf" if value == float("inf") else value
