"""Remote stores: read from a local copy, downloaded again if it is damaged, and uploaded once built."""

import shutil

import pytest

from tests import remote_paths  # noqa: F401  # registers the schemes
from tests.draws import first
from tf_sparse_attention import remote_files
from tf_sparse_attention.data import ByteTokenizer, open_token_store
from tf_sparse_attention.data.stores.array_store import DamagedDataError


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
    yield make
    if request.param == "memory":
        remote_files.remote_path(address).rmtree()


def text_of(store):
    return ByteTokenizer().detokenize(store.tokens)


def test_a_new_store_is_uploaded_and_downloaded_without_a_local_copy(open_at):
    store = open_at([b"one"])
    (name,) = remote_files.names(open_at.place)
    files = ["documents.bin", "metadata.json", "tokens.bin"]
    assert remote_files.names(open_at.place / name) == files
    del store
    shutil.rmtree(open_at.cache)
    assert text_of(open_at([b"never read"])) == "one"


def test_a_local_copy_is_opened_without_remote_access_unless_it_is_damaged(open_at, monkeypatch):
    open_at([b"one"])
    with monkeypatch.context() as patch:
        patch.setattr(remote_files, "raise_remote_errors", None)
        assert text_of(open_at([b"never read"])) == "one"
    (path,) = open_at.cache.rglob("tokens.bin")
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert text_of(open_at([b"never read"])) == "one"


def test_the_error_names_a_damaged_or_missing_remote_file(open_at):
    open_at([b"one"])
    (name,) = remote_files.names(open_at.place)
    shutil.rmtree(open_at.cache)
    path = open_at.place / name / "tokens.bin"
    remote_files.write_bytes(path, remote_files.read_bytes(path)[:-1] + b"?")
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
