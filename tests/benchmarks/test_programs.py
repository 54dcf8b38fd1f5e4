"""Benchmarks of decoding and tokenizers at sizes that take seconds."""

import pytest

from benchmarks import decoders, decoding, streaming, tokenizers


@pytest.mark.full
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in ("Llama", "Gemma3") else pytest.mark.large) for name in decoders.FAMILIES],
)
def test_a_sparse_decoder_keeps_only_the_window(family):
    pytest.importorskip("keras_hub")
    sizes = ["--position", "28", "--window", "4", "--layers", "2", "--width", "64", "--steps", "4", "--repeats", "1"]
    headings, row = decoders.table(decoders.parser().parse_args([family, *sizes]))
    assert len(headings) == len(row)
    heads = 64 if "head_dim" in decoders.FAMILIES[family] else 8
    assert row[1] == f"{32 * 2 * 2 * 2 * heads * 4 / 2**20:.2f}"  # positions, layers, keys and values, heads
    assert 4 / 32 <= float(row[3]) < 0.2
    assert all(float(cell) >= 0 for cell in row[1:])


@pytest.mark.large
def test_both_tables_of_decoding_have_their_rows():
    arguments = ["--positions", "8", "12", "--keys", "4", "--steps", "2", "--repeats", "1", "--layers", "1"]
    given = decoding.parser().parse_args([*arguments, "--heads", "2"])
    headings, *rows = decoding.by_position(given, prompt=16)
    assert [row[0] for row in rows] == list(decoding.KINDS)
    assert all(len(row) == len(headings) and all(float(cell) > 0 for cell in row[1:-1]) for row in rows)
    # A row, a block, two heads of keys and values of 64 numbers each, on 14 places.
    assert dict(zip(headings, rows[-1], strict=True))["cache MiB"] == f"{14 * 2 * 2 * 64 * 4 / 2**20:.2f}"
    headings, *rows = decoding.by_size(given)
    assert [row[:2] for row in rows] == [["4", "local"], ["4", "local and routed"]]


@pytest.mark.full
def test_memory_and_speed_of_unbounded_decoding_are_flat(monkeypatch):
    small = streaming.build(window=16)
    monkeypatch.setattr(streaming, "build", lambda: small)
    tokens, speeds, sizes, peaks = zip(*streaming.run(6_000, num_rows=4), strict=True)
    assert tokens[-1] == 6_500 and len(set(sizes)) == 1
    assert peaks[-1] - peaks[0] < 8  # megabytes; keys of 4,500 tokens would be 9
    assert speeds[-1] > 0.5 * speeds[0]  # other programs may run beside


@pytest.mark.full
def test_the_table_of_tokenizers_has_a_row_per_tokenizer(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("Some words.\n\nSome other words, and more of them.\n\n" * 20, encoding="utf-8")
    tokenizers.main(["--path", str(tmp_path), "--size", "80", "--repeats", "1"])
    assert capsys.readouterr().out.count("MB/s") == 5
