"""Tables of seconds and bytes of the benchmark."""

from benchmarks import tables

SECONDS = {
    **{"graph forward": 1.0, "graph both": 6.0, "graph remat": 8.0},
    **{"xla forward": 2.0, "xla both": 5.0, "xla remat": 7.0},
    **{"dense torch forward": 4.0, "dense torch both": 20.0},
}


def test_a_row_has_the_fastest_mode_and_ratios_to_the_fastest_dense_attention():
    found = tables.row_of("local", 8192, SECONDS, {"bytes": 500_000_000}, {"bytes": 200_000_000})
    text = tables.table([{**found, "growth": None}])
    line = ["local", "8192", "xla", "2.000", "0.50", "5.000", "0.25", "-", "500", "0.35", "200"]
    assert text.splitlines()[1].split() == line
    slower = {"dense graph forward": 5.0, "dense graph both": 30.0}
    assert tables.row_of("local", 64, {**SECONDS, **slower})["both_ratio"] == 0.25
    alone = {name: value for name, value in SECONDS.items() if not name.startswith("dense")}
    assert tables.row_of("local", 64, alone)["both_ratio"] is None
    assert tables.row_of("local", 64, SECONDS, {"skipped": "no"})["bytes"] is None
