"""How much of a kind is tried: some of it by default, more in the full run (`make test-full`)."""

import hypothesis
import pytest


def draws(few, many):
    """Returns settings of Hypothesis with `few` examples, or `many` where its profile is "full"."""
    full = hypothesis.settings.get_current_profile_name() == "full"
    return hypothesis.settings(max_examples=many if full else few)


def first(cases, count):
    """Returns the cases for `parametrize`, those after the first `count` marked for the full run.

    A case is a value, or a tuple of the values of several parameters.
    """
    return [case if number < count else _marked(case) for number, case in enumerate(cases)]


def _marked(case):
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.full)


ON_JAX = 20  # draws of a slow proof: each shape is a program of its own, which takes seconds to compile
# Of such programs most of the time goes into machine code that is fast, for a moment.
JAX_SETTINGS = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
