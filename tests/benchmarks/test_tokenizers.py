"""The benchmark of tokenizers reads all text, and compares the same places."""

import pytest

from benchmarks import tokenizers


@pytest.mark.full
def test_the_table_has_every_place(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("Some words.\n\nSome other words, and more of them.\n\n" * 20, encoding="utf-8")
    tokenizers.main(["--path", str(tmp_path), "--size", "80", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("MB/s")[0].rsplit(None, 1)[0] for line in lines[1:]] == [
        "subwords, Python",
        "subwords, tf.data, documents",
        "WordPiece, tf.data, documents",
        "subwords, tf.data, batches of 256 paragraphs",
        "WordPiece, tf.data, batches of 256 paragraphs",
    ]
    assert lines[-1].endswith("1.00 of WordPiece")


def test_text_is_read_up_to_a_size(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * 1000)
    assert len(tokenizers.read_documents(tmp_path, 0.0015)) == 2
    with pytest.raises(ValueError, match="`--path` must be a folder of text files"):
        tokenizers.read_documents(tmp_path / "nowhere", 1)


def test_word_pieces_can_write_all_words():
    pieces = tokenizers.word_pieces([b"Ab ab cab"], 9)
    assert pieces == ["[UNK]", "a", "b", "c", "##a", "##b", "##c", "ab", "cab"]
