"""SentencePiece and WordPiece have the interface of other tokenizers and are marked as lossy."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.draws import first
from tf_sparse_attention.data import (
    ByteTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    open_token_store,
)
from tf_sparse_attention.data.tokenizers.subword_training import train_subwords

pytest.importorskip("tensorflow_text", reason="needs tensorflow-text, which there is not for every system")

PIECES = ["[UNK]", "the", "cat", "##s", "sat", ".", ",", "a", "##b"]
TEXTS = ["The cats sat.", "", "a cat, ab", "the the"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Contents of two small SentencePiece models by kind."""
    trainer = pytest.importorskip("sentencepiece", reason="needs sentencepiece to make a model").SentencePieceTrainer
    folder = tmp_path_factory.mktemp("sentencepiece")
    (folder / "corpus").write_text("The cats sat on the mat.\nA cat, a bat and the rat.\n" * 20, encoding="utf-8")
    found, settings = {}, {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2}
    for kind in ("unigram", "bpe"):
        trainer.train(input=str(folder / "corpus"), model_prefix=str(folder / kind), model_type=kind, **settings)
        found[kind] = (folder / f"{kind}.model").read_bytes()
    return found


@pytest.fixture(params=first(["wordpiece", "unigram", "bpe"], 1))
def tokenizer(request):
    if request.param == "wordpiece":
        return WordPieceTokenizer(PIECES)
    return SentencePieceTokenizer(request.getfixturevalue("models")[request.param])


@pytest.mark.parametrize("kind", first(["unigram", "bpe"], 1))
def test_ids_are_those_of_sentencepiece_plus_two(kind, models, tmp_path):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=models[kind])
    (tmp_path / "spm.model").write_bytes(models[kind])
    tokenizer = SentencePieceTokenizer.from_file(tmp_path / "spm.model")
    assert tokenizer.vocabulary_size == processor.get_piece_size() + 2
    for text in (*TEXTS, "The  zebra — naïve"):
        np.testing.assert_array_equal(tokenizer.tokenize(text), np.array(processor.encode(text), int) + 2)
        assert tokenizer.detokenize(tokenizer.tokenize(text)) == processor.decode(processor.encode(text))


def test_words_become_the_longest_pieces_and_case_is_lost(tmp_path):
    (tmp_path / "vocabulary.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    tokenizer = WordPieceTokenizer.from_file(tmp_path / "vocabulary.txt")
    ids = tokenizer.tokenize("The cats sat.")
    np.testing.assert_array_equal(ids, [1 + 2, 2 + 2, 3 + 2, 4 + 2, 5 + 2])
    assert ids.dtype == np.int32
    assert tokenizer.detokenize(tokenizer.tokenize("The  cats, xyz")) == "the cats , [UNK]"
    assert WordPieceTokenizer([*PIECES, "The"], lowercase=False).detokenize([1 + 2 + 8]) == "The"


def test_a_graph_agrees_with_python_and_special_ids_are_left_out(tokenizer):
    ids = [tokenizer.tokenize(text) for text in TEXTS]
    batch = tf.function(tokenizer.tokenize)(tf.constant(TEXTS))
    assert batch.to_list() == [row.tolist() for row in ids]
    texts = [tokenizer.detokenize(row) for row in ids]
    padded = [[0, *row, 1, 0, tokenizer.vocabulary_size] for row in batch.to_list()]
    decoded = tf.function(tokenizer.detokenize)(tf.ragged.constant(padded, dtype=tf.int32, ragged_rank=1))
    assert [text.decode() for text in decoded.numpy()] == texts
    np.testing.assert_array_equal(tokenizer.tokenize(tf.constant(TEXTS[0])), ids[0])
    assert tokenizer.detokenize(tf.constant(ids[0])).numpy().decode() == texts[0]
    assert min(ids[0]) >= 2 and tokenizer.detokenize([0, *ids[0], 1, 0]) == texts[0]


def test_a_lossy_tokenizer_keeps_decoded_text_in_copies_and_token_stores(tokenizer, make_source):
    assert not tokenizer.is_lossless and ByteTokenizer().is_lossless and train_subwords(["a"], 20).is_lossless
    for text in TEXTS:
        once = tokenizer.detokenize(tokenizer.tokenize(text))
        assert tokenizer.detokenize(tokenizer.tokenize(once)) == once
    again = type(tokenizer).from_config(json.loads(json.dumps(tokenizer.get_config())))
    assert again.vocabulary_size == tokenizer.vocabulary_size
    store = open_token_store(make_source(TEXTS[::2]), again, "train")
    np.testing.assert_array_equal(store.tokens, [*tokenizer.tokenize(TEXTS[0]), 1, *tokenizer.tokenize(TEXTS[2]), 1])


def test_invalid_arguments_are_errors(tmp_path, subtests):
    tokenizer = WordPieceTokenizer(PIECES)
    for name, call in [
        ("text", lambda: tokenizer.tokenize(b"\xff")),
        ("text", lambda: tokenizer.tokenize(3)),
        ("text", lambda: tokenizer.tokenize(tf.constant([["a"]]))),
        ("ids", lambda: tokenizer.detokenize([tokenizer.vocabulary_size])),
        ("ids", lambda: tokenizer.detokenize(tf.constant([1.0]))),
        ("vocabulary", lambda: WordPieceTokenizer(["a"])),
        ("vocabulary", lambda: WordPieceTokenizer(["[UNK]", "a", "a"])),
        ("model", lambda: SentencePieceTokenizer(b"hello")),
        ("path", lambda: WordPieceTokenizer.from_file(tmp_path / "missing")),
        ("path", lambda: SentencePieceTokenizer.from_file(tmp_path / "missing")),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            call()


def test_without_tensorflow_text_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ImportError, match=r"pip install 'tf-sparse-attention\[text\]'"):
        WordPieceTokenizer(["[UNK]"]).tokenize("a")
