"""The tables of `python -m benchmarks.gpu`, and its programs on JAX where there is a device."""

import json

import pytest

from benchmarks import gpu

ROWS = [
    {"case": "local", "length": 2048, "pass": "forward", "seconds": 0.001, "bytes": 1e6},
    {"case": "local", "length": 2048, "pass": "both", "seconds": 0.003, "bytes": 2e6},
    {"case": gpu.DENSE, "length": 2048, "pass": "forward", "seconds": 0.002, "bytes": 3e6},
    {"case": gpu.DENSE, "length": 2048, "pass": "both", "seconds": 0.012, "bytes": 4e6},
]


def test_a_row_has_milliseconds_shares_of_dense_attention_and_memory_and_is_empty_where_unmeasured():
    assert gpu.table(ROWS).splitlines()[2:] == [
        "| 2048 | local | 1.00 | 0.50 | 3.00 | 0.25 | 2 |",
        "| 2048 | cuDNN dense | 2.00 | 1.00 | 12.00 | 1.00 | 4 |",
    ]
    assert gpu.table(ROWS[:1]).splitlines()[2:] == ["| 2048 | local | 1.00 |  |  |  |  |"]
    assert gpu.shares(ROWS[:3]).splitlines()[2:] == ["| local | 0.50 |  | 2 |", "| cuDNN dense | 1.00 |  |  |"]


@pytest.mark.full
def test_programs_are_measured_on_jax_without_missing_kernels(run_python, tmp_path):
    arguments = ["--lengths", "512", "--tokens", "512", "--repeats", "2", "--cases", "local", gpu.WINDOW]
    path = str(tmp_path / "found.json")
    code = f"from benchmarks import gpu; gpu.main({[*arguments, '--json', path]})"
    said = run_python(code, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    assert [(row["case"], row["pass"]) for row in rows] == [("local", "forward"), ("local", "both")]
    assert "| 512 | local |" in said and gpu.WINDOW not in said
