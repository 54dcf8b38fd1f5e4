"""Fixtures of the tests of conversions."""

import pytest

from tests.convert.t2t.cases import Published, small, small_encoder_decoder


@pytest.fixture
def pg19_like(references):
    """The `Published` checkpoint that has everything: routed heads, geglu, slots."""
    return Published(references / "t2t_checkpoints" / "pg19_like")


@pytest.fixture
def small_checkpoint():
    """A `Small` checkpoint, not written yet."""
    return small()


@pytest.fixture
def small_with_encoder():
    """A `Small` checkpoint of an encoder-decoder, not written yet."""
    return small_encoder_decoder()
