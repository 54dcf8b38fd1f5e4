"""Subword training: the vocabularies of tensor2tensor."""

import numpy as np
import pytest

from tests.data.tokenizers.test_subword_tokenizer import Case
from tf_sparse_attention.data import SubwordTokenizer
from tf_sparse_attention.data.tokenizers.subword_training import train_subwords


def test_the_published_builder_is_reproduced_byte_by_byte(tmp_path):
    case = Case("built90", tmp_path)
    tokenizer = train_subwords(case.corpus, vocabulary_size=90)
    tokenizer.to_file(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == case.content


def test_frequent_words_become_subwords_every_character_is_kept_and_files_are_exact(tmp_path):
    tokenizer = train_subwords(["the cat\nand the dog\n\n", "the end: é"] * 50, vocabulary_size=40)
    assert {"the_", "é", ":"} <= set(tokenizer.vocabulary)
    np.testing.assert_array_equal(tokenizer.tokenize("the"), [tokenizer.vocabulary.index("the_")])
    tokenizer.to_file(tmp_path / "file")
    assert SubwordTokenizer.from_file(tmp_path / "file").vocabulary == tokenizer.vocabulary
    for text in ("Something else, 東京", "the\n\ncat"):
        assert tokenizer.detokenize(tokenizer.tokenize(text)) == text
    with pytest.raises(ValueError, match="must not have a newline in a subword"):
        SubwordTokenizer([*tokenizer.vocabulary, "a\nb"]).to_file(tmp_path / "file")


def test_the_size_is_as_close_as_possible():
    numbers = np.random.default_rng(0)
    words = ["".join(numbers.choice(list("abcdefgh"), size=numbers.integers(2, 7))) for _ in range(400)]
    documents = [" ".join(numbers.choice(words, size=3000)) for _ in range(3)]
    sizes = [train_subwords(documents, size).vocabulary_size for size in (60, 120, 240)]
    assert sizes == sorted(sizes)
    for size, wanted in zip(sizes, (60, 120, 240), strict=True):
        assert abs(size - wanted) < 0.1 * wanted


def test_invalid_arguments_are_errors(subtests):
    for name, documents, options in [
        ("documents", ["a", b"\xff"], {}),
        ("documents", [], {}),
        ("documents", ["", b""], {}),
        ("vocabulary_size", ["a"], {"vocabulary_size": 0}),
        ("max_length", ["a"], {"max_length": 0}),
        ("num_iterations", ["a"], {"num_iterations": 0}),
    ]:
        with subtests.test(name, documents=documents), pytest.raises(ValueError, match=f"`{name}`"):
            train_subwords(documents, **{"vocabulary_size": 10, **options})


def test_no_subword_is_longer_than_the_longest_allowed():
    documents = ["abcdefgh abcdefgh"] * 20
    assert max(map(len, train_subwords(documents, 40).vocabulary)) == 9
    assert max(len(piece) for piece in train_subwords(documents, 40, max_length=4).vocabulary[2:]) == 4
