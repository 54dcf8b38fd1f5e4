"""The causality audit: does any output of a layer or model depend on a later input?"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.analysis.causality.checks import (
    Finding,
    gradient_check,
    outputs_of,
    perturbation_check,
    prefix_check,
)
from tf_sparse_attention.analysis.causality.inputs import (
    AuditInputs,
    find_vocabulary_size,
    has_fixed_length,
    make_inputs,
)
from tf_sparse_attention.analysis.causality.precision import copy_in_precision
from tf_sparse_attention.analysis.causality.report import CausalityError, CausalityReport
from tf_sparse_attention.analysis.causality.target import AuditTarget
from tf_sparse_attention.layers import AttentionLayer
from tf_sparse_attention.layers.attention.attention_checks import can_be_causal
from tf_sparse_attention.patterns.pattern import primitives
from tf_sparse_attention.patterns.selected_blocks import GivenBlocks

_LONGEST = 32_768  # positions that can be audited; no warning asks for more

# How much of its scale an earlier output may change, by the coarsest dtype computed in: that much is rounding. In
# float32 14 times what regrouping tokens costs in a routing layer (7e-7), and 100 times below a real leak (1e-3). In
# half precision a unit in the last place is as large as many leaks; eight of them can still be told from rounding.
_DEFAULT_ATOL = {"bfloat16": 8 * 2.0**-7, "float16": 8 * 2.0**-10, "float32": 1e-5, "float64": 1e-12}


def causality_report(
    target: keras.Layer | Callable,
    sequence_length: int = 64,
    hidden_dim: int = 32,
    batch_size: int = 2,
    seed: int = 0,
    atol: float | None = None,
    *,
    inputs: Any = None,
    vocabulary_size: int | None = None,
    training: bool = False,
    dtype: str | None = None,
    num_cuts: int = 8,
    num_draws: int = 2,
    gradients: bool = True,
    quick: bool = False,
) -> CausalityReport:
    """Measure how much earlier outputs depend on later inputs: `assert_causal` as figures instead of an error.

    Takes the arguments of `assert_causal`. Leaks, and checks that had no power, are listed in the report; arguments
    that cannot be audited raise the ValueErrors named there.

    Returns:
        `CausalityReport`; `report.is_causal` is True exactly when `assert_causal` passes.
    """
    _check_arguments(
        atol,
        dtype,
        vocabulary_size,
        sequence_length=sequence_length,
        hidden_dim=hidden_dim,
        batch_size=batch_size,
        num_cuts=num_cuts,
        num_draws=num_draws,
    )
    rng = np.random.default_rng(seed)
    subject = AuditTarget(target, training)
    # Asked before `build`, which gives a Sequential model one length. In training another length draws other dropout.
    takes_prefixes = not training and not has_fixed_length(target)
    if inputs is None:
        shape = (batch_size, sequence_length, hidden_dim)
        inputs = make_inputs(target, subject.layers, shape, vocabulary_size, rng)
    else:
        inputs = AuditInputs(inputs, vocabulary_size or find_vocabulary_size(target, subject.layers))
    subject.build(inputs.structure)
    _warn_of_short_sequences(subject.layers, inputs.batch_and_length[1])
    if dtype is not None:
        copy = copy_in_precision(target, dtype, lambda made: AuditTarget(made, training).build(inputs.structure))
        subject = AuditTarget(copy, training)
    base = outputs_of(subject, inputs)
    atol = _default_atol(subject.layers, base) if atol is None else atol
    cuts = _choose_cuts(inputs.batch_and_length[1], num_cuts, rng)
    findings: dict[str, Finding] = {}
    embeddings: tuple[str, ...] = ()
    if quick:
        findings = _quick_findings(subject, inputs, base, cuts, atol, rng, takes_prefixes)
    elif gradients:
        findings["gradient"], embeddings = gradient_check(subject, inputs, cuts, atol, rng)
    if not quick:
        findings["perturbation"] = perturbation_check(subject, inputs, base, cuts, num_draws, atol, rng)
    return _report(inputs, cuts, atol, embeddings, findings)


# The signature and its defaults are those of `causality_report`, written once.
@functools.wraps(causality_report, assigned=(), updated=())
def assert_causal(target: keras.Layer | Callable, *args: Any, **kwargs: Any) -> CausalityReport:
    """Proves on drawn inputs that no output of a layer or model depends on a later input, or raises.

    For cuts `c`, half of them spread evenly in `log c` and half drawn, two checks:

    1. gradient: `d (sum of r[b, t] . y[b, t] over t < c) / d x[b, j] = 0` exactly, for all j >= c, with random r. One
       backward pass a cut. For token ids the gradient is taken at the outputs of the layers that embed them: Keras
       Embedding layers, and layers without sublayers that turn integers into vectors. This finds soft leaks of any
       size.
    2. perturbation: replacing x[b, j] for all j >= c leaves y[b, t], t < c, unchanged to rounding. This finds leaks
       through selection (which tokens are in a cluster, a bucket, the best k), which have no gradient.

    The audit proves what it tried: a leak that needs a longer sequence, a rarer token or another cut shows only with
    these. It costs one backward pass and `num_draws` forward passes a cut, and keeps the activations of one pass.

    The target is called as it is: layers that take `use_causal_mask` get True, `keras.layers.MultiHeadAttention` gets
    its input as query and value. Keras variables (weights, moving averages, seeds) are left exactly as they were; a
    target that was not built is built.

    Args:
        target: Keras layer or model, or function of one argument that uses some; from token ids (B, T), vectors
            (B, T, D), or a list or dictionary of such, to outputs (B, T, ...), or a list or dictionary of such. To
            hold an input, or to pick an output, pass a function: `lambda ids: model([source, ids])["logits"]`.
        sequence_length: positions T of the inputs, at least 2; a model of fixed length has its own. Where an attention
            layer of this library reaches back that far, a warning names the length to take. Defaults to 64.
        hidden_dim: size D of vectors where the target is not built and leaves it open. Defaults to 32.
        batch_size: sequences B. Defaults to 2.
        seed: integer for the inputs, cuts, replacements and projections. Defaults to 0.
        atol: largest change in check 2, in units of the output's largest magnitude; check 1 has no tolerance. Defaults
            to None: 1e-5, where a layer computes in bfloat16 0.0625, in float16 0.0078, and where all compute in
            float64 1e-12. Rounding is 7e-7 in float32 where later tokens move others to other slots, and 0
            elsewhere; leaks are above 1e-3.
        inputs: array, or list or dictionary of arrays, to begin from in place of drawn ones. Integers (B, T) are token
            ids, floating-point (B, T, D, ...) vectors. Boolean arrays, and those with "mask", "segment" or "position"
            in their name, are held. Real text, or a batch with padding, is tried this way; outputs at padded positions
            count too, unless the target sets them to zero. Defaults to None.
        vocabulary_size: number of token ids to draw from; id 0 is left out, since it is often padding. Defaults to
            None: the target's `vocabulary_size`, or the smallest `input_dim` of its Embedding layers.
        training: Boolean passed to the target; True audits with dropout, the same in all calls, and with state being
            updated. Defaults to False.
        dtype: None, or "float32" or "float64" to audit a copy of the target that computes in it, made from its config
            with the same variables. Separates rounding from small leaks. Defaults to None.
        num_cuts: cuts to try; T - 1 or more are all of them. Defaults to 8.
        num_draws: replacements a cut in check 2; every second one repeats one token, which crowds selections of a
            fixed size. Defaults to 2.
        gradients: False leaves check 1 out, for targets that have no gradient. Defaults to True.
        quick: True for forward passes alone, for large models: the outputs of the whole against those of the sequence
            cut off at each cut (check "prefix"; cuts too short for `target` are left out, and the report has them), and
            one replacement at the middle cut. Where `target` has one fixed length, and with `training`, one
            replacement at each cut instead. It keeps two outputs at once, whatever the number of cuts, and few
            positions of each layer. It sees no leak that is smaller than `atol` or in gradients alone, and what depends
            on the length of the sequence, and not on later tokens, fails it: `quick=False` says which. Defaults to
            False.

    Returns:
        `CausalityReport` with the figures.

    Raises:
        CausalityError: If a check fails. Names the first output position that looks ahead, from which cut, how far, by
            how much, the first layer whose outputs do, and its heads where it shows them.
        ValueError: If nothing can be concluded: the outputs do not depend on the inputs at all (an output kernel that
            is zero, as some models start), are NaN or not one for each position, gradients are not finite or cannot be
            taken, `inputs` is nothing that varies, or `dtype` cannot be had.

    Example:

    >>> model = keras.Sequential([keras.layers.Embedding(50, 8), keras.layers.Conv1D(8, 3, padding="causal")])
    >>> assert_causal(model).max_gradient
    0.0
    """
    report = causality_report(target, *args, **kwargs)
    if report.leaks:
        raise CausalityError(report)
    if report.powerless:
        raise ValueError(
            "`target` must return outputs that depend on its inputs, or the audit proves nothing; train a step where "
            f"an output kernel starts at zero. Received: no dependence in the checks {report.powerless}."
        )
    return report


def _quick_findings(subject, inputs, base, cuts, atol, rng, takes_prefixes):
    # One replacement shows that outputs depend on inputs at all, which prefixes cannot.
    replaced = cuts[len(cuts) // 2 :][:1] if takes_prefixes else cuts
    findings = {"perturbation": perturbation_check(subject, inputs, base, replaced, 1, atol, rng, sparing=True)}
    if takes_prefixes:
        findings["prefix"] = prefix_check(subject, inputs, base, cuts, atol)
    return findings


def _report(inputs, cuts, atol, embeddings, findings):
    return CausalityReport(
        sequence_length=inputs.batch_and_length[1],
        cuts=cuts,
        max_gradient=findings["gradient"].worst if "gradient" in findings else None,
        max_change=max(finding.worst for check, finding in findings.items() if check != "gradient"),
        atol=atol,
        embeddings=embeddings,
        leaks=tuple(finding.leak for finding in findings.values() if finding.leak),
        powerless=tuple(check for check, finding in findings.items() if not finding.has_power),
        checks=tuple(findings),
        skipped_cuts=tuple(cut for finding in findings.values() for cut in finding.skipped_cuts),
    )


def _check_arguments(atol, dtype, vocabulary_size, **counts):
    for name, value in counts.items():
        checks.check_count(name, value, minimum=2 if name == "sequence_length" else 1)
    checks.check_optional_count("vocabulary_size", vocabulary_size, minimum=2)
    if atol is not None:
        checks.check_not_negative("atol", atol)
    checks.check_choice("dtype", dtype, (None, "float32", "float64"))


def _dense_length(pattern):
    """Return the length of the longest sequence in which a query may attend to all earlier keys."""
    if isinstance(pattern, GivenBlocks):
        return pattern.num_blocks * pattern.block_size
    return (pattern.reach or 0) + 1


def _warn_of_short_sequences(layers, length):
    """Warn where a sequence is so short that some attention layer sees all of it, whatever it selects."""
    causal = [layer for layer in layers if isinstance(layer, AttentionLayer) and can_be_causal(layer)]
    lengths = {layer.path: max(map(_dense_length, primitives(layer.pattern))) for layer in causal}
    dense = {path: longest for path, longest in lengths.items() if length <= longest <= _LONGEST}
    if dense:
        path = max(dense, key=lambda path: dense[path])
        warnings.warn(
            f"`sequence_length` should be at least {dense[path] + 1}: in a shorter sequence {path!r} sees every "
            "earlier token, so that a leak through what it selects does not show. "
            f"Received: {length} positions.",
            stacklevel=4,
        )


def _default_atol(layers, outputs):
    used = {layer.compute_dtype for layer in layers}
    used |= {keras.backend.standardize_dtype(output.dtype) for output in outputs}
    return next(atol for dtype, atol in _DEFAULT_ATOL.items() if dtype in used)


def _choose_cuts(length, num_cuts, rng):
    """Ascending cuts: short and long pasts alike, and drawn ones, since blocks may end at any regular position."""
    everywhere = np.arange(1, length)
    if num_cuts >= len(everywhere):
        return tuple(everywhere.tolist())
    spread = np.unique(np.geomspace(1, length - 1, (num_cuts + 1) // 2).round().astype(int))
    drawn = rng.choice(np.setdiff1d(everywhere, spread), num_cuts - len(spread), replace=False)
    return tuple(sorted([*spread.tolist(), *drawn.tolist()]))
