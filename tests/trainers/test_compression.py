"""Baselines for bits per byte: gzip and xz."""

import gzip
import lzma

import numpy as np
import pytest

from tf_sparse_attention.trainers.tasks.language_model import compressed_bits_per_byte


def test_sizes_are_those_of_the_documents_as_one_stream():
    generator = np.random.default_rng(0)
    documents = [bytes(generator.integers(97, 105, 500, dtype=np.uint8)) for _ in range(4)]
    joined = b"".join(documents)
    assert compressed_bits_per_byte(iter(documents)) == {
        "gzip -9": 8 * len(gzip.compress(joined, 9)) / len(joined),
        "xz -9": 8 * len(lzma.compress(joined, preset=9)) / len(joined),
    }


def test_a_repeated_document_costs_little():
    once = np.random.default_rng(0).bytes(3000)
    bits = compressed_bits_per_byte([once, once])
    assert bits["gzip -9"] == pytest.approx(4, abs=0.3)


def test_nothing_has_no_bits_per_byte():
    assert compressed_bits_per_byte([]) == {"gzip -9": None, "xz -9": None}
