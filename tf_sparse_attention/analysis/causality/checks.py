"""Checks of the causality audit: by gradients, by replaced later inputs, and by prefixes."""

import bisect
import functools
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.analysis.causality.comparison import change, has_nan, largest_by_position, to_numpy
from tf_sparse_attention.analysis.causality.inputs import AuditInputs
from tf_sparse_attention.analysis.causality.locate import find_distance, find_source
from tf_sparse_attention.analysis.causality.report import Leak
from tf_sparse_attention.analysis.causality.target import AuditTarget
from tf_sparse_attention.analysis.gradients import vector_jacobian_product, without_gradients

_LOOKED_AT = 16  # positions kept per layer for long sequences, ending at the first leaking position


class Finding(NamedTuple):
    """Result of a check.

    Attributes:
        worst: the largest gradient or change.
        leak: the leak at the first failing cut, or None.
        has_power: whether the check could have failed: an output depends on an input.
        skipped_cuts: cuts that could not be tried.
    """

    worst: float
    leak: Leak | None
    has_power: bool
    skipped_cuts: tuple[int, ...] = ()


def gradient_check(
    subject: AuditTarget, inputs: AuditInputs, cuts: Sequence[int], atol: float, rng: np.random.Generator
) -> tuple[Finding, tuple[str, ...]]:
    """Check the gradient of a random projection of the outputs before each cut, with one backward pass per cut.

    Args:
        subject: `AuditTarget`.
        inputs: `AuditInputs`.
        cuts: ascending positions.
        atol: smallest change of a layer's outputs that counts in the search for the leaking layer.
        rng: NumPy generator.

    Returns:
        `(finding, embeddings)`: the `Finding`, and the names of the layers whose outputs replace token ids.

    Raises:
        ValueError: If there is nothing to differentiate, or a gradient is not finite.
    """
    largest, embeddings = _differentiate(subject, inputs, rng)
    worst, leak, has_power = 0.0, None, False
    for cut in cuts:
        gradient = largest(cut)
        size = float(gradient[cut:].max())
        worst, has_power = max(worst, size), has_power or bool(gradient[:cut].any())
        if size and not leak:
            # Adding outputs keeps a gradient nonzero, so a bisection finds the first leaking output.
            ends = range(1, cut + 1)
            leaks = functools.partial(_leaks, largest, cut)
            position = bisect.bisect_left(ends, True, key=leaks)
            source = find_source(subject, inputs, inputs.replace_from(cut, rng), cut, atol)
            distance = int(np.flatnonzero(largest(position + 1, position)).max()) - position
            leak = Leak("gradient", cut, position, size, source.layer, distance, source.heads)
    return Finding(worst, leak, has_power), embeddings


def _leaks(largest, cut, end):
    """Return whether the outputs before `end` depend on inputs from `cut` on."""
    return bool(largest(end)[cut:].any())


def perturbation_check(
    subject: AuditTarget,
    inputs: AuditInputs,
    base: Sequence[np.ndarray],
    cuts: Sequence[int],
    num_draws: int,
    atol: float,
    rng: np.random.Generator,
    sparing: bool = False,
) -> Finding:
    """Replace the inputs from each cut on, `num_draws` times, and compare the outputs before the cut.

    Args:
        subject: `AuditTarget`.
        inputs: `AuditInputs`.
        base: result of `outputs_of(subject, inputs)`.
        cuts: ascending positions.
        num_draws: replacements per cut; every second replacement repeats one token.
        atol: largest change that passes, in units of the output's scale.
        rng: NumPy generator.
        sparing: whether the search for the leaking layer uses only a few positions, in memory that does not grow with
            the length. Default: False, all positions.

    Returns:
        `Finding`.
    """
    worst, leak, has_power = 0.0, None, False
    for cut in cuts:
        for draw in range(num_draws):
            arrays = inputs.replace_from(cut, rng, repeat=draw % 2 == 1)
            changes = _changes(subject, inputs, base, arrays)
            size = float(changes[:cut].max())
            worst, has_power = max(worst, size), has_power or bool(changes[cut:].any())
            if size > atol and not leak:

                def changes_from(later, arrays=arrays):
                    return _changes(subject, inputs, base, inputs.join(arrays, later))

                leak = _leak_of("perturbation", subject, inputs, arrays, cut, changes, atol, changes_from, sparing)
    return Finding(worst, leak, has_power)


def prefix_check(
    subject: AuditTarget,
    inputs: AuditInputs,
    base: Sequence[np.ndarray],
    cuts: Sequence[int],
    atol: float,
) -> Finding:
    """Truncate the inputs at each cut, and compare the outputs with the outputs of the whole sequence.

    Args:
        subject: `AuditTarget`.
        inputs: `AuditInputs`.
        base: result of `outputs_of(subject, inputs)`.
        cuts: ascending positions.
        atol: largest change that passes, in units of the output's scale.

    Returns:
        `Finding`. `has_power` is always True: without outputs after a cut, it cannot be determined.

    Raises:
        ValueError: If the target accepts none of these lengths.
    """
    worst, leak = 0.0, None
    failed: dict[int, Exception] = {}
    for cut in cuts:
        try:
            changes = _changes_of_prefix(subject, inputs, base, cut)
        except Exception as error:  # for example top-k of fewer than k; the exception depends on the backend
            failed[cut] = error
            continue
        size = float(changes.max())
        worst = max(worst, size)
        if size > atol and not leak:
            arrays, changes_from = inputs.prefix(cut), functools.partial(_changes_of_prefix, subject, inputs, base)
            leak = _leak_of("prefix", subject, inputs, arrays, cut, changes, atol, changes_from, sparing=True)
    if len(failed) == len(cuts):
        raise ValueError(
            "`target` must accept shorter sequences for `quick=True`; otherwise use `quick=False`. "
            f"Received: {type(failed[cuts[-1]]).__name__} at {cuts[-1]} of {inputs.batch_and_length[1]} positions."
        ) from failed[cuts[-1]]
    return Finding(worst, leak, True, tuple(failed))


def _leak_of(check, subject, inputs, arrays, cut, changes, atol, changes_from, sparing):
    """Return the `Leak` for changes of the outputs before a cut.

    `changes_from` returns the changes of the outputs for a later cut.
    """
    position = int(np.argmax(changes > atol))
    source = find_source(subject, inputs, arrays, cut, atol, _looked_at(position) if sparing else slice(None))
    length = inputs.batch_and_length[1]
    distance = find_distance(position, cut, length, lambda later: changes_from(later)[position] > atol)
    return Leak(check, cut, position, float(changes[:cut].max()), source.layer, distance, source.heads)


def outputs_of(subject: AuditTarget, inputs: AuditInputs) -> list[np.ndarray]:
    """Return the outputs as arrays (B, T, ...), without changes of dtype.

    Raises:
        ValueError: If an output has another shape or has NaN.
    """
    outputs = _arrays_of(subject, inputs, inputs.arrays)
    shapes = [output.shape for output in outputs]
    if not outputs or any(shape[:2] != inputs.batch_and_length for shape in shapes):
        raise ValueError(
            "`target` must return outputs of shape (batch_size, sequence_length, ...). "
            f"Received: shapes {shapes} for batch_size and sequence_length {inputs.batch_and_length}."
        )
    if any(has_nan(output) for output in outputs):
        raise ValueError("`target` must return numbers that can be compared. Received: NaN.")
    return outputs


def _arrays_of(subject, inputs, arrays):
    with without_gradients():
        return [keras.ops.convert_to_numpy(output) for output in subject(inputs.pack(arrays))]


def _changes(subject, inputs, base, arrays):
    """Return the change of the outputs at each position for other inputs, (T,)."""
    outputs = _arrays_of(subject, inputs, arrays)
    return np.max([change(old, new) for old, new in zip(base, outputs, strict=True)], axis=0)


def _changes_of_prefix(subject, inputs, base, cut):
    """Return the change of the outputs at each position if the sequence ends before `cut`, (cut,)."""
    outputs = _arrays_of(subject, inputs, inputs.prefix(cut))
    if any(new.shape[:2] != (old.shape[0], cut) for old, new in zip(base, outputs, strict=True)):
        raise ValueError(
            "`target` must return outputs of shape (batch_size, sequence_length, ...). "
            f"Received: shapes {[output.shape for output in outputs]} for {cut} positions."
        )
    return np.max([change(old, new) for old, new in zip(base, outputs, strict=True)], axis=0)


def _looked_at(position):
    return slice(max(0, position + 1 - _LOOKED_AT), position + 1)


def _differentiate(subject, inputs, rng):
    """Return a function `largest(end, begin=0)` and the names of the embedding layers.

    The function returns the largest gradient, per input position, of the outputs at positions `begin` to `end` - 1.
    """
    shape = inputs.batch_and_length
    vectors = [ops.convert_to_tensor(array) for array in inputs.vectors]
    embeddings = subject.find_embeddings(inputs.pack(inputs.arrays), shape)
    if any(inputs.is_tokens) and not embeddings:
        raise ValueError(
            "`target` must embed its token ids in a separate layer for the gradient check; `gradients=False` skips "
            "the check. Received: no layer that maps integers to vectors."
        )

    def floating_outputs(sources):
        fed = inputs.pack(inputs.with_vectors(sources[: len(vectors)]))
        outputs = subject.call_with_probes(fed, sources[len(vectors) :], shape)
        return [output for output in outputs if _is_floating(output)]

    # Zero probes, added to the outputs of embedding layers, give the gradients there for any type of layer.
    sources = [*vectors, *(zeros for _, zeros in embeddings)]
    outputs, pull_back = vector_jacobian_product(floating_outputs, sources)
    weights = [rng.standard_normal(output.shape, dtype="float32") for output in outputs]

    def largest(end, begin=0):
        gradients = pull_back([_cotangent(*pair, begin, end) for pair in zip(weights, outputs, strict=True)])
        gradient = np.max([largest_by_position(to_numpy(array)) for array in gradients], axis=0)
        if not np.isfinite(gradient).all():
            raise ValueError(f"`target` must have finite gradients. Received: {gradient[~np.isfinite(gradient)][0]}.")
        return gradient

    return largest, tuple(name for name, _ in embeddings)


def _cotangent(weight, output, begin, end):
    weight = weight.copy()
    weight[:, :begin], weight[:, end:] = 0, 0
    return ops.cast(ops.convert_to_tensor(weight), output.dtype)


def _is_floating(tensor):
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))
