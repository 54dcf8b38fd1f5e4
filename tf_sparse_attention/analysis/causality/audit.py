"""Causality audit: check whether outputs of a layer or model depend on later inputs."""

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

_LONGEST = 32_768  # maximal length that a warning suggests; longer sequences cannot be audited

# Change of an earlier output, relative to its scale, that counts as rounding, by the coarsest dtype of the computation.
# float32: 14 times the rounding error of regrouping tokens in a routing layer (7e-7), and 100 times less than a real
# leak (1e-3). Half precision: eight units in the last place, since one unit is as large as many leaks.
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
    """Measure how much earlier outputs depend on later inputs, without an error for leaks.

    The arguments are those of `assert_causal`. The report lists leaks, and checks that could not fail because no output
    depends on an input. Invalid arguments and targets raise the same ValueErrors as in `assert_causal`.

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
    # Evaluate before `build`, which fixes the length of a Sequential model. In training, dropout depends on the length.
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


# The signature and defaults are copied from `causality_report`.
@functools.wraps(causality_report, assigned=(), updated=())
def assert_causal(target: keras.Layer | Callable, *args: Any, **kwargs: Any) -> CausalityReport:
    """Check on random inputs that no output of a layer or model depends on a later input; raise an error otherwise.

    Two checks run at several cuts `c`. Half of the cuts are spaced evenly in `log c`, the others are random.

    1. gradient: `d (sum of r[b, t] . y[b, t] over t < c) / d x[b, j] = 0` exactly, for all j >= c, with random r. Needs
       one backward pass per cut. For token ids, the gradient refers to the outputs of embedding layers: Keras
       `Embedding` layers, and layers without sublayers that map integers to vectors. This check finds differentiable
       leaks of any size.
    2. perturbation: replacing x[b, j] for all j >= c does not change y[b, t] for t < c, up to rounding. This check
       finds leaks through selection (membership in a cluster, a bucket or the top k), which have no gradient.

    The audit covers only the inputs and cuts that it tries. A leak that needs a longer sequence, a rarer token or
    another cut is not found. The cost per cut is one backward pass and `num_draws` forward passes. Memory holds the
    activations of one pass.

    Layers that take `use_causal_mask` get True; `keras.layers.MultiHeadAttention` gets its input as query and value.
    Keras variables (weights, moving averages, seeds) do not change. An unbuilt target is built.

    Args:
        target: Keras layer or model, or function of one argument that uses layers. Its input is token ids (B, T),
            vectors (B, T, D), or a list or dictionary of these. Its output is (B, T, ...), or a list or dictionary. To
            keep an input constant or to select an output, pass a function:
            `lambda ids: model([source, ids])["logits"]`.
        sequence_length: T, positions of the inputs, at least 2; ignored for a model of fixed length. If an attention
            layer of this library sees all T positions, a warning suggests a length. Defaults to 64.
        hidden_dim: D of the vectors if the target does not determine it. Defaults to 32.
        batch_size: B, number of sequences. Defaults to 2.
        seed: integer seed of inputs, cuts, replacements and projections. Defaults to 0.
        atol: largest change that passes check 2, relative to the output's largest magnitude; check 1 has no tolerance.
            Defaults to None: 1e-5; 0.0625 if a layer computes in bfloat16, 0.0078 in float16; 1e-12 if all layers
            compute in float64. In float32, rounding is 7e-7 if later tokens move other tokens to other slots, and 0
            otherwise; leaks exceed 1e-3.
        inputs: array, or list or dictionary of arrays, used instead of random inputs. Integers (B, T) are token ids,
            floating-point arrays (B, T, D, ...) are vectors. Boolean arrays, and arrays with "mask", "segment" or
            "position" in their names, stay constant. Use it to audit real text or a batch with padding. Outputs at
            padded positions count, unless the target sets them to zero. Defaults to None.
        vocabulary_size: number of token ids of random tokens, without id 0, which is often padding. Defaults to
            None: the target's `vocabulary_size`, or the smallest `input_dim` of its Embedding layers.
        training: Boolean passed to the target. If True, dropout is active, with the same random numbers in all calls,
            and calls update state. Defaults to False.
        dtype: "float32" or "float64" to audit a copy of the target in this dtype, created from its config, with the
            same variables. Separates rounding from small leaks. None: no copy. Defaults to None.
        num_cuts: number of cuts; T - 1 or more for all cuts. Defaults to 8.
        num_draws: replacements per cut in check 2. Every second replacement repeats one token, which overfills
            selections of a fixed size. Defaults to 2.
        gradients: False skips check 1, for targets without gradients. Defaults to True.
        quick: True for an audit with forward passes only, for large models. The check "prefix" compares the outputs for
            the whole sequence with the outputs for the sequence that ends at each cut. It skips cuts that are too short
            for `target` and lists them in the report. One replacement at the middle cut follows. If `target` has a
            fixed length, or with `training`, replacements at each cut are used instead of prefixes. Memory holds two
            outputs for any number of cuts, and a few positions of each layer. Leaks below `atol` and leaks only in
            gradients are not found. A dependence on the sequence length instead of later tokens also fails;
            `quick=False` distinguishes the two. Defaults to False.

    Returns:
        `CausalityReport` with the results.

    Raises:
        CausalityError: If a check fails. The message has the first leaking output position, the cut, the distance and
            size of the leak, the first leaking layer and, if known, its heads.
        ValueError: If the audit is inconclusive: no output depends on an input (for example, because an output kernel
            is initialized with zeros), outputs are NaN or not one per position, gradients are not finite or not
            available, `inputs` has no array that varies, or `dtype` is not available.

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
            "`target` must return outputs that depend on its inputs; train one step if an output kernel starts at "
            f"zero. Received: no dependence in the checks {report.powerless}."
        )
    return report


def _quick_findings(subject, inputs, base, cuts, atol, rng, takes_prefixes):
    # One replacement shows that outputs depend on inputs at all, which prefixes cannot show.
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
    """Warn if an attention layer sees all earlier tokens of a short sequence, so its selection has no effect."""
    causal = [layer for layer in layers if isinstance(layer, AttentionLayer) and can_be_causal(layer)]
    lengths = {layer.path: max(map(_dense_length, primitives(layer.pattern))) for layer in causal}
    dense = {path: longest for path, longest in lengths.items() if length <= longest <= _LONGEST}
    if dense:
        path = max(dense, key=lambda path: dense[path])
        warnings.warn(
            f"`sequence_length` should be at least {dense[path] + 1}: in a shorter sequence, {path!r} sees every "
            "earlier token, which hides leaks through its selection. "
            f"Received: {length} positions.",
            stacklevel=4,
        )


def _default_atol(layers, outputs):
    used = {layer.compute_dtype for layer in layers}
    used |= {keras.backend.standardize_dtype(output.dtype) for output in outputs}
    return next(atol for dtype, atol in _DEFAULT_ATOL.items() if dtype in used)


def _choose_cuts(length, num_cuts, rng):
    """Return ascending cuts: half of them logarithmically spaced, the others random, to hit any block boundary."""
    everywhere = np.arange(1, length)
    if num_cuts >= len(everywhere):
        return tuple(everywhere.tolist())
    spread = np.unique(np.geomspace(1, length - 1, (num_cuts + 1) // 2).round().astype(int))
    drawn = rng.choice(np.setdiff1d(everywhere, spread), num_cuts - len(spread), replace=False)
    return tuple(sorted([*spread.tolist(), *drawn.tolist()]))
