"""Argument checks with messages that name the argument, the expected value and the received value."""

import difflib
import inspect
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def check_count(name: str, value: Any, minimum: int = 1) -> None:
    """Raise a `ValueError` unless `value` is an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        expected = "a positive integer" if minimum == 1 else f"an integer of at least {minimum}"
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}.")


def check_optional_count(name: str, value: Any, minimum: int = 1) -> None:
    """Raise a `ValueError` unless `value` is None or an integer of at least `minimum`."""
    if value is not None:
        check_count(name, value, minimum)


def checked_pair(name: str, value: Any, minimum: int = 1) -> tuple[int, int]:
    """Return `value` as a tuple of two integers of at least `minimum`, or raise a `ValueError`."""
    try:
        first, second = value
        check_count(name, first, minimum)
        check_count(name, second, minimum)
    except (TypeError, ValueError):
        expected = "positive integers" if minimum == 1 else f"integers of at least {minimum}"
        raise ValueError(f"`{name}` must be a pair of {expected}. Received: {name}={value!r}.") from None
    return first, second


def checked_counts(name: str, values: Any, minimum: int = 1) -> tuple[int, ...]:
    """Return `values`, a sequence of integers of at least `minimum`, as a tuple, or raise a `ValueError`."""
    try:
        values = tuple(values)
    except TypeError:
        raise ValueError(f"`{name}` must be a sequence of integers. Received: {name}={values!r}.") from None
    for value in values:
        check_count(name, value, minimum)
    return values


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise a `ValueError` unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}. Received: {name}={value!r}.")


def check_switch(name: str, value: Any) -> None:
    """Raise a `ValueError` unless `value` is a boolean."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}.")


def check_optional_switch(name: str, value: Any) -> None:
    """Raise a `ValueError` unless `value` is a boolean or None."""
    if value is not None:
        check_switch(name, value)


def check_one_given(**values: Any) -> None:
    """Raise a `ValueError` unless exactly one of the named arguments is not None."""
    if sum(value is not None for value in values.values()) != 1:
        names = " and ".join(f"`{name}`" for name in values)
        received = ", ".join(f"{name}={value}" for name, value in values.items())
        raise ValueError(f"One of {names} must be given. Received: {received}.")


def check_seed(seed: Any) -> None:
    """Raise a `ValueError` unless `seed` is an integer in [0, 2**63)."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= int(seed) < 2**63:
        raise ValueError(f"`seed` must be in [0, 2**63). Received: seed={seed!r}.")


def check_rate(name: str, value: Any) -> None:
    """Raise a `ValueError` unless `value` is a number in [0, 1)."""
    if not _is_number(value) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={value!r}.")


def check_positive(name: str, value: Any) -> None:
    """Raise a `ValueError` unless `value` is a number above 0."""
    if not _is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be a positive number. Received: {name}={value!r}.")


def check_not_negative(name: str, value: Any) -> None:
    """Raise a `ValueError` unless `value` is a number of at least 0."""
    if not _is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"`{name}` must be a number of at least 0. Received: {name}={value!r}.")


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_keywords(target: Any, keywords: Iterable[str], further: Iterable[str] = ()) -> None:
    """Raise a `ValueError` for a keyword that resembles an argument of the constructor, and suggest that argument.

    Keras rejects all other unknown keywords. Abbreviations are expanded: `num_kv_heads` to `num_key_value_heads`.

    Args:
        target: the object that is being constructed.
        keywords: names of keyword arguments that are not in the signature.
        further: names of valid keyword arguments that are not in the signature.
    """
    constructors = [vars(cls)["__init__"] for cls in type(target).__mro__ if "__init__" in vars(cls)]
    known = {name for constructor in constructors for name in inspect.signature(constructor).parameters} | {*further}
    for name in sorted(set(keywords) - known):
        full = name.replace("kv", "key_value").replace("qk", "query_key")
        others = known - {"self", "args", "kwargs"}
        longer = [other for other in others if len(full) > 3 and full in other]  # `soft_cap` of `logit_soft_cap`
        question = did_you_mean(full, longer, 1, similarity=0) or did_you_mean(full, others, 1, similarity=0.75)
        if question:
            raise ValueError(f"`{name}` is not an argument of {type(target).__name__}.{question}")


def did_you_mean(name: str, known: Iterable[str], count: int = 3, similarity: float = 0.6) -> str:
    """Return " Did you mean `name`?" for similar names, to append to a sentence; an empty string if there are none.

    Args:
        name: the received name.
        known: valid names.
        count: maximum number of suggestions.
        similarity: minimum similarity, from 0 (all names) to 1 (equal names only).
    """
    similar = difflib.get_close_matches(name, sorted(set(known)), count, similarity)
    return f" Did you mean {' or '.join(f'`{other}`' for other in similar)}?" if similar else ""


def check_static(name: str, shape: Sequence[int | None], expected: Sequence[tuple[int | None, ...]]) -> None:
    """Raise a `ValueError` unless the known sizes of `shape` are allowed.

    Args:
        name: name of the argument.
        shape: sizes, None if unknown.
        expected: allowed sizes per axis. None allows any size.
    """
    fits = len(shape) == len(expected) and all(
        size is None or None in allowed or size in allowed for size, allowed in zip(shape, expected, strict=True)
    )
    if not fits:
        wanted = ", ".join(" or ".join("any" if size is None else str(size) for size in axis) for axis in expected)
        raise ValueError(f"`{name}` must have shape ({wanted}). Received: {name} of shape {tuple(shape)}.")


def concrete_values(x: Any) -> np.ndarray | None:
    """Return the values of a tensor, or None inside of a compiled program."""
    try:
        return np.asarray(x)  # `ops.convert_to_numpy` copies and warns
    except Exception:  # each backend raises another class
        return None


def check_dense(name: str, x: Any) -> None:
    """Raise a `ValueError` for a ragged tensor, of TensorFlow or of `keras.Input(ragged=True)`."""
    if hasattr(x, "row_splits") or getattr(x, "ragged", False):
        raise ValueError(
            f"`{name}` must be a dense tensor. Pass `{name}.to_tensor()` together with a padding mask, "
            f"`tf.sequence_mask({name}.row_lengths())`. Received: a ragged tensor of shape {tuple(x.shape)}."
        )
