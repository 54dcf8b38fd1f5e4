"""Token stores: contents, identity, atomic builds and damage."""

import os
import shutil
import time

import numpy as np
import pytest

from tf_sparse_attention.data import ByteTokenizer, TokenStore, open_token_store
from tf_sparse_attention.data.stores import array_store


class CountingTokenizer(ByteTokenizer):
    """A tokenizer that adds an offset to each byte, with a vocabulary of any size."""

    def __init__(self, vocabulary_size=258, offset=0):
        self.vocabulary_size, self.offset = vocabulary_size, offset

    def tokenize(self, text):
        return super().tokenize(text) + self.offset

    def get_config(self):
        return {"vocabulary_size": self.vocabulary_size, "offset": self.offset}


def folders(path):
    return sorted(folder.name for folder in (path / "token_stores").iterdir())


def test_a_store_has_documents_with_the_end_id_and_counts_of_tokens_bytes_and_words(make_store):
    store = make_store([b"ab", "", "é"])
    np.testing.assert_array_equal(store.tokens, [99, 100, 1, 1, 0xC3 + 2, 0xA9 + 2, 1])
    np.testing.assert_array_equal(store.document_offsets, [0, 3, 4, 7])
    np.testing.assert_array_equal(store.document(2), [0xC3 + 2, 0xA9 + 2, 1])
    store = make_store(["one two\nthree", "é\u00a0e"], fingerprint="words")
    assert (store.num_documents, store.num_bytes, store.num_words) == (2, 13 + 5, 3 + 2)
    assert store.num_tokens == store.num_bytes + store.num_documents
    tokenizer = {"class_name": "ByteTokenizer", "config": {}}
    assert store.metadata["identity"] == {"source": "words", "split": "train", "tokenizer": tokenizer}
    store = make_store([b"\xa9 tail \xc3"], fingerprint="bytes")  # not UTF-8
    assert ByteTokenizer().detokenize_bytes(store.tokens) == b"\xa9 tail \xc3"
    assert store.num_words == 3


def test_words_are_counted_as_pg19_counts_them(shared_data, make_store):
    book = shared_data / "books" / "validation"
    rows = (line.split(",") for line in (shared_data / "books" / "books.csv").read_text().splitlines())
    words = {row[0]: row for row in rows}
    path = min(book.iterdir(), key=lambda path: path.stat().st_size)
    store = make_store([path.read_bytes()])
    assert str(store.num_words) in words[path.stem]


def test_tokens_have_the_smallest_dtype_for_the_vocabulary(make_source, subtests):
    for size, dtype in [(256, "uint8"), (258, "uint16"), (65_536, "uint16"), (65_537, "uint32")]:
        with subtests.test(size=size):
            store = open_token_store(make_source([b"ab"]), CountingTokenizer(size), "train")
            assert store.tokens.dtype == dtype
            assert isinstance(store.tokens, np.memmap)


def test_one_document_at_a_time_is_in_memory(make_source):
    alive = []

    def documents():
        for number in range(5):
            assert len(alive) == number  # read only after the previous document was written
            alive.append(number)
            yield b"text"

    assert open_token_store(make_source(documents()), ByteTokenizer(), "train").num_documents == 5


def test_a_store_is_built_and_verified_once(make_store, monkeypatch):
    first = make_store([b"one"])
    monkeypatch.setattr(array_store, "_crc32", lambda file: pytest.fail(f"{file} was read again"))
    np.testing.assert_array_equal(make_store([b"never read"]).tokens, first.tokens)


def test_another_source_split_or_tokenizer_is_another_store(make_source, tmp_path):
    open_token_store(make_source([b"one"]), ByteTokenizer(), "train")
    other = open_token_store(make_source([b"two"], fingerprint="changed"), ByteTokenizer(), "train")
    assert ByteTokenizer().detokenize(other.tokens) == "two"
    other = open_token_store(make_source([b"two"]), ByteTokenizer(), "test")
    assert ByteTokenizer().detokenize(other.tokens) == "two"
    other = open_token_store(make_source([b"two"]), CountingTokenizer(300, offset=5), "train")
    np.testing.assert_array_equal(other.tokens, [ord("t") + 7, ord("w") + 7, ord("o") + 7, 1])
    assert len(folders(tmp_path)) == 4
    open_token_store(make_source([b"one"]), ByteTokenizer(), "train", folder=tmp_path / "here")
    assert len(list((tmp_path / "here").iterdir())) == 1


def test_a_build_that_fails_midway_leaves_nothing(make_source, tmp_path):
    def documents():
        yield b"one"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_token_store(make_source(documents()), ByteTokenizer(), "train")
    assert folders(tmp_path) == []
    store = open_token_store(make_source([b"two"]), ByteTokenizer(), "train")
    assert ByteTokenizer().detokenize(store.tokens) == "two"


@pytest.fixture
def killed_build(make_source, tmp_path, monkeypatch):
    """Path of the files of a build that was killed before it could clean up."""

    def documents():
        yield b"one"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        open_token_store(make_source(documents()), ByteTokenizer(), "train")
    (left,) = (tmp_path / "token_stores").iterdir()
    return left


def test_an_incomplete_build_is_never_used_and_is_removed_after_a_day(killed_build, make_store):
    with pytest.raises(ValueError, match=r"metadata.json, which is missing"):
        TokenStore(next(killed_build.iterdir()))
    assert ByteTokenizer().detokenize(make_store([b"two"]).tokens) == "two"
    assert killed_build.exists()  # another process could still be writing it
    yesterday = time.time() - 25 * 3600
    for path in (*killed_build.rglob("*"), killed_build):
        os.utime(path, (yesterday, yesterday))
    make_store([b"three"], fingerprint="other")
    assert not killed_build.exists()


def test_concurrent_builds_leave_one_valid_store(make_source, tmp_path):
    def documents():
        yield b"one"
        # Another process builds the whole store before this process continues.
        open_token_store(make_source([b"one", b"two"]), ByteTokenizer(), "train")
        yield b"two"

    store = open_token_store(make_source(documents()), ByteTokenizer(), "train")
    assert ByteTokenizer().detokenize(store.tokens) == "onetwo"
    assert len(folders(tmp_path)) == 1


def test_the_error_for_a_damaged_store_says_what_to_delete(make_store, tmp_path, monkeypatch, subtests):
    make_store([b"one"])
    (folder,) = (tmp_path / "token_stores").iterdir()
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, content in whole.items():
        changed = content.replace(b"1", b"2") if name == "metadata.json" else b"\7" + content[1:]
        for damage, damaged in [("cut", content[:-3]), ("changed", changed), ("missing", None)]:
            (folder / name).unlink()
            if damaged is not None:
                (folder / name).write_bytes(damaged)
            monkeypatch.setattr(array_store, "_checked", set())  # as in a new process
            found = "which is missing" if damage == "missing" else "with invalid content"
            message = rf"delete {folder} to prepare .* {folder}/{name}, {found}"
            with subtests.test(name=name, damage=damage):
                with pytest.raises(ValueError, match=message):
                    TokenStore(folder)
                if (damage, name) == ("missing", "metadata.json"):  # which is written last
                    assert ByteTokenizer().detokenize(make_store([b"one"]).tokens) == "one"
                else:
                    with pytest.raises(ValueError, match=message):
                        make_store([b"one"])
            (folder / name).write_bytes(content)
    monkeypatch.setattr(array_store, "FORMAT", 0)
    with pytest.raises(ValueError, match=r"metadata.json, with invalid content"):
        TokenStore(folder)


def test_swapped_stores_are_an_error(make_source, tmp_path):
    for split in ("train", "test"):
        open_token_store(make_source([split.encode()]), ByteTokenizer(), split)
    test, train = sorted((tmp_path / "token_stores").iterdir())
    train.rename(tmp_path / "aside")
    test.rename(train)
    (tmp_path / "aside").rename(test)
    with pytest.raises(ValueError, match=r"Prepared data must be .* with split='test' instead of 'train'."):
        open_token_store(make_source([b"train"]), ByteTokenizer(), "train")


def test_splits_without_documents_and_ids_outside_the_vocabulary_are_errors(make_source, subtests):
    with pytest.raises(ValueError, match="`split` must have documents"):
        open_token_store(make_source([]), ByteTokenizer(), "test")
    for offset in (-2 - ord("a"), -1 - ord("a"), -300, 256 - ord("a")):  # special ids, and ids outside
        with subtests.test(offset=offset), pytest.raises(ValueError, match=r"`tokenizer` .*id -?\d+"):
            open_token_store(make_source([b"a"]), CountingTokenizer(offset=offset), "train")
