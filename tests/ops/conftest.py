"""Results of `jax_worker.py` on the JAX backend."""

import json

import pytest

CODE = """
import json
from tests.ops.jax_worker import CHECKS

print(json.dumps(CHECKS[{check!r}]()))
"""


@pytest.fixture(scope="session")
def run_jax_worker(run_jax):
    """Function that runs a check of `jax_worker.py` on the JAX backend and returns its result."""
    return lambda check: json.loads(run_jax(CODE.format(check=check)).splitlines()[-1])


@pytest.fixture(scope="session")
def on_jax(run_jax_worker):
    """Results of the checks of `jax_worker.py`, by name; each runs when it is first asked for.

    Test processes that run beside each other thus do not all run all of them.
    """

    class Results(dict):
        def __missing__(self, check):
            self[check] = run_jax_worker(check)
            return self[check]

    return Results()
