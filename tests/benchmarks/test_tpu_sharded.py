"""The table of what each device of a TPU has to hold."""

from benchmarks import tpu_sharded

COUNTS = dict.fromkeys(tpu_sharded.COLLECTIVES, 3)


def test_a_row_has_a_cell_for_each_column():
    sizes = {"state_bytes": 2_000_000, "temporary_bytes": 5_000_000, "peak_bytes": 6_400_000}
    result = {"split": [4, 2], **sizes, "flops": 7e9, "collectives": COUNTS, "seconds": 8.2}
    assert tpu_sharded.row(result).split() == ["4x2", "2", "5", "6", "7", *["3"] * 5, "8"]


def test_too_much_memory_is_an_answer():
    result = {"split": [8, 1], "needed_gb": 20.25, "available_gb": 15.75}
    assert tpu_sharded.row(result).split(maxsplit=1) == ["8x1", "does not fit: 20.25 GB of 15.75 GB"]
    said = "Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm. Exceeded hbm capacity by 4.50G."
    assert tpu_sharded.TOO_MUCH.search(said).groups() == ("20.25", "15.75")


def test_without_the_compiler_nothing_is_compiled(monkeypatch, capsys):
    monkeypatch.setattr(tpu_sharded.tpu_compile, "missing_packages", lambda: ["libtpu"])
    assert tpu_sharded.main([]) == 3
    assert "not installed: libtpu" in capsys.readouterr().err
