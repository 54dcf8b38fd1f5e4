"""Token stores: contents, identity, atomic builds, damage, and remote stores."""

import os
import shutil
import time

import numpy as np
import pytest

from tests import remote_paths  # noqa: F401  # registers the schemes
from tests.draws import first
from tf_sparse_attention import remote_files
from tf_sparse_attention.data import ByteTokenizer, TokenStore, array_store, open_token_store
from tf_sparse_attention.data.array_store import DamagedDataError


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


def text_of(store):
    return ByteTokenizer().detokenize(store.tokens)


def interrupted():
    yield b"one"
    raise KeyboardInterrupt


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


@pytest.mark.parametrize(("size", "dtype"), [(256, "uint8"), (258, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_tokens_have_the_smallest_dtype_for_the_vocabulary(make_source, size, dtype):
    tokens = open_token_store(make_source([b"ab"]), CountingTokenizer(size), "train").tokens
    assert tokens.dtype == dtype and isinstance(tokens, np.memmap)


def test_one_document_at_a_time_is_in_memory(make_store):
    alive = []

    def documents():
        for number in range(5):
            assert len(alive) == number  # read only after the previous document was written
            alive.append(number)
            yield b"text"

    assert make_store(documents()).num_documents == 5


def test_a_store_is_built_and_verified_once(make_store, monkeypatch):
    first = make_store([b"one"])
    monkeypatch.setattr(array_store, "_crc32", lambda file: pytest.fail(f"{file} was read again"))
    np.testing.assert_array_equal(make_store([b"never read"]).tokens, first.tokens)


def test_another_source_split_or_tokenizer_is_another_store(make_source, make_store, tmp_path):
    make_store([b"one"])
    assert text_of(make_store([b"two"], fingerprint="changed")) == "two"
    assert text_of(open_token_store(make_source([b"two"]), ByteTokenizer(), "test")) == "two"
    other = open_token_store(make_source([b"two"]), CountingTokenizer(300, offset=5), "train")
    np.testing.assert_array_equal(other.tokens, [ord("t") + 7, ord("w") + 7, ord("o") + 7, 1])
    assert len(folders(tmp_path)) == 4
    open_token_store(make_source([b"one"]), ByteTokenizer(), "train", folder=tmp_path / "here")
    assert len(list((tmp_path / "here").iterdir())) == 1


def test_a_build_that_fails_midway_leaves_nothing(make_store, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make_store(interrupted())
    assert folders(tmp_path) == []


def test_an_incomplete_build_of_a_killed_process_is_never_used_and_is_removed_after_a_day(
    make_store, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        make_store(interrupted())
    (left,) = (tmp_path / "token_stores").iterdir()
    with pytest.raises(ValueError, match=r"metadata.json, which is missing"):
        TokenStore(next(left.iterdir()))
    assert text_of(make_store([b"two"])) == "two"
    assert left.exists()  # another process could still be writing it
    yesterday = time.time() - 25 * 3600
    for path in (*left.rglob("*"), left):
        os.utime(path, (yesterday, yesterday))
    make_store([b"three"], fingerprint="other")
    assert not left.exists()


def test_concurrent_builds_leave_one_valid_store(make_store, tmp_path):
    def documents():
        yield b"one"
        make_store([b"one", b"two"])  # another process builds the whole store before this process continues
        yield b"two"

    assert text_of(make_store(documents())) == "onetwo"
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
                    assert text_of(make_store([b"one"])) == "one"
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


@pytest.fixture(params=first(["memory", "disk"], 1))
def open_at(request, make_source, tmp_path, monkeypatch):
    """Function that opens a remote store, and builds it from the given documents if it does not exist."""
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "cache"))
    address = f"{request.param}://{tmp_path}/bucket/data"

    def make(documents, fingerprint="list"):
        source = make_source(documents, fingerprint=fingerprint)
        source.data_dir = address
        return open_token_store(source, ByteTokenizer(), "train")

    make.cache, make.place = tmp_path / "cache", remote_files.remote_path(address) / "token_stores"
    return make


def test_a_new_store_is_uploaded_and_read_from_a_local_copy_unless_it_is_missing_or_damaged(open_at, monkeypatch):
    open_at([b"one"])
    (name,) = remote_files.names(open_at.place)
    assert remote_files.names(open_at.place / name) == ["documents.bin", "metadata.json", "tokens.bin"]
    with monkeypatch.context() as patch:
        patch.setattr(remote_files, "raise_remote_errors", None)
        assert text_of(open_at([b"never read"])) == "one"
    (path,) = open_at.cache.rglob("tokens.bin")
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert text_of(open_at([b"never read"])) == "one"
    shutil.rmtree(open_at.cache)
    assert text_of(open_at([b"never read"])) == "one"


def test_the_error_names_a_damaged_or_missing_remote_file(open_at):
    open_at([b"one"])
    (name,) = remote_files.names(open_at.place)
    shutil.rmtree(open_at.cache)
    path = open_at.place / name / "tokens.bin"
    remote_files.write_bytes(path, path.open("rb").read()[:-1] + b"?")
    with pytest.raises(DamagedDataError, match=rf"delete {open_at.place}/{name} .* with invalid content"):
        open_at([b"never read"])
    remote_files.remove(path)
    with pytest.raises(DamagedDataError, match=rf"delete {open_at.place}/{name} .*tokens.bin, which is missing"):
        open_at([b"never read"])
    remote_files.write_bytes(open_at.place / name / "metadata.json", b"{")
    with pytest.raises(DamagedDataError, match=r"Received: .*metadata.json, with invalid content"):
        open_at([b"never read"])


def test_the_next_opening_completes_an_upload(open_at, monkeypatch):
    upload = remote_files.upload

    def stop(source, target):
        if source.name == "tokens.bin":
            raise KeyboardInterrupt
        return upload(source, target)

    def fail(*arguments):
        raise remote_files.RemoteError

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(remote_files, "upload", stop)
        open_at([b"one"])
    (name,) = remote_files.names(open_at.place)
    assert not remote_files.exists(open_at.place / name / "metadata.json")
    shutil.rmtree(open_at.cache)
    assert text_of(open_at([b"one"])) == "one"
    shutil.rmtree(open_at.cache)
    assert text_of(open_at([b"never read"])) == "one"
    with monkeypatch.context() as patch, pytest.raises(remote_files.RemoteError):
        patch.setattr(remote_files, "upload_folder", fail)
        open_at([b"two"], "other")
    open_at([b"never read"], "other")
    shutil.rmtree(open_at.cache)
    assert text_of(open_at([b"never read"], "other")) == "two"
