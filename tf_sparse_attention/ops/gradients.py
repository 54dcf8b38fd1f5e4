"""What Keras hands to the gradient of a function that has one of its own, which differs from backend to backend."""

from typing import Any


def of_result(args: tuple[Any, ...], upstream: Any) -> Any:
    """Returns the gradient of the one result, from the arguments of `grad(*args, upstream=None)`."""
    return args[0] if upstream is None else upstream


def of_two_results(args: tuple[Any, ...], upstream: Any) -> Any:
    """Returns the gradients of two results; JAX passes both as one argument."""
    given = args if upstream is None else upstream
    return given[0] if len(given) == 1 else given
