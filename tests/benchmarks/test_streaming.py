"""Memory and speed of decoding without an end stay what they are."""

import pytest

from benchmarks import streaming


@pytest.mark.full
def test_memory_and_speed_are_flat(monkeypatch):
    small = streaming.build(window=16)
    monkeypatch.setattr(streaming, "build", lambda: small)
    tokens, speeds, sizes, peaks = zip(*streaming.run(6_000, num_rows=4), strict=True)
    assert tokens[-1] == 6_500 and len(set(sizes)) == 1
    assert peaks[-1] - peaks[0] < 8  # megabytes; keys of 4,500 tokens would be 9
    assert speeds[-1] > 0.5 * speeds[0]  # other programs may run beside
