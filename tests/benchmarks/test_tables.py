"""Tables of seconds and bytes of the benchmark."""

from benchmarks import tables

SECONDS = {
    "graph forward": 1.0,
    "graph both": 6.0,
    "graph remat": 8.0,
    "xla forward": 2.0,
    "xla both": 5.0,
    "xla remat": 7.0,
    "dense torch forward": 4.0,
    "dense torch both": 20.0,
}


def row(**changes):
    return {**tables.row_of("local", 8192, SECONDS, {"bytes": 500_000_000}, {"bytes": 200_000_000}), **changes}


def test_a_row_has_the_fastest_mode_and_ratios_to_the_fastest_dense_attention():
    found = row()
    assert (found["mode"], found["forward"], found["both"]) == ("xla", 2.0, 5.0)
    assert [found[f"{name}_ratio"] for name in ("forward", "both", "remat")] == [0.5, 0.25, 0.35]
    slower = {"dense graph forward": 5.0, "dense graph both": 30.0}
    assert tables.row_of("local", 64, {**SECONDS, **slower})["both_ratio"] == 0.25
    alone = {name: value for name, value in SECONDS.items() if not name.startswith("dense")}
    assert tables.row_of("local", 64, alone)["both_ratio"] is None
    assert tables.row_of("local", 64, SECONDS, {"skipped": "no"})["bytes"] is None


def test_a_table_has_a_line_for_each_row_and_a_dash_for_missing_values():
    text = tables.table([row(growth=None), row(length=64, bytes=None, growth=1.999)])
    header, first, second = text.splitlines()
    assert header.split()[:3] == ["case", "length", "mode"]
    assert first.split() == ["local", "8192", "xla", "2.000", "0.50", "5.000", "0.25", "-", "500", "0.35", "200"]
    assert second.split() == ["local", "64", "xla", "2.000", "0.50", "5.000", "0.25", "2.00", "-", "0.35", "200"]
    header, rule, line = tables.table([row(growth=2.0)], markdown=True).splitlines()
    assert header.count("|") == rule.count("|") == line.count("|") == len(tables.COLUMNS) + 1
    assert rule.startswith("| :--") and rule.endswith("--: |")
