"""JSON lines as data sets: examples, splits, and errors that name the line."""

import gzip
import json
import tracemalloc

import pytest
import tensorflow_datasets as tfds

from tests.data.builders import register
from tf_sparse_attention.data import open_pairs, open_source
from tf_sparse_attention.data.sources.readers import warn_once

LINES = [{"en": f"text {number}", "de": f"Text {number}", "split": "train"} for number in range(6)]
LINES += [{"en": "one more", "de": "noch einer", "split": "test"}, {"en": "alone", "split": "train"}]


def documents_of(source):
    return {split: sorted(source.documents(split)) for split in source.splits}


def written(path, lines=LINES):
    content = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode() + b"\n\n"
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def opened(tmp_path):
    def open_them(lines=LINES, name="texts.jsonl", source="en", target="de", **options):
        path = written(tmp_path / name, lines)
        return open_pairs(source, target, path=path, data_dir=tmp_path / "data", **options)

    return open_them


def test_documents_of_both_fields_are_in_one_order(opened):
    found = set()
    for name in ("texts.jsonl", "texts.jsonl.gz"):
        pairs = opened(name=name)
        assert sorted(pairs_of(pairs)) == [(f"text {n}".encode(), f"Text {n}".encode()) for n in range(6)]
        assert list(pairs.target.documents("test")) == [b"noch einer"]
        assert pairs.source.splits == ("train", "test") and pairs.name.endswith("(en to de)")
        found.add(pairs.fingerprint)
    assert opened().fingerprint in found
    found |= {opened(LINES[:-2]).fingerprint, opened(source="de", target="en").fingerprint}
    assert len(found) == 4


def pairs_of(pairs):
    return list(zip(*(side.documents("train") for side in pairs), strict=True))


def test_lines_without_a_split_field_are_split_by_content_whatever_their_file(tmp_path):
    lines = [{"body": f"line {number}"} for number in range(200)]
    (tmp_path / "texts").mkdir()
    for name, part in {"a": lines[:99], "b": lines[99:]}.items():
        written(tmp_path / "texts" / f"{name}.jsonl", part)
    one = open_source(path=written(tmp_path / "all.jsonl", lines), text_field="body", data_dir=tmp_path / "data")
    many = open_source(path=tmp_path / "texts", text_field="body", data_dir=tmp_path / "data")
    found = documents_of(one)
    assert documents_of(many) == found
    counts = {split: len(texts) for split, texts in found.items()}
    assert set(counts) == {"train", "validation", "test"} and sum(counts.values()) == 200 and counts["train"] > 150


CLOSED = [
    {"en": "NAME\n\nls - list\n \n\nwhat it does", "de": "NAME\n\nls - Liste\n\nwas es tut\n\nDANK\n\nan alle"},
    {"en": "NAME\n\nDANK\n\n", "de": "NAME\n\nDANK\n\nan DANK\n\nDANK\nan alle"},
]


def test_targets_end_before_the_last_target_end(opened):
    pairs = opened(CLOSED, target_end="DANK")
    sources, targets = ({text for part in documents_of(side).values() for text in part} for side in pairs)
    assert targets == {b"NAME\n\nls - Liste\n\nwas es tut", b"NAME\n\nDANK\n\nan DANK"}
    assert sources == {line["en"].encode() for line in CLOSED}
    assert pairs.fingerprint != opened(CLOSED).fingerprint


def test_paragraphs_are_paired_if_both_texts_have_equal_numbers(opened, caplog):
    lines = [{**line, "split": "train"} for line in CLOSED]
    pairs = opened(lines, unit="paragraph", target_end="DANK")
    paragraphs = [(b"NAME", b"NAME"), (b"ls - list", b"ls - Liste"), (b"what it does", b"was es tut")]
    assert sorted(pairs_of(pairs)) == paragraphs
    assert "1 of 2 lines are left out because their texts have different numbers of paragraphs." in caplog.text
    with pytest.raises(ValueError, match=r"`unit` must be 'document' for texts .*Received: unit='paragraph', with"):
        list(opened(lines[1:], unit="paragraph").source.documents("train"))


def test_lines_that_lack_a_field_are_counted(opened, caplog):
    lines = [{"en": f"one {number}", "de": "eins", "split": "train"} for number in range(3)]
    lines += [{"en": "alone", "split": "train"}, {"de": "allein", "split": "test"}]
    lines += [{"en": "missing", "de": missing, "split": "train"} for missing in (None, float("nan"))]
    assert len(list(opened(lines).target.documents("train"))) == 3
    message = "4 of 7 lines are left out because they lack one of en, de."
    assert caplog.text.count(message) == 1
    assert len(list(opened(lines).source.documents("train"))) == 3
    assert caplog.text.count(message) == 1
    warn_once.cache_clear()  # as in a new process
    assert len(list(opened(lines).source.documents("train"))) == 3
    assert caplog.text.count(message) == 2


def test_several_fields_and_lists_of_texts_are_one_text(opened):
    lines = [{"question": "why?", "passages": ["one", "two"], "answer": "so", "split": "train"}, {"question": "how?"}]
    pairs = opened(lines, source="question+passages", target="answer")
    assert pairs_of(pairs) == [(b"why?\n\none\n\ntwo", b"so")]
    assert pairs.name.endswith("(question+passages to answer)")


SENTENCES = [{"de": "Hallo", "en": "hello"}, {"de": "Guten Tag", "en": "good day"}]
register("Sentences", tfds.features.Translation(languages=("de", "en")), train=SENTENCES)  # in the format of WMT


@pytest.mark.filterwarnings("ignore")
def test_a_translation_set_of_tfds_has_both_languages_in_one_order(tmp_path):
    pairs = open_pairs("en", "de", tfds="sentences", data_dir=tmp_path)
    assert sorted(pairs_of(pairs)) == [(b"good day", b"Guten Tag"), (b"hello", b"Hallo")]
    assert pairs.name == "sentences/1.0.0 (en to de)"
    with pytest.raises(ValueError, match=r"`text_feature` must be a string feature .* string features: de, en"):
        open_pairs("en", "fr", tfds="sentences", data_dir=tmp_path)


def test_lines_are_documents_and_subfolders_are_splits(tmp_path, caplog):
    for name, texts in {
        "train/a.jsonl": ("one", "two"),
        "train/b/c.jsonl.gz": ("three",),
        "test/a.jsonl": ("x",),
    }.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        written(tmp_path / "texts" / name, [{"body": text, "number": 1} for text in texts])
    arguments = {"path": tmp_path / "texts", "text_field": "body", "data_dir": tmp_path / "data"}
    source = open_source(**arguments)
    assert documents_of(source) == {"train": [b"one", b"three", b"two"], "test": [b"x"]}
    written(tmp_path / "texts" / "test" / "a.jsonl", [{"body": "y"}])
    assert open_source(**arguments).fingerprint != source.fingerprint
    written(tmp_path / "texts" / "z.jsonl", [{"body": "y"}])
    assert documents_of(open_source(**arguments))["test"] == [b"y"]
    assert "1 of the files in" in caplog.text and "left out (not in train, test), such as z.jsonl." in caplog.text
    with pytest.raises(ValueError, match=r"`split` must be one of train, test in json_lines/texts_.* split=validation"):
        open_source(**arguments).documents("validation")


def test_documents_are_in_the_order_of_lines_and_parts_are_evenly_spread(tmp_path):
    lines = [{"body": str(number), "split": "train"} for number in range(100)]
    source = open_source(path=written(tmp_path / "a.jsonl", lines), text_field="body", data_dir=tmp_path)
    assert list(source.documents("train")) == [str(number).encode() for number in range(100)]
    most, rest = ([int(text) for text in source.documents(part)] for part in ("train[:90%]", "train[90%:]"))
    assert sorted(most + rest) == list(range(100)) and len(rest) == 10
    assert all(sum(begin <= number < begin + 25 for number in rest) in (2, 3) for begin in range(0, 100, 25))
    assert len(list(source.documents("train[:30]+train[-5:]"))) == 35


def test_a_file_that_changes_while_it_is_read_is_an_error(opened):
    texts = opened().source.documents("train")
    next(texts)
    opened([{**line, "en": "other"} for line in LINES])
    with pytest.raises(ValueError, match=r"`path` must not change while it is being read\. Received: changed file .*"):
        list(texts)


def test_memory_does_not_grow_with_the_file(tmp_path):
    line = json.dumps({"body": "x" * 3900, "other": "y" * 100}) + "\n"
    peaks = []
    for count in (250, 1500):  # 1 and 6 MB
        (tmp_path / f"{count}.jsonl").write_text(line * count)
        tracemalloc.start()
        source = open_source(path=tmp_path / f"{count}.jsonl", text_field="body", data_dir=tmp_path)
        assert sum(map(len, source.documents("train[:50%]+train[50%:]"))) == 3900 * count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < 2e6
    assert not list(tmp_path.rglob("*tfrecord*"))


def test_the_error_names_an_invalid_line(tmp_path, subtests):
    path = tmp_path / "texts.jsonl"
    for lines, message in [
        ('{"en": "x", "de": 3.5}', "'de' of texts.jsonl, line 1: float"),
        ('{"en": "x", "de": ["y", null]}', "'de' of texts.jsonl, line 1: NoneType"),
        ('["en", "de"]', "JSON objects.*line 1: list"),
        ("", "must hold lines of JSON"),
        ('{"en": "x", "fr": "y"}', "the fields en, de.*'en', 'fr'"),
        ('{"en": "x", "de": "y", "split": "train"}\n{"en": "x", "de": "y", "split": "dev"}', "'split'.*line 2: 'dev'"),
        ('{"en": "x", "de": "y", "split": "train"}\n{"en": "x", "de": "y"}', "'split'.*line 2: None"),
        ('{"en": "x"', "in UTF-8.*line 1: "),
        (r'{"en": "x", "de": "\ud800"}', "Unicode text.*line 1: .*surr"),
    ]:
        path.write_text(lines + "\n")
        with subtests.test(lines=lines), pytest.raises(ValueError, match=message):
            list(open_pairs("en", "de", path=path, data_dir=tmp_path).source.documents("train"))


def test_invalid_files_and_arguments_are_errors(tmp_path, subtests):
    file = written(tmp_path / "a.jsonl")
    for name, fields, options in [
        ("`path`", ("en", "de"), {"path": tmp_path / "none.jsonl"}),
        ("`path`", ("en", "de"), {"path": tmp_path / "texts.txt"}),
        ("`unit`", ("en", "de"), {"path": file, "unit": "page"}),
        ("`unit` and `target_end`", ("en", "de"), {"tfds": "x/de-en", "target_end": "DANK"}),
        ("`tfds` and `path`", ("en", "de"), {}),
        ("`source` and `target`", ("en", "en"), {"tfds": "wmt14_translate/de-en"}),
    ]:
        with subtests.test(name, options=options), pytest.raises(ValueError, match=name):
            open_pairs(*fields, **options)
    (tmp_path / "empty").mkdir()
    for name, options in [
        ("`text_field` must be given with `path`", {"tfds": "pg19", "text_field": "body"}),
        ("`path` must hold files .jsonl", {"path": tmp_path / "empty", "text_field": "body"}),
        ("set `text_field`", {"path": tmp_path}),
        ("the fields body", {"path": tmp_path, "text_field": "body"}),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=name):
            open_source(**options)
    source = open_source(path=file, text_field="en", data_dir=tmp_path)
    for split, known in [("validation", "train, test in json_lines/a_"), ("dev", "train, validation, test in ")]:
        with subtests.test(split=split), pytest.raises(ValueError, match=f"`split` .*{known}.* split={split}"):
            list(source.documents(split))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"en": "x"}' * 99)[:-20])
    with pytest.raises(ValueError, match=r"complete gzip file.*cut\.jsonl\.gz"):
        list(open_pairs("en", "de", path=tmp_path / "cut.jsonl.gz").source.documents("train"))
