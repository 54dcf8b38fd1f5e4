"""Sources and stores for the tests of data."""

import numpy as np
import pytest

from tests.data.memory import ListSource
from tf_sparse_attention.data import ByteTokenizer, open_token_store


@pytest.fixture
def make_source(tmp_path):
    """Function that makes a source of the given documents: `make_source([b"one", "two"], fingerprint="a")`."""
    return lambda documents, **arguments: ListSource(documents, tmp_path, **arguments)


@pytest.fixture
def make_store(make_source):
    return lambda documents, **arguments: open_token_store(
        make_source(documents, **arguments), ByteTokenizer(), "train"
    )


@pytest.fixture
def random_store(make_store):
    """Function that makes a store of `count` random documents of 0 to `longest` bytes."""

    def make(count=20, longest=60, seed=0):
        generator = np.random.default_rng(seed)
        lengths = generator.integers(0, longest + 1, count)
        return make_store([generator.bytes(int(length)) for length in lengths], fingerprint=f"{count}/{longest}/{seed}")

    return make
