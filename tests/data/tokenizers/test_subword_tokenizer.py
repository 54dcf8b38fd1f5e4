"""Subword tokenizer: ids of tensor2tensor in Python, graphs and SavedModels, and round trips of any text."""

import json
import pathlib
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from tests.draws import draws
from tests.goldens import read_case
from tf_sparse_attention.data import SubwordTokenizer, open_token_store
from tf_sparse_attention.data.tokenizers.subword_rules import WORDS, alphanumeric_class, split_words

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "subword.npz"
ESCAPES = list("\\_u;0123456789")
SMALL = ["<pad>_", "<EOS>_", "ab_", "ab", "a", "b", "é", "日本", "日", "本", " ", "_ ", *"<>pdEOS", *ESCAPES]
# Texts that mix words, spaces, escapes and characters that the vocabulary lacks.
TEXTS = st.text(alphabet=st.sampled_from(list("ab  \n\\_u;19é日本ß\u2028\U0001f600'")), max_size=30) | st.text(
    max_size=20
)


class Case:
    """A vocabulary of the published code, with strings, ids and decoded strings."""

    def __init__(self, name, folder):
        with np.load(GOLDEN) as goldens:
            _, arrays = read_case(goldens, name)
        path = folder / "vocabulary"
        self.content = arrays["vocab_file_bytes"].tobytes()
        path.write_bytes(self.content)
        self.tokenizer = SubwordTokenizer.from_file(path)
        self.strings, self.decoded = (json.loads(str(arrays[f"{key}_json"])) for key in ("strings", "decoded"))
        self.ids = np.split(arrays["ids_flat"], arrays["ids_offsets"][1:-1])
        self.corpus = json.loads(str(arrays["corpus_json"])) if "corpus_json" in arrays else None


@pytest.fixture(params=["hand", "built90"])
def case(request, tmp_path):
    return Case(request.param, tmp_path)


@pytest.fixture(scope="module")
def small():
    return SubwordTokenizer(SMALL)


def test_every_string_has_the_published_ids(case):
    assert len(case.strings) == 37
    for text, ids in zip(case.strings, case.ids, strict=True):
        np.testing.assert_array_equal(case.tokenizer.tokenize(text), ids, err_msg=repr(text))
        np.testing.assert_array_equal(case.tokenizer.tokenize(text.encode()), ids)


def test_published_ids_decode_as_published(case):
    for text, ids in zip(case.decoded, case.ids, strict=True):
        assert case.tokenizer.detokenize(ids) == text
        assert case.tokenizer.detokenize_bytes(ids) == text.encode()


def test_a_graph_gives_the_published_ids_and_texts(case):
    tokenize, detokenize = tf.function(case.tokenizer.tokenize), tf.function(case.tokenizer.detokenize)
    ids = tokenize(tf.constant(case.strings))
    assert ids.to_list() == [row.tolist() for row in case.ids]
    assert [text.decode() for text in detokenize(ids).numpy()] == case.decoded
    for text, row in zip(case.strings, case.ids, strict=True):
        np.testing.assert_array_equal(tokenize(tf.constant(text)), row)


@draws(12, 40)
@given(st.lists(TEXTS, min_size=1, max_size=4))
@example(["", " "])
@example([" a ", "a b", "a  b "])
@example(["\\u", "\\\\u", "\\_\\", "\\9;"])
def test_any_text_has_a_round_trip_and_a_graph_agrees(small, texts):
    ids = [small.tokenize(text) for text in texts]
    assert [small.detokenize(row) for row in ids] == texts
    batch = small.tokenize(tf.constant([text.encode() for text in texts]))
    assert batch.to_list() == [row.tolist() for row in ids]
    assert [text.decode() for text in small.detokenize(batch).numpy()] == texts


@draws(25, 100)
@given(st.lists(st.integers(0, len(SMALL) - 1), max_size=20))
def test_a_graph_decodes_any_ids_as_python_does(small, ids):
    assert small.detokenize(tf.constant(ids, tf.int32)).numpy().decode() == small.detokenize(ids)


def test_the_longest_subword_is_taken_from_the_left(small):
    pieces = [SMALL[number] for number in small.tokenize("abab b")]
    assert pieces == ["ab", "ab_", "b", "_"]


def test_a_single_space_between_words_is_implicit():
    assert split_words("one two,three ") == ["one", "two", ",", "three", " "]
    assert split_words(" one  two") == [" ", "one", "  ", "two"]
    assert split_words(" ") == [" "]
    assert split_words("") == []


def test_letters_and_numbers_are_those_of_their_unicode_categories():
    pattern = alphanumeric_class() + "+"
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
    expected = np.array([unicodedata.category(chr(code))[0] in "LN" for code in codes])
    after = np.where(expected, ".", "a")  # of the other kind, so that a word ends before it
    assert all(WORDS.match(chr(code) + other).end() == 1 for code, other in zip(codes, after, strict=True))
    in_graph = tf.strings.regex_full_match(tf.strings.unicode_encode(tf.constant(codes)[:, None], "UTF-8"), pattern)
    np.testing.assert_array_equal(in_graph, expected)


def test_special_ids_are_left_out_of_text(small):
    ids = [0, *small.tokenize("ab"), 1, 0]
    assert small.detokenize(ids) == "ab"
    assert small.detokenize(tf.constant(ids)).numpy() == b"ab"


def test_an_invalid_code_point_decodes_to_the_geta_mark(small):
    for number in ("1114112", "99999999999999999999", "55296"):
        ids = [SMALL.index(piece) for piece in ["\\", *number, ";", "_"]]
        assert small.detokenize(ids) == "\u3013"
        assert small.detokenize(tf.constant(ids)).numpy().decode() == "\u3013"


def test_bytes_that_are_not_utf8_are_an_error_and_in_a_graph_a_replacement(small):
    with pytest.raises(ValueError, match=r"`text` must be UTF-8. Received: 3 bytes"):
        small.tokenize(b"a\xffb")
    graph = small.detokenize(small.tokenize(tf.constant(b"a\xffb")))
    assert graph.numpy().decode() == "a\ufffdb"


@pytest.mark.parametrize("text", [7, None, ["a"]])
def test_other_types_are_an_error(small, text):
    with pytest.raises(ValueError, match="`text` must be str, bytes or a string tensor"):
        small.tokenize(text)


def test_a_lone_surrogate_is_an_error(small):
    with pytest.raises(ValueError, match="surrogates not allowed"):
        small.tokenize("\ud800")


@pytest.mark.parametrize("ids", [[len(SMALL)], [-1, 5]])
def test_an_id_outside_the_vocabulary_is_an_error(small, ids):
    with pytest.raises(ValueError, match=rf"`ids` must be in \[0, {len(SMALL)}\)"):
        small.detokenize(ids)
    assert small.detokenize(tf.constant(ids)).numpy().decode() in ("", SMALL[5])


@pytest.mark.parametrize("ids", [[1.5], [[3, 4]], 7])
def test_ids_must_be_a_flat_sequence_of_integers(small, ids):
    with pytest.raises(ValueError, match="`ids` must be a flat sequence of integers"):
        small.detokenize(ids)


def test_the_error_names_a_character_that_is_only_inside_longer_subwords():
    tokenizer = SubwordTokenizer([*SMALL, "xy"])
    np.testing.assert_array_equal(tokenizer.tokenize("xy"), [len(SMALL), SMALL.index("_")])
    with pytest.raises(ValueError, match=r"must have each character .* without 'x', for the word 'xa'"):
        tokenizer.tokenize("xa")
    with pytest.raises(tf.errors.InvalidArgumentError, match="each of its characters as a subword"):
        tokenizer.tokenize(tf.constant("xa"))


@pytest.mark.parametrize("vocabulary", [[], ["a", "b"], ["<EOS>_", "<pad>_", *ESCAPES]])
def test_a_vocabulary_begins_with_the_special_subwords(vocabulary):
    with pytest.raises(ValueError, match="`vocabulary` must begin with"):
        SubwordTokenizer(vocabulary)


def test_a_vocabulary_without_the_characters_of_escape_sequences_is_an_error():
    with pytest.raises(ValueError, match="without u9"):
        SubwordTokenizer([piece for piece in SMALL if piece not in ("u", "9")])


def test_a_repeated_subword_has_its_last_id():
    tokenizer = SubwordTokenizer([*SMALL, "ab_"])
    np.testing.assert_array_equal(tokenizer.tokenize("ab"), [len(SMALL)])
    np.testing.assert_array_equal(tokenizer.tokenize(tf.constant("ab")), [len(SMALL)])
    assert tokenizer.detokenize([2]) == "ab"


def test_a_vocabulary_file_has_an_exact_round_trip(case, tmp_path):
    case.tokenizer.to_file(tmp_path / "folder" / "copy")
    assert (tmp_path / "folder" / "copy").read_bytes() == case.content
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["copy"]


def test_quotes_are_optional_and_lines_end_only_in_newlines(tmp_path):
    lines = ["<pad>_", '"<EOS>_"', "'\u2028'", "'\"'", *ESCAPES, "  "]
    (tmp_path / "file").write_text("\n".join(lines), encoding="utf-8")
    found = SubwordTokenizer.from_file(tmp_path / "file").vocabulary
    assert found == ["<pad>_", "<EOS>_", "\u2028", '"', *ESCAPES, ""]


def test_an_empty_or_missing_file_or_another_encoding_is_an_error(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "latin").write_bytes(b"'caf\xe9'\n")
    for name, message in (
        ("empty", "Received: empty"),
        ("missing", "must be a vocabulary file"),
        ("latin", "in UTF-8"),
    ):
        with pytest.raises(ValueError, match=message):
            SubwordTokenizer.from_file(tmp_path / name)


def test_a_config_round_trip_gives_an_equal_tokenizer(small):
    again = SubwordTokenizer.from_config(json.loads(json.dumps(small.get_config())))
    np.testing.assert_array_equal(again.tokenize("日本 ab"), small.tokenize("日本 ab"))


def test_clearing_the_word_cache_does_not_change_ids(small, monkeypatch):
    monkeypatch.setattr("tf_sparse_attention.data.tokenizers.subword_tokenizer.MAX_CACHE_SIZE", 2)
    tokenizer = SubwordTokenizer(SMALL)
    for text in ("a b ab", "b a", "a ab a b"):
        np.testing.assert_array_equal(tokenizer.tokenize(text), small.tokenize(text))


@pytest.mark.full
def test_a_tf_data_pipeline_has_subwords(small):
    texts = ["ab a", "", "日本 é"]
    rows = tf.data.Dataset.from_tensor_slices(texts).map(small.tokenize)
    assert [row.tolist() for row in rows.as_numpy_iterator()] == [small.tokenize(text).tolist() for text in texts]


@pytest.mark.full
def test_a_saved_model_has_subwords_without_this_library(small, tmp_path, run_python):
    module = tf.Module()
    module.tokenize = tf.function(lambda text: small.tokenize(text).to_tensor(), [tf.TensorSpec([None], tf.string)])
    module.detokenize = tf.function(small.detokenize, [tf.TensorSpec([None, None], tf.int32)])
    tf.saved_model.save(module, tmp_path / "served")
    printed = run_python(f"""
import sys
sys.modules["tf_sparse_attention"] = None
import tensorflow as tf
served = tf.saved_model.load({str(tmp_path / "served")!r})
ids = served.tokenize(tf.constant(["ab \\\\ \U0001f600", "b"]))
print(served.detokenize(ids).numpy()[0].decode())
print(ids.numpy()[1][:2].tolist())
""")
    assert printed.splitlines() == ["ab \\ \U0001f600", str(small.tokenize("b").tolist())]


def test_token_stores_depend_on_the_vocabulary(small, make_source):
    source = make_source(["ab a", "b"])
    store = open_token_store(source, small, "train")
    np.testing.assert_array_equal(store.tokens, [*small.tokenize("ab a"), 1, *small.tokenize("b"), 1])
    other = open_token_store(source, SubwordTokenizer([*SMALL, "b_"]), "train")
    assert other.vocabulary_size == store.vocabulary_size + 1
    assert other.tokens[-2] == len(SMALL)
