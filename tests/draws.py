"""Number of examples and parameters of tests: some by default, more in the full run (`make test-full`)."""

import os

import hypothesis
import pytest


def is_full():
    """Return whether the profile of Hypothesis is "full", with which default tests run slow parts too."""
    return hypothesis.settings.get_current_profile_name() == "full"


def draws(few, many):
    """Return settings of Hypothesis with `few` examples, or `many` if its profile is "full"."""
    return hypothesis.settings(max_examples=many if is_full() else few)


def first(cases, count):
    """Return the cases for `parametrize`. Those after the first `count` are marked for the full run.

    A case is a value, or a tuple of the values of several parameters.
    """
    return [case if number < count else _marked(case) for number, case in enumerate(cases)]


def first_of_each(cases, kind):
    """Return the cases for `parametrize`. Those after the first one of a kind are marked for the full run.

    Args:
        cases: as for `first`.
        kind: function of a case to its kind.
    """
    kinds = [kind(case) for case in cases]
    return [case if kinds[at] not in kinds[:at] else _marked(case) for at, case in enumerate(cases)]


def _marked(case):
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.full)


# Most of the time would be spent on optimized machine code, as in `make test`.
JAX_SETTINGS = {
    "KERAS_BACKEND": "jax",
    "XLA_FLAGS": os.environ.get("XLA_FLAGS", "").strip() or "--xla_backend_optimization_level=0",
}
# Environment and number of examples of slow tests. Each runs in a process, because compiled programs stay in memory. On
# JAX, each shape compiles a separate program in seconds.
MANY = [pytest.param({}, 100, id="tensorflow"), pytest.param(JAX_SETTINGS, 20, id="jax")]
