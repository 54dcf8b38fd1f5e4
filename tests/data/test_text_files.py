import pytest

from tf_sparse_attention.data.text_files import digest_of, fingerprint_of, list_text_files, split_of


def listed(folder, **arguments):
    return list_text_files(folder, folder.rglob("*"), **arguments)


def test_the_split_depends_on_the_content_alone(tmp_path):
    (tmp_path / "a.txt").write_text("same")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.txt").write_text("same")
    first, second = listed(tmp_path)
    assert split_of(first.digest) == split_of(second.digest)


def test_the_split_of_a_content_never_changes():
    assert [split_of(digest_of(text)) for text in (b"0", b"7", b"10")] == ["train", "train", "validation"]
    assert split_of("0" * 32) == "train"
    assert split_of(f"{89:016x}" + "f" * 16) == "train"
    assert split_of(f"{90:016x}" + "0" * 16) == "validation"
    assert split_of(f"{94:016x}" + "0" * 16) == "validation"
    assert split_of(f"{195:016x}" + "0" * 16) == "test"


def test_about_ninety_five_and_five_percent_go_to_the_splits():
    splits = [split_of(digest_of(str(number).encode())) for number in range(10_000)]
    # Four standard deviations of a binomial count.
    assert abs(splits.count("train") - 9000) < 120
    assert abs(splits.count("validation") - 500) < 88
    assert abs(splits.count("test") - 500) < 88


def test_names_are_sorted_and_relative_with_slashes(tmp_path):
    (tmp_path / "z.txt").write_text("z")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("a")
    assert [file.name for file in listed(tmp_path)] == ["b/a.txt", "z.txt"]


def test_hidden_and_blank_files_are_left_out(tmp_path):
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "a.txt").write_text("hidden")
    (tmp_path / ".b.txt").write_text("hidden")
    (tmp_path / "c.txt").write_text(" \n")
    assert listed(tmp_path) == []


def test_a_file_that_is_not_utf8_is_an_error_that_names_it(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"`path` must hold UTF-8 text. Received: .*latin.txt, wrong at byte 3."):
        listed(tmp_path)
    assert listed(tmp_path, skip_invalid=True) == []


def test_the_fingerprint_changes_with_a_name_and_with_a_content(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one")
    first = fingerprint_of(listed(tmp_path))
    assert fingerprint_of(listed(tmp_path)) == first
    file.write_text("two")
    second = fingerprint_of(listed(tmp_path))
    file.rename(tmp_path / "b.txt")
    assert len({first, second, fingerprint_of(listed(tmp_path))}) == 3


def test_a_file_that_changes_after_it_was_listed_is_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (file,) = listed(tmp_path)
    assert file.read() == b"one"
    (tmp_path / "a.txt").write_text("two")
    with pytest.raises(ValueError, match=r"`path` must not change while it is being read. Received: changed file .*a"):
        file.read()
