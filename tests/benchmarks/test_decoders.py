"""The benchmark of KerasHub's decoders, at sizes that take seconds."""

import pytest

from benchmarks import decoders


@pytest.mark.full
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in ("Llama", "Gemma3") else pytest.mark.large) for name in decoders.FAMILIES],
)
def test_a_sparse_decoder_keeps_only_the_window(family):
    pytest.importorskip("keras_hub")
    sizes = ["--position", "28", "--window", "4", "--layers", "2", "--width", "64", "--steps", "4", "--repeats", "1"]
    given = decoders.parser().parse_args([family, *sizes])
    headings, row = decoders.table(given)
    assert len(headings) == len(row)
    heads = 64 if "head_dim" in decoders.FAMILIES[family] else 8
    assert row[1] == f"{32 * 2 * 2 * 2 * heads * 4 / 2**20:.2f}"  # positions, layers, keys and values, heads
    assert 4 / 32 <= float(row[3]) < 0.2 if heads == 64 else True
    assert all(float(cell) >= 0 for cell in row[1:])
