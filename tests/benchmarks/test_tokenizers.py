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
