"""The two checks of the causality audit: gradients must be exactly zero, and replacing later inputs must not show."""

import bisect
import functools
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.analysis.causality.inputs import AuditInputs
from tf_sparse_attention.analysis.causality.report import Leak
from tf_sparse_attention.analysis.causality.target import AuditTarget, to_numpy
from tf_sparse_attention.analysis.gradients import vector_jacobian_product


class Finding(NamedTuple):
    """What a check measured: the worst figure, the leak of the first cut that failed, whether it could have failed."""

    worst: float
    leak: Leak | None
    has_power: bool


def gradient_check(
    subject: AuditTarget, inputs: AuditInputs, cuts: Sequence[int], atol: float, rng: np.random.Generator
) -> tuple[Finding, tuple[str, ...]]:
    """Takes the gradient of a random projection of the outputs before each cut, one backward pass a cut.

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
            layer = _leaking_layer(subject, inputs, inputs.replace_from(cut, rng), cut, atol)
            leak = Leak("gradient", cut, position, size, layer)
    return Finding(worst, leak, has_power), embeddings


def _leaks(largest, cut, end):
    """Returns whether the outputs before `end` see an input from `cut` on."""
    return bool(largest(end)[cut:].any())


def perturbation_check(
    subject: AuditTarget,
    inputs: AuditInputs,
    base: Sequence[np.ndarray],
    cuts: Sequence[int],
    num_draws: int,
    atol: float,
    rng: np.random.Generator,
) -> Finding:
    """Replaces the inputs from each cut on, `num_draws` times, and compares the outputs before it.

    Args:
        subject: `AuditTarget`.
        inputs: `AuditInputs`.
        base: what `outputs_of(subject, inputs)` returned.
        cuts: ascending positions.
        num_draws: replacements for each cut; every second one repeats one token.
        atol: largest change that passes, in units of the output's scale.
        rng: NumPy generator.

    Returns:
        `Finding`.
    """
    worst, leak, has_power = 0.0, None, False
    for cut in cuts:
        for draw in range(num_draws):
            arrays = inputs.replace_from(cut, rng, repeat=draw % 2 == 1)
            outputs = subject(inputs.pack(arrays))
            changes = [_change(old, to_numpy(new)) for old, new in zip(base, outputs, strict=True)]
            change = np.max(changes, axis=0)
            size = float(change[:cut].max())
            worst, has_power = max(worst, size), has_power or bool(change[cut:].any())
            if size > atol and not leak:
                position = int(np.argmax(change > atol))
                leak = Leak("perturbation", cut, position, size, _leaking_layer(subject, inputs, arrays, cut, atol))
    return Finding(worst, leak, has_power)


def outputs_of(subject: AuditTarget, inputs: AuditInputs) -> list[np.ndarray]:
    """Returns the outputs as arrays (B, T, ...), each a figure for every position.

    Raises:
        ValueError: If an output has another shape or holds NaN.
    """
    outputs = [to_numpy(output) for output in subject(inputs.pack(inputs.arrays))]
    shapes = [output.shape for output in outputs]
    if not outputs or any(shape[:2] != inputs.batch_and_length for shape in shapes):
        raise ValueError(
            "`target` must return outputs of shape (batch_size, sequence_length, ...). "
            f"Received: shapes {shapes} for batch_size and sequence_length {inputs.batch_and_length}."
        )
    if any(np.isnan(output).any() for output in outputs):
        raise ValueError("`target` must return numbers. Received: NaN, which equals nothing and would prove nothing.")
    return outputs


def _differentiate(subject, inputs, rng):
    """Returns a function of a position and the embeddings' names.

    The function gives, for the outputs before the position, the largest gradient with respect to each input position.
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

    def largest(end):
        gradients = pull_back([_cotangent(*pair, end) for pair in zip(weights, outputs, strict=True)])
        gradient = np.max([_largest_by_position(to_numpy(array)) for array in gradients], axis=0)
        if not np.isfinite(gradient).all():
            raise ValueError(f"`target` must have finite gradients. Received: {gradient[~np.isfinite(gradient)][0]}.")
        return gradient

    return largest, tuple(name for name, _ in embeddings)


def _cotangent(weight, output, end):
    weight = weight.copy()
    weight[:, end:] = 0
    return ops.cast(ops.convert_to_tensor(weight), output.dtype)


def _change(old, new):
    """How much each position changed, (T,), in units of the largest finite magnitude of `old`."""
    finite = np.abs(old[np.isfinite(old)])
    scale = finite.max(initial=0) or 1
    with np.errstate(invalid="ignore"):
        # An infinity that stays is no change; NaN that comes is an infinite one.
        change = np.where(old == new, 0, np.abs(old - new) / scale)
    return _largest_by_position(np.where(np.isnan(change), np.inf, change))


def _largest_by_position(array):
    """(B, T, ...) -> (T,), the largest magnitude at each position."""
    return np.abs(array).max(axis=(0, *range(2, array.ndim)))


def _leaking_layer(subject, inputs, replaced, cut, atol):
    """Path of the first layer, inner ones first, that carries a change from `cut` on to positions before it."""
    shape = inputs.batch_and_length

    def changes(olds, news):
        return any(
            old.shape != new.shape or _change(old, new)[:cut].max() > atol for old, new in zip(olds, news, strict=False)
        )

    before = subject.layer_calls(inputs.pack(inputs.arrays), shape)
    after = subject.layer_calls(inputs.pack(replaced), shape)
    # The shorter one ends the comparison: other inputs may take another way through the layers.
    for (path, old_inputs, old_outputs), (_, new_inputs, new_outputs) in zip(before, after, strict=False):
        # A layer whose inputs are not recorded is not named; the layer around it is.
        if old_inputs and not changes(old_inputs, new_inputs) and changes(old_outputs, new_outputs):
            return path
    return None


def _is_floating(tensor):
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))
