"""SentencePiece and WordPiece have the interface of other tokenizers and are marked as lossy."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.data import (
    ByteTokenizer,
    SentencePieceTokenizer,
    SubwordTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    open_token_store,
    train_subwords,
)
from tf_sparse_attention.data.tokenizers.text_tokenizer import TextTokenizer

pytest.importorskip("tensorflow_text", reason="needs tensorflow-text, which there is not for every system")

PIECES = ["[UNK]", "the", "cat", "##s", "sat", ".", ",", "a", "##b"]
TEXTS = ["The cats sat.", "", "a cat, ab", "the the"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Contents of two small SentencePiece models by kind."""
    trainer = pytest.importorskip("sentencepiece", reason="needs sentencepiece to make a model").SentencePieceTrainer
    folder = tmp_path_factory.mktemp("sentencepiece")
    (folder / "corpus").write_text("The cats sat on the mat.\nA cat, a bat and the rat.\n" * 20, encoding="utf-8")
    found = {}
    for kind in ("unigram", "bpe"):
        trainer.train(
            input=str(folder / "corpus"),
            model_prefix=str(folder / kind),
            vocab_size=40,
            model_type=kind,
            minloglevel=2,
            hard_vocab_limit=False,
        )
        found[kind] = (folder / f"{kind}.model").read_bytes()
    return found


@pytest.fixture(params=["wordpiece", "unigram", "bpe"])
def tokenizer(request):
    if request.param == "wordpiece":
        return WordPieceTokenizer(PIECES)
    return SentencePieceTokenizer(request.getfixturevalue("models")[request.param])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_ids_are_those_of_sentencepiece_plus_two(kind, models):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=models[kind])
    tokenizer = SentencePieceTokenizer(models[kind])
    assert tokenizer.vocabulary_size == processor.get_piece_size() + 2
    for text in (*TEXTS, "The  zebra — naïve"):
        np.testing.assert_array_equal(tokenizer.tokenize(text), np.array(processor.encode(text), int) + 2)
        assert tokenizer.detokenize(tokenizer.tokenize(text)) == processor.decode(processor.encode(text))


def test_words_become_the_longest_pieces():
    ids = WordPieceTokenizer(PIECES).tokenize("The cats sat.")
    np.testing.assert_array_equal(ids, [1 + 2, 2 + 2, 3 + 2, 4 + 2, 5 + 2])
    assert ids.dtype == np.int32


def test_wordpiece_is_lossy():
    assert (
        WordPieceTokenizer(PIECES).detokenize(WordPieceTokenizer(PIECES).tokenize("The  cats, xyz"))
        == "the cats , [UNK]"
    )
    assert WordPieceTokenizer([*PIECES, "The"], lowercase=False).detokenize([1 + 2 + 8]) == "The"


def test_a_graph_agrees_with_python(tokenizer):
    batch = tf.function(tokenizer.tokenize)(tf.constant(TEXTS))
    ids = [tokenizer.tokenize(text) for text in TEXTS]
    assert batch.to_list() == [row.tolist() for row in ids]
    texts = tf.function(tokenizer.detokenize)(batch)
    assert [text.decode() for text in texts.numpy()] == [tokenizer.detokenize(row) for row in ids]
    np.testing.assert_array_equal(tokenizer.tokenize(tf.constant(TEXTS[0])), ids[0])
    assert tokenizer.detokenize(tf.constant(ids[0])).numpy().decode() == tokenizer.detokenize(ids[0])


def test_special_ids_are_not_text(tokenizer):
    ids = tokenizer.tokenize("a cat")
    assert min(ids) >= 2
    assert tokenizer.detokenize([0, *ids, 1, 0]) == tokenizer.detokenize(ids)
    padded = tf.constant([[0, *ids, 1, 0, tokenizer.vocabulary_size]])
    assert tokenizer.detokenize(padded).numpy()[0].decode() == tokenizer.detokenize(ids)


def test_decoded_text_has_a_round_trip(tokenizer):
    for text in TEXTS:
        once = tokenizer.detokenize(tokenizer.tokenize(text))
        assert tokenizer.detokenize(tokenizer.tokenize(once)) == once


def test_lossy_tokenizers_are_labelled(tokenizer):
    assert not tokenizer.is_lossless
    assert ByteTokenizer().is_lossless
    assert train_subwords(["a"], 20).is_lossless
    assert issubclass(SubwordTokenizer, type(ByteTokenizer()).__mro__[1])


def test_a_config_round_trip_gives_an_equal_tokenizer(tokenizer):
    again = type(tokenizer).from_config(json.loads(json.dumps(tokenizer.get_config())))
    np.testing.assert_array_equal(again.tokenize(TEXTS[0]), tokenizer.tokenize(TEXTS[0]))
    assert again.vocabulary_size == tokenizer.vocabulary_size


def test_the_tokenizer_works_in_a_token_store(tokenizer, make_source):
    store = open_token_store(make_source(TEXTS[::2]), tokenizer, "train")
    np.testing.assert_array_equal(store.tokens, [*tokenizer.tokenize(TEXTS[0]), 1, *tokenizer.tokenize(TEXTS[2]), 1])


def test_wrong_input_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="`text` must be UTF-8"):
        tokenizer.tokenize(b"\xff")
    with pytest.raises(ValueError, match="`text` must be str, bytes or a string tensor"):
        tokenizer.tokenize(3)
    with pytest.raises(ValueError, match="of rank 0 or 1"):
        tokenizer.tokenize(tf.constant([["a"]]))
    with pytest.raises(ValueError, match=r"`ids` must be in \[0"):
        tokenizer.detokenize([tokenizer.vocabulary_size])
    with pytest.raises(ValueError, match="an integer tensor of rank 1 or 2"):
        tokenizer.detokenize(tf.constant([1.0]))


def test_files_are_read(models, tmp_path):
    (tmp_path / "vocabulary.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    np.testing.assert_array_equal(WordPieceTokenizer.from_file(tmp_path / "vocabulary.txt").tokenize("cats"), [4, 5])
    (tmp_path / "spm.model").write_bytes(models["bpe"])
    assert SentencePieceTokenizer.from_file(tmp_path / "spm.model").tokenize("cat").size
    for make in (WordPieceTokenizer, SentencePieceTokenizer):
        with pytest.raises(ValueError, match="`path` must be"):
            make.from_file(tmp_path / "missing")


@pytest.mark.parametrize("vocabulary", [["a"], ["[UNK]", "a", "a"]])
def test_word_pieces_need_the_unknown_piece_and_no_repetition(vocabulary):
    with pytest.raises(ValueError, match="and no repeated piece"):
        WordPieceTokenizer(vocabulary)


def test_an_invalid_model_is_an_error():
    with pytest.raises(ValueError, match=r"`model` must be a SentencePiece model. Received: 5 bytes"):
        SentencePieceTokenizer(b"hello")


def test_without_tensorflow_text_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ImportError, match=r"pip install 'tf-sparse-attention\[text\]'"):
        WordPieceTokenizer(["[UNK]"]).tokenize("a")


@pytest.mark.parametrize("method", ["tokenize", "detokenize"])
def test_the_error_names_a_missing_method(method):
    class Unfinished(Tokenizer):
        pass

    with pytest.raises(NotImplementedError, match=f"Unfinished must define `{method}`"):
        getattr(Unfinished(), method)([])


def test_the_error_names_a_missing_method_of_a_text_tokenizer():
    class Unfinished(TextTokenizer):
        pass

    with pytest.raises(NotImplementedError, match="Unfinished must define `_make`"):
        _ = Unfinished().inner
