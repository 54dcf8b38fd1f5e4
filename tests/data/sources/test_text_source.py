"""Text data sets from TFDS, folders and files, and their text features."""

import errno
import hashlib
import logging
import pathlib
import shutil
import sys
import time
import types

import pytest
import requests
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.data.builders import register
from tf_sparse_attention.data import open_source
from tf_sparse_attention.data.sources import tfds_reader as preparation
from tf_sparse_attention.data.sources.tfds_reader import find_text_feature


def features(*strings):
    return tfds.features.FeaturesDict({name: tfds.features.Text() for name in strings} | {"label": tf.int64})


def test_the_text_is_the_given_the_only_or_a_known_string_feature(subtests):
    image = tfds.features.Image()
    with_id = tfds.features.FeaturesDict({"image": image, "id": tfds.features.Text()})
    list_of_texts = tfds.features.FeaturesDict({"text": tfds.features.Sequence(tfds.features.Text())})
    for found, given, expected in [
        (features("anything"), None, "anything"),
        (features("title", "book_text"), None, "book_text"),
        (features("url", "text", "content"), None, "text"),
        (features("title", "text"), "title", "title"),
        (with_id, "id", "id"),
    ]:
        with subtests.test(features=found, given=given):
            assert find_text_feature(found, given) == expected
    for found, given, message in [
        (features("summary", "abstract"), None, "string features: summary, abstract"),
        (features("text"), "label", "=label"),
        (with_id, None, "string features: id, all features: image"),
        (list_of_texts, None, "none"),
    ]:
        with subtests.test(features=found, given=given), pytest.raises(ValueError, match=f"`text_feature`.*{message}"):
            find_text_feature(found, given)


def test_invalid_arguments_are_errors_of_one_line(tmp_path, subtests):
    (tmp_path / "train").mkdir()
    for message, options in [
        ("`tfds` and `path`", {"tfds": "pg19", "path": "x"}),
        ("`local_dir`", {"tfds": "pg19", "local_dir": "/no/such"}),
        ("without metadata.csv, validation, test", {"tfds": "pg19", "local_dir": tmp_path}),
        (r"`tfds` must name a configuration of wiki40b: .*\bde\b.*=wiki40b/xx", {"tfds": "wiki40b/xx"}),
        ("`tfds` .*use `path` for a file or a folder", {"tfds": "/nosuch"}),
        ("`tfds` .*Did you mean .*pg19", {"tfds": "pg18"}),
    ]:
        with subtests.test(options=options):
            with pytest.raises(ValueError, match=message) as error:
                open_source(**options)
            assert "\n" not in str(error.value)


def test_without_tensorflow_datasets_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'tf-sparse-attention\[train\]'"):
        open_source(tfds="tiny_shakespeare")


LETTERS = {split: [{"text": letter} for letter in letters] for split, letters in {"train": "abcd", "test": "e"}.items()}
Letters = register("Letters", {"text": tfds.features.Text()}, **LETTERS)


def test_a_split_a_part_and_a_sum_of_tfds_are_read(tmp_path):
    source = open_source(tfds="letters", data_dir=tmp_path)
    train = list(source.documents("train"))
    assert sorted(train) == [b"a", b"b", b"c", b"d"]
    assert list(source.documents("train[50%:]+test")) == [*train[2:], b"e"]
    with pytest.raises(ValueError, match=r"`split` must be one of train, test in letters/1\.0\.0, .* split=train\+dev"):
        source.documents("train+dev")


def test_opening_prepares_nothing_and_fingerprints_depend_on_data_set_and_features(tmp_path):
    source = open_source(tfds="tiny_shakespeare", data_dir=tmp_path)
    assert source.name == "tiny_shakespeare/1.0.0"
    books = open_source(tfds="pg19", data_dir=tmp_path)
    titles = open_source(tfds="pg19", data_dir=tmp_path, text_feature="book_title")
    assert len({source.fingerprint, books.fingerprint, titles.fingerprint}) == 3
    assert not list(tmp_path.iterdir())


def test_concurrent_preparations_keep_the_first_result(tmp_path, monkeypatch):
    split, others = Letters._split_generators, [Letters(data_dir=tmp_path)]

    def split_after_another_process(self, download_manager):
        if others:
            preparation.prepare(others.pop())
        return split(self, download_manager)

    monkeypatch.setattr(Letters, "_split_generators", split_after_another_process)
    assert len(list(open_source(tfds="letters", data_dir=tmp_path).documents("train"))) == 4
    assert not others
    # Another process prepares the data after this process has opened them.
    source = open_source(tfds="letters", data_dir=tmp_path / "other")
    preparation.prepare(Letters(data_dir=tmp_path / "other"))
    assert len(list(source.documents("train"))) == 4


def test_the_error_for_damaged_files_says_what_to_delete(tmp_path):
    source = open_source(tfds="letters", data_dir=tmp_path)
    assert len(list(source.documents("train"))) == 4
    (records,) = tmp_path.rglob("*train.tfrecord*")
    content, folder = records.read_bytes(), records.parent
    for damaged, found in [
        (content[:-5] + bytes(5), "corrupted record"),
        (content[:-1], "truncated"),
        (None, "No such"),
    ]:
        records.unlink() if damaged is None else records.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"delete {folder} to prepare .* {folder}, with .*{found}"):
            [*source.documents("train")]
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(ValueError, match=rf"the folder of the data set in {tmp_path} to prepare .* with Failed to"):
        open_source(tfds="letters", data_dir=tmp_path)


def test_tiny_shakespeare_is_prepared_offline_from_its_file(shared_data, tmp_path):
    arguments = {"tfds": "tiny_shakespeare", "local_dir": shared_data / "tinyshakespeare", "data_dir": tmp_path}
    documents = [b"".join(open_source(**arguments).documents(split)) for split in ("train", "validation", "test")]
    assert [len(document) for document in documents] == [1_003_854, 55_770, 55_770]
    digest = hashlib.sha256(b"".join(documents)).hexdigest()
    assert digest == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def test_pg19_is_prepared_offline_from_a_part_of_the_corpus(shared_data, tmp_path):
    corpus, books = tmp_path / "corpus", {}
    for split in ("train", "validation", "test"):
        (corpus / split).mkdir(parents=True)
        smallest = min((shared_data / "books" / split).iterdir(), key=lambda path: path.stat().st_size)
        books[split] = smallest.read_bytes().strip()
        shutil.copy(smallest, corpus / split)
    shutil.copy(shared_data / "books" / "metadata.csv", corpus)
    options = {"tfds": "pg19", "local_dir": corpus, "data_dir": tmp_path}
    source = open_source(**options)
    assert source.text_feature == "book_text"
    assert {split: list(source.documents(split)) for split in books} == {split: [book] for split, book in books.items()}
    (corpus / "test" / "860.txt").write_text("A book.")
    other = open_source(**options)  # another part is another data set
    assert source.fingerprint != other.fingerprint
    assert b"A book." in list(other.documents("test"))
    module = sys.modules[type(tfds.builder("pg19", data_dir=tmp_path)).__module__]
    assert str(module._DATA_DIR).startswith("gs://")  # the builder is left as it was


class Unreachable(Letters):
    def _info(self):
        raise requests.exceptions.ConnectionError("no route")


def test_the_error_for_an_unreachable_catalogue_has_one_line():
    with pytest.raises(ConnectionError, match=r"reachable .* Received: tfds=unreachable, with .*no route\."):
        open_source("unreachable")


def prepare_with(download_and_prepare):
    """Prepare a data set whose builder calls this function."""
    builder = types.SimpleNamespace(name="big_text", data_path=pathlib.Path("/nowhere"), data_dir_root="/nowhere")
    builder.download_and_prepare = download_and_prepare
    builder.info = types.SimpleNamespace(full_name="big_text/1.0.0")
    preparation._download_and_prepare(builder, None, False)


def raising(error, cause=None):
    def prepare(**options):
        raise error from cause

    return prepare


def test_a_failed_preparation_names_a_missing_package_or_the_disk(subtests):
    full = tf.errors.ResourceExhaustedError(None, None, "/nowhere/x.tfrecord; No space left on device")
    read_only = OSError(errno.EROFS, "Read-only file system", "/nowhere/x")
    beam = ModuleNotFoundError("No module named 'apache_beam'", name="apache_beam")
    for prepare, expected, message in [
        (raising(beam), ModuleNotFoundError, "needs the package apache_beam: pip in"),
        (raising(RuntimeError("failed"), full), OSError, "`data_dir` .*No space left"),
        (raising(RuntimeError("failed"), read_only), OSError, "`data_dir` .*Read-only file system"),
        # An input file that cannot be read is no error of the disk.
        (raising(PermissionError(errno.EACCES, "denied", "/elsewhere/a")), PermissionError, "'/elsewhere/a'"),
    ]:
        with subtests.test(message), pytest.raises(expected, match=message):
            prepare_with(prepare)


OFFLINE = requests.exceptions.ConnectionError("no route")
NO_BUCKET = tf.errors.FailedPreconditionError(None, None, "no route: libcurl code 6")


@pytest.mark.parametrize("error", [OFFLINE, NO_BUCKET], ids=["server", "bucket"])
def test_a_failed_or_slow_download_names_the_setting_for_local_files(error, monkeypatch, caplog):
    monkeypatch.setattr(preparation, "WARNING_DELAY", 0.01)

    def prepare(**options):
        logging.getLogger("urllib3.connectionpool").warning("Retrying")
        while "local_dir" not in caplog.text:
            time.sleep(0.01)
        raise error

    message = r"big_text/1.0.0 is downloaded on first use.*--config.data.local_dir=FOLDER\)\. Received: no route"
    with pytest.raises(ConnectionError, match=message):
        prepare_with(prepare)
    assert "Retrying" not in caplog.text


def test_a_failed_preparation_leaves_nothing(tmp_path, monkeypatch):
    def fail():
        yield "a", {"text": "a"}
        raise ValueError("failed")

    monkeypatch.setattr(Letters, "_split_generators", lambda self, download_manager: {"train": fail()})
    builder = Letters(data_dir=tmp_path)
    with pytest.raises(ValueError, match="failed"):
        preparation.prepare(builder)
    assert not builder.data_path.exists()
