"""What the causality audit finds: figures, leaks, and the error that carries them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Leak:
    """A look into the future that one check found.

    Attributes:
        check: "gradient" or "perturbation".
        cut: position from which on inputs count as later.
        position: first output position before `cut` that depends on inputs from `cut` on.
        size: largest gradient with respect to those inputs, or largest change of an output before `cut` in units of
            the output's scale.
        layer: path of the first layer, inner ones first, whose outputs before `cut` change though its inputs there do
            not; None where none is seen to.
    """

    check: str
    cut: int
    position: int
    size: float
    layer: str | None

    def __str__(self) -> str:
        how = {"gradient": "with a gradient of {:.2g}", "perturbation": "changing by {:.2g} of its scale"}
        where = f", in layer {self.layer!r}" if self.layer else ""
        return (
            f"the output at position {self.position} depends on inputs at positions >= {self.cut}, "
            f"{how[self.check].format(self.size)} ({self.check} check{where})"
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
    """

    sequence_length: int
    cuts: tuple[int, ...]
    max_gradient: float | None
    max_change: float
    atol: float
    embeddings: tuple[str, ...]
    leaks: tuple[Leak, ...]
    powerless: tuple[str, ...]

    @property
    def is_causal(self) -> bool:
        """Whether every check was passed and could have been failed."""
        return not self.leaks and not self.powerless


class CausalityError(AssertionError):
    """Raised for a layer or model that looks into the future; `report` holds the `CausalityReport`."""

    def __init__(self, report: CausalityReport) -> None:
        super().__init__(
            "`target` must not look ahead, but " + "; ".join(map(str, report.leaks)) + ". Attention layers are causal "
            "where they are called with `use_causal_mask=True`."
        )
        self.report = report
