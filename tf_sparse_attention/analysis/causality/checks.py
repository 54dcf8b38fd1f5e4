"""The checks of the causality audit: gradients are zero, and outputs the same with other later inputs, or with none."""

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

_LOOKED_AT = 16  # positions up to the first that looks ahead whose values are kept of each layer, for long sequences


class Finding(NamedTuple):
    """What a check measured: the worst figure, the leak of the first cut that failed, whether it could have failed.

    `skipped_cuts` are those that it could not try.
    """

    worst: float
    leak: Leak | None
    has_power: bool
    skipped_cuts: tuple[int, ...] = ()


def gradient_check(
    subject: AuditTarget, inputs: AuditInputs, cuts: Sequence[int], atol: float, rng: np.random.Generator
) -> tuple[Finding, tuple[str, ...]]:
    """Take the gradient of a random projection of the outputs before each cut, one backward pass a cut.

    Args:
        subject: `AuditTarget`.
        inputs: `AuditInputs`.
        cuts: ascending positions.
        atol: change of a layer's outputs that counts when the leaking layer is looked for.
        rng: NumPy generator.

    Returns:
        `(finding, embeddings)`: the `Finding`, and the names of the layers whose outputs stood for token ids.

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
            # The gradient grows with the number of outputs: the first output that makes it nonzero is the leak.
            ends = range(1, cut + 1)
            leaks = functools.partial(_leaks, largest, cut)
            position = bisect.bisect_left(ends, True, key=leaks)
            source = find_source(subject, inputs, inputs.replace_from(cut, rng), cut, atol)
            distance = int(np.flatnonzero(largest(position + 1, position)).max()) - position
            leak = Leak("gradient", cut, position, size, source.layer, distance, source.heads)
    return Finding(worst, leak, has_power), embeddings


def _leaks(largest, cut, end):
    """Return whether the outputs before `end` see an input from `cut` on."""
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
    """Replace the inputs from each cut on, `num_draws` times, and compares the outputs before it.

    Args:
        subject: `AuditTarget`.
        inputs: `AuditInputs`.
        base: what `outputs_of(subject, inputs)` returned.
        cuts: ascending positions.
        num_draws: replacements for each cut; every second one repeats one token.
        atol: largest change that passes, in units of the output's scale.
        rng: NumPy generator.
        sparing: whether the leaking layer is looked for at few positions, in memory that does not grow with the length.
            Default: False, all positions.

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
    """Cuts the inputs off at each cut, and compares the outputs with those before it of the whole.

    Args:
        subject: `AuditTarget`.
        inputs: `AuditInputs`.
        base: what `outputs_of(subject, inputs)` returned.
        cuts: ascending positions.
        atol: largest change that passes, in units of the output's scale.

    Returns:
        `Finding`. Outputs after a cut are not there to show whether they depend on inputs, so that it always counts as
        able to fail.

    Raises:
        ValueError: If the target takes inputs of none of these lengths.
    """
    worst, leak = 0.0, None
    failed: dict[int, Exception] = {}
    for cut in cuts:
        try:
            changes = _changes_of_prefix(subject, inputs, base, cut)
        except Exception as error:  # such as the best k of fewer; each backend has its own
            failed[cut] = error
            continue
        size = float(changes.max())
        worst = max(worst, size)
        if size > atol and not leak:
            arrays, changes_from = inputs.prefix(cut), functools.partial(_changes_of_prefix, subject, inputs, base)
            leak = _leak_of("prefix", subject, inputs, arrays, cut, changes, atol, changes_from, sparing=True)
    if len(failed) == len(cuts):
        raise ValueError(
            "`quick` compares the whole with shorter sequences, which `target` must take; `quick=False` does without. "
            f"Received: {type(failed[cuts[-1]]).__name__} at {cuts[-1]} of {inputs.batch_and_length[1]} positions."
        ) from failed[cuts[-1]]
    return Finding(worst, leak, True, tuple(failed))


def _leak_of(check, subject, inputs, arrays, cut, changes, atol, changes_from, sparing):
    """Return the `Leak` that changes of the outputs before a cut tell of, given those of a later cut as a function."""
    position = int(np.argmax(changes > atol))
    source = find_source(subject, inputs, arrays, cut, atol, _looked_at(position) if sparing else slice(None))
    length = inputs.batch_and_length[1]
    distance = find_distance(position, cut, length, lambda later: changes_from(later)[position] > atol)
    return Leak(check, cut, position, float(changes[:cut].max()), source.layer, distance, source.heads)


def outputs_of(subject: AuditTarget, inputs: AuditInputs) -> list[np.ndarray]:
    """Return the outputs as arrays (B, T, ...) of their own dtypes, each a figure for every position.

    Raises:
        ValueError: If an output has another shape or holds NaN.
    """
    outputs = _arrays_of(subject, inputs, inputs.arrays)
    shapes = [output.shape for output in outputs]
    if not outputs or any(shape[:2] != inputs.batch_and_length for shape in shapes):
        raise ValueError(
            "`target` must return outputs of shape (batch_size, sequence_length, ...). "
            f"Received: shapes {shapes} for batch_size and sequence_length {inputs.batch_and_length}."
        )
    if any(has_nan(output) for output in outputs):
        raise ValueError("`target` must return numbers. Received: NaN, which equals nothing and would prove nothing.")
    return outputs


def _arrays_of(subject, inputs, arrays):
    with without_gradients():
        return [keras.ops.convert_to_numpy(output) for output in subject(inputs.pack(arrays))]


def _changes(subject, inputs, base, arrays):
    """How much each position of the outputs changes with other inputs, (T,)."""
    outputs = _arrays_of(subject, inputs, arrays)
    return np.max([change(old, new) for old, new in zip(base, outputs, strict=True)], axis=0)


def _changes_of_prefix(subject, inputs, base, cut):
    """How much the outputs of a sequence that ends before `cut` differ from those of the whole, (cut,)."""
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
    """Return a function of a position and the embeddings' names.

    The function gives, for the outputs before the position, and from another one on if that is given, the largest
    gradient with respect to each input position.
    """
    shape = inputs.batch_and_length
    vectors = [ops.convert_to_tensor(array) for array in inputs.vectors]
    embeddings = subject.find_embeddings(inputs.pack(inputs.arrays), shape)
    if any(inputs.is_tokens) and not embeddings:
        raise ValueError(
            "`target` must embed its token ids in a layer of its own for the gradient check; `gradients=False` leaves "
            "the check out. Received: no layer that turns integers into vectors."
        )

    def floating_outputs(sources):
        fed = inputs.pack(inputs.with_vectors(sources[: len(vectors)]))
        outputs = subject.call_with_probes(fed, sources[len(vectors) :], shape)
        return [output for output in outputs if _is_floating(output)]

    # Adding zero probes where token ids become vectors gives their gradients there, whatever the layers are.
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
