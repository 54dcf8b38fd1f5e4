"""Marks for tests that run functions without graphs; see the fixture `eager`."""

import pytest

EAGER = [
    pytest.mark.usefixtures("eager"),
    # Data sets of tf.data always use graphs, which TensorFlow mentions in a warning.
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly`:UserWarning"),
]
