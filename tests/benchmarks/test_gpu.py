"""The programs of `python -m benchmarks.gpu` on JAX."""

import json

import pytest

from benchmarks import gpu


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
