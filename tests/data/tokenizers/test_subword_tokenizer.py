"""Subword tokenizer: ids of tensor2tensor in Python, graphs and SavedModels, and round trips of any text."""

import itertools
import json
import pathlib
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from tests.draws import draws, first, is_full
from tests.goldens import read_case
from tf_sparse_attention.data import SubwordTokenizer
from tf_sparse_attention.data.tokenizers.subword_graph import alphanumeric_class
from tf_sparse_attention.data.tokenizers.subword_tokenizer import split_words

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "subword.npz"
ESCAPES = list("\\_u;0123456789")
SMALL = ["<pad>_", "<EOS>_", "ab_", "ab", "a", "b", "é", "日本", "日", "本", " ", "_ ", *"<>pdEOS", *ESCAPES]
# Texts that mix words, spaces, escapes and characters that the vocabulary lacks.
TEXTS = st.text(alphabet=st.sampled_from(list("ab  \n\\_u;19é日本ß\u2028\U0001f600'")), max_size=30)
IDS = st.lists(st.integers(0, len(SMALL) - 1), max_size=20)


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


@pytest.fixture(scope="module", params=first(["built90", "hand"], 1))
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp("case"))


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


@pytest.fixture(scope="module")
def graph(small):
    """The functions of the small tokenizer as graphs, which do not depend on the number of texts."""
    return (
        tf.function(small.tokenize, [tf.TensorSpec([None], tf.string)]),
        tf.function(small.detokenize, [tf.RaggedTensorSpec([None, None], tf.int32)]),
    )


@draws(6, 40)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.lists(IDS, min_size=1, max_size=4))
@example(["", " "], [[]])
@example([" a ", "a b", "a  b "], [[]])
@example(["\\u", "\\\\u", "\\_\\", "\\9;"], [[]])
def test_any_text_has_a_round_trip_and_a_graph_agrees(small, request, texts, rows):
    ids = [small.tokenize(text) for text in texts]
    assert [small.detokenize(row) for row in ids] == texts
    np.testing.assert_array_equal(small.tokenize(tf.constant(texts[0])), ids[0])
    if not is_full():  # the graphs take seconds to create
        return
    tokenize, detokenize = request.getfixturevalue("graph")
    batch = tokenize(tf.constant([text.encode() for text in texts]))
    assert batch.to_list() == [row.tolist() for row in ids]
    assert [text.decode() for text in detokenize(batch).numpy()] == texts
    decoded = detokenize(tf.ragged.constant(rows, dtype=tf.int32, ragged_rank=1)).numpy()
    assert [text.decode() for text in decoded] == [small.detokenize(row) for row in rows]


def test_words_are_runs_of_letters_and_numbers_or_of_other_characters():
    assert split_words("one two,three ") == ["one", "two", ",", "three", " "]  # one space between words is implicit
    assert split_words(" one  two") == [" ", "one", "  ", "two"]
    assert split_words(" ") == [" "]
    assert split_words("") == []
    # All characters in a row, with the categories of Unicode as reference.
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
    is_alphanumeric = [unicodedata.category(character)[0] in "LN" for character in characters]
    runs = [
        (kind, "".join(character for character, _ in run))
        for kind, run in itertools.groupby(zip(characters, is_alphanumeric, strict=True), key=lambda pair: pair[1])
    ]
    text = "".join(characters)
    assert split_words(text) == [run for _, run in runs]
    in_graph = tf.strings.regex_replace(text.encode(), alphanumeric_class() + "+", "a").numpy().decode()
    assert in_graph == "".join("a" if kind else run for kind, run in runs)


def test_special_and_invalid_ids_are_left_out_and_invalid_code_points_are_replaced(small, subtests):
    escapes = [
        [SMALL.index(piece) for piece in ["\\", *number, ";", "_"]]
        for number in ("1114112", "99999999999999999999", "55296")
    ]
    geta_mark = "\u3013"
    for ids, text in [([0, *small.tokenize("ab"), 1, 0], "ab"), *((row, geta_mark) for row in escapes)]:
        with subtests.test(ids=ids):
            assert small.detokenize(ids) == text
            assert small.detokenize(tf.constant(ids)).numpy().decode() == text
    for ids, text in [([len(SMALL)], ""), ([-1, 5], SMALL[5])]:
        with subtests.test(ids=ids):
            with pytest.raises(ValueError, match="`ids`"):
                small.detokenize(ids)
            assert small.detokenize(tf.constant(ids)).numpy().decode() == text
    assert small.detokenize(small.tokenize(tf.constant(b"a\xffb"))).numpy().decode() == "a\ufffdb"


def test_invalid_arguments_are_errors(small, tmp_path, subtests):
    for text in (7, None, ["a"], b"a\xffb", "\ud800"):
        with subtests.test("text", text=text), pytest.raises(ValueError, match="`text`"):
            small.tokenize(text)
    for ids in ([1.5], [[3, 4]], 7):
        with subtests.test("ids", ids=ids), pytest.raises(ValueError, match="`ids`"):
            small.detokenize(ids)
    without_escapes = [piece for piece in SMALL if piece not in ("u", "9")]
    for vocabulary in ([], ["a", "b"], ["<EOS>_", "<pad>_", *ESCAPES], without_escapes):
        with subtests.test("vocabulary", vocabulary=vocabulary), pytest.raises(ValueError, match="`vocabulary`"):
            SubwordTokenizer(vocabulary)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "latin").write_bytes(b"'caf\xe9'\n")
    for name, message in [("empty", "Received: empty"), ("missing", "vocabulary file"), ("latin", "in UTF-8")]:
        with subtests.test("file", name=name), pytest.raises(ValueError, match=message):
            SubwordTokenizer.from_file(tmp_path / name)


def test_the_error_names_a_character_that_is_only_inside_longer_subwords():
    tokenizer = SubwordTokenizer([*SMALL, "xy"])
    np.testing.assert_array_equal(tokenizer.tokenize("xy"), [len(SMALL), SMALL.index("_")])
    with pytest.raises(ValueError, match=r"must have each character .* without 'x', for the word 'xa'"):
        tokenizer.tokenize("xa")
    with pytest.raises(tf.errors.InvalidArgumentError, match="each of its characters as a subword"):
        tokenizer.tokenize(tf.constant("xa"))


def test_a_repeated_subword_has_its_last_id():
    tokenizer = SubwordTokenizer([*SMALL, "ab_"])
    np.testing.assert_array_equal(tokenizer.tokenize("ab"), [len(SMALL)])
    np.testing.assert_array_equal(tokenizer.tokenize(tf.constant("ab")), [len(SMALL)])
    assert tokenizer.detokenize([2]) == "ab"


def test_clearing_the_word_cache_does_not_change_ids(small, monkeypatch):
    monkeypatch.setattr("tf_sparse_attention.data.tokenizers.subword_tokenizer.MAX_CACHE_SIZE", 2)
    tokenizer = SubwordTokenizer.from_config(json.loads(json.dumps(small.get_config())))
    for text in ("a b ab", "b a", "a ab a b"):
        np.testing.assert_array_equal(tokenizer.tokenize(text), small.tokenize(text))


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


def test_quotes_are_optional_and_lines_end_only_in_newlines(tmp_path):
    lines = ["<pad>_", '"<EOS>_"', "'\u2028'", "'\"'", *ESCAPES, "  "]
    (tmp_path / "file").write_text("\n".join(lines), encoding="utf-8")
    found = SubwordTokenizer.from_file(tmp_path / "file").vocabulary
    assert found == ["<pad>_", "<EOS>_", "\u2028", '"', *ESCAPES, ""]
