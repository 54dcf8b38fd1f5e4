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

from tf_sparse_attention.data import load_documents, open_source
from tf_sparse_attention.data.sources import tfds_reader as preparation
from tf_sparse_attention.data.sources.tfds_reader import find_text_feature


def features(**strings):
    return tfds.features.FeaturesDict({name: tfds.features.Text() for name in strings} | {"label": tf.int64})


def test_the_only_string_is_the_text():
    assert find_text_feature(features(anything=1)) == "anything"


def test_a_known_name_is_chosen_among_several_strings():
    assert find_text_feature(features(title=1, book_text=1)) == "book_text"
    assert find_text_feature(features(url=1, text=1, content=1)) == "text"


def test_a_given_name_has_priority():
    assert find_text_feature(features(title=1, text=1), "title") == "title"


def test_several_unknown_strings_are_an_error_that_lists_them():
    with pytest.raises(ValueError, match=r"Received: text_feature=None, string features: summary, abstract, all"):
        find_text_feature(features(summary=1, abstract=1))


def test_a_name_that_is_not_a_string_feature_is_an_error():
    with pytest.raises(ValueError, match=r"`text_feature` must be a string feature of the data set. .*=label"):
        find_text_feature(features(text=1), "label")


def test_a_data_set_without_text_is_an_error():
    with pytest.raises(ValueError, match=r"string features: none, all features: image"):
        find_text_feature(tfds.features.FeaturesDict({"image": tfds.features.Image()}))


def test_a_list_of_strings_is_not_text():
    with pytest.raises(ValueError, match=r"string features: none"):
        find_text_feature(tfds.features.FeaturesDict({"text": tfds.features.Sequence(tfds.features.Text())}))


def test_name_and_path_together_are_an_error():
    with pytest.raises(ValueError, match=r"`tfds` and `path` must not both be given. Received: tfds=pg19, path=x."):
        open_source(tfds="pg19", path="x")


def test_a_missing_local_folder_is_an_error():
    with pytest.raises(ValueError, match=r"`local_dir` must be an existing folder. Received: local_dir=/no/such."):
        open_source(tfds="pg19", local_dir="/no/such")


def test_a_folder_that_is_not_pg19_is_an_error(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match=r"must have metadata.csv and .* without metadata.csv, validation, test."):
        open_source(tfds="pg19", local_dir=tmp_path)


def test_without_tensorflow_datasets_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'tf-sparse-attention\[train\]'"):
        open_source(tfds="tiny_shakespeare")


class Letters(tfds.core.GeneratorBasedBuilder):
    """A text data set of TFDS without a download."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples("abcd"), "test": self._generate_examples("e")}

    def _generate_examples(self, letters):
        yield from ((letter, {"text": letter}) for letter in letters)


def test_a_split_a_part_and_a_sum_of_tfds_are_read(tmp_path):
    source = open_source(tfds="letters", data_dir=tmp_path)
    train = list(source.documents("train"))
    assert sorted(train) == [b"a", b"b", b"c", b"d"]
    assert list(source.documents("train[50%:]+test")) == [*train[2:], b"e"]
    with pytest.raises(ValueError, match=r"`split` must be one of train, test in letters/1\.0\.0, .* split=train\+dev"):
        source.documents("train+dev")


def test_concurrent_preparations_keep_the_first_result(tmp_path, monkeypatch):
    generate, others = Letters._generate_examples, [Letters(data_dir=tmp_path)]

    def generate_after_another_process(self, letters):
        if others:
            preparation.prepare(others.pop())
        yield from generate(self, letters)

    monkeypatch.setattr(Letters, "_generate_examples", generate_after_another_process)
    assert len(list(open_source(tfds="letters", data_dir=tmp_path).documents("train"))) == 4
    assert not others


def test_data_that_another_process_prepared_after_opening_are_read(tmp_path):
    source = open_source(tfds="letters", data_dir=tmp_path)
    preparation.prepare(Letters(data_dir=tmp_path))
    assert len(list(source.documents("train"))) == 4


def test_a_failed_preparation_leaves_nothing(tmp_path, monkeypatch):
    def fail(self, letters):
        yield "a", {"text": "a"}
        raise ValueError("failed")

    monkeypatch.setattr(Letters, "_generate_examples", fail)
    builder = Letters(data_dir=tmp_path)
    with pytest.raises(ValueError, match="failed"):
        preparation.prepare(builder)
    assert not builder.data_path.exists()


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


def test_opening_a_source_prepares_nothing(tmp_path):
    source = open_source(tfds="tiny_shakespeare", data_dir=tmp_path)
    assert source.name == "tiny_shakespeare/1.0.0"
    assert not list(tmp_path.iterdir())


def test_the_fingerprint_depends_on_features_and_data_set(tmp_path):
    fingerprints = {
        open_source(tfds="tiny_shakespeare", data_dir=tmp_path).fingerprint,
        open_source(tfds="pg19", data_dir=tmp_path).fingerprint,
        open_source(tfds="pg19", data_dir=tmp_path, text_feature="book_title").fingerprint,
    }
    assert len(fingerprints) == 3


def test_tiny_shakespeare_is_prepared_offline_from_its_file(shared_data, tmp_path):
    arguments = {"tfds": "tiny_shakespeare", "local_dir": shared_data / "tinyshakespeare", "data_dir": tmp_path}
    documents = [b"".join(load_documents(split, **arguments)) for split in ("train", "validation", "test")]
    assert [len(document) for document in documents] == [1_003_854, 55_770, 55_770]
    digest = hashlib.sha256(b"".join(documents)).hexdigest()
    assert digest == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@pytest.fixture
def corpus(shared_data, tmp_path):
    """The smallest book of each split of the local part of PG-19, in its layout."""
    folder = tmp_path / "corpus"
    for split in ("train", "validation", "test"):
        (folder / split).mkdir(parents=True)
        smallest = min((shared_data / "books" / split).iterdir(), key=lambda path: path.stat().st_size)
        shutil.copy(smallest, folder / split)
    shutil.copy(shared_data / "books" / "metadata.csv", folder)
    return folder


def test_pg19_is_prepared_offline_from_a_part_of_the_corpus(corpus, tmp_path):
    source = open_source(tfds="pg19", local_dir=corpus, data_dir=tmp_path)
    assert source.text_feature == "book_text"
    for split in ("train", "validation", "test"):
        (file,) = (corpus / split).iterdir()
        assert list(source.documents(split)) == [file.read_bytes().strip()]


def test_another_part_of_pg19_is_another_data_set(corpus, tmp_path):
    first = open_source(tfds="pg19", local_dir=corpus, data_dir=tmp_path)
    list(first.documents("test"))
    (corpus / "test" / "860.txt").write_text("A book.")
    second = open_source(tfds="pg19", local_dir=corpus, data_dir=tmp_path)
    assert first.fingerprint != second.fingerprint
    assert b"A book." in list(second.documents("test"))


def test_reading_a_local_corpus_leaves_the_builder_on_its_bucket(corpus, tmp_path):
    list(load_documents("test", tfds="pg19", local_dir=corpus, data_dir=tmp_path))
    module = sys.modules[type(tfds.builder("pg19", data_dir=tmp_path)).__module__]
    assert str(module._DATA_DIR).startswith("gs://")


def test_the_error_for_an_unknown_split_lists_the_splits(corpus, tmp_path):
    source = open_source(tfds="pg19", local_dir=corpus, data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"must be one of .*validation.* in pg19/0.1.1, or a part .* split=dev."):
        source.documents("dev")


def test_a_part_of_a_split_is_read(tmp_path):
    (tmp_path / "texts" / "train").mkdir(parents=True)
    for number in range(4):
        (tmp_path / "texts" / "train" / f"{number}.txt").write_text(str(number))
    source = open_source(path=tmp_path / "texts", data_dir=tmp_path)
    assert len(list(source.documents("train[:50%]"))) == 2


def test_the_order_of_documents_is_the_same_each_time(tmp_path):
    (tmp_path / "texts" / "train").mkdir(parents=True)
    for number in range(50):
        (tmp_path / "texts" / "train" / f"{number}.txt").write_text(str(number))
    first, second = (open_source(path=tmp_path / "texts", data_dir=tmp_path / name) for name in "ab")
    assert list(first.documents("train")) == list(second.documents("train")) == list(first.documents("train"))


def test_a_file_name_is_not_text():
    images = tfds.features.FeaturesDict({"image": tfds.features.Image(), "id": tfds.features.Text()})
    with pytest.raises(ValueError, match=r"must be a string feature .* string features: id"):
        find_text_feature(images)
    assert find_text_feature(images, "id") == "id"


def test_the_error_for_an_unknown_configuration_lists_all():
    message = r"`tfds` must name a configuration of wiki40b: .*\bde\b.* Received: tfds=wiki40b/xx\."
    with pytest.raises(ValueError, match=message) as error:
        open_source("wiki40b/xx")
    assert "\n" not in str(error.value)


def test_the_error_for_an_unreachable_catalogue_has_one_line(monkeypatch):
    def builder(name, **options):
        raise requests.exceptions.ConnectionError("no route")

    monkeypatch.setattr(tfds, "builder", builder)
    with pytest.raises(ConnectionError, match=r"reachable .* Received: tfds=huggingface:imdb, with no route\."):
        open_source("huggingface:imdb")


@pytest.mark.parametrize(
    ("name", "said"), [("/nosuch", "use `path` for a file or a folder"), ("pg18", r"Did you mean .*pg19")]
)
def test_the_error_for_an_unknown_data_set_has_a_hint(name, said):
    with pytest.raises(ValueError, match=rf"`tfds` must be the name of .*{said}.* Received: tfds={name}") as error:
        open_source(name)
    assert len(str(error.value)) < 250


class _Builder:
    """A builder with a failing or slow preparation."""

    name, data_path, data_dir_root = "big_text", pathlib.Path("/nowhere"), "/nowhere"

    def __init__(self, prepare):
        self._prepare = prepare
        self.info = types.SimpleNamespace(full_name="big_text/1.0.0")

    def download_and_prepare(self, download_config, file_format=None):
        self._prepare()


def test_the_error_names_a_missing_package():
    def prepare():
        raise ModuleNotFoundError("No module named 'apache_beam'", name="apache_beam")

    with pytest.raises(ModuleNotFoundError, match=r"big_text/1.0.0 needs the package apache_beam: pip in"):
        preparation._download_and_prepare(_Builder(prepare), None, False)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "/nowhere/x.tfrecord; No space left on device"), "No space left"),
        (OSError(errno.EROFS, "Read-only file system", "/nowhere/x"), "Read-only file system"),
    ],
)
def test_the_error_names_a_full_or_read_only_disk(cause, said):
    def prepare():
        raise RuntimeError("Failed to finalize writing") from cause

    with pytest.raises(OSError, match=rf"`data_dir` must be .* room for big_text/1.0.0. .*: /nowhere, with {said}"):
        preparation._download_and_prepare(_Builder(prepare), None, False)


def test_the_error_names_a_full_disk_without_tensorflow(monkeypatch):
    def prepare():
        raise OSError(errno.ENOSPC, "No space left on device", "/nowhere/x")

    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setattr(preparation, "has_tensorflow", lambda: False)
    with pytest.raises(
        OSError, match=r"`data_dir` must be .* room for big_text/1.0.0. .* with No space left on device"
    ):
        preparation._download_and_prepare(_Builder(prepare), None, False)


def test_an_unreadable_input_file_is_not_a_disk_error():
    def prepare():
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/text.txt")

    with pytest.raises(PermissionError, match=r"Permission denied: '/elsewhere/text.txt'"):
        preparation._download_and_prepare(_Builder(prepare), None, False)


@pytest.mark.parametrize(
    "error",
    [
        requests.exceptions.ConnectionError("no route"),
        tf.errors.FailedPreconditionError(None, None, "no route: libcurl code 6"),
    ],
    ids=["server", "bucket"],
)
def test_a_failed_or_slow_download_names_the_setting_for_local_files(error, monkeypatch, caplog):
    monkeypatch.setattr(preparation, "WARNING_DELAY", 0.01)

    def prepare():
        logging.getLogger("urllib3.connectionpool").warning("Retrying")
        while "local_dir" not in caplog.text:
            time.sleep(0.01)
        raise error

    message = r"big_text/1.0.0 is downloaded on first use.*--config.data.local_dir=FOLDER\)\. Received: no route"
    with pytest.raises(ConnectionError, match=message):
        preparation._download_and_prepare(_Builder(prepare), None, False)
    assert "Retrying" not in caplog.text
