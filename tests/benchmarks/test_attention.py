"""The command `python -m benchmarks.attention`."""

import pytest

from benchmarks import attention, worker


def fake_run(wanted, backend):
    """Replace a process. Time and memory are linear in the length."""
    if wanted.kind == "memory":
        return {"bytes": wanted.length * (1000 if wanted.remat else 2000)}
    names = [f"{mode} {part}" for mode in wanted.modes for part in ("forward", "both", "remat")]
    return {**dict.fromkeys(names, wanted.length * 1e-5), "dense torch forward": 1.0, "dense torch both": 2.0}


def test_a_missed_aim_fails_a_check_and_only_a_check(capsys):
    slow = ["--lengths", "8192", "--cases", "local", "--backend", "jax"]

    def run(wanted, backend):
        return dict.fromkeys(fake_run(wanted, backend), 1.0) if wanted.kind == "time" else {"bytes": 1}

    assert attention.main(slow, run=run) == 0
    assert attention.main([*slow, "--check"], run=run) == 1
    assert attention.main([*slow, "--check"], run=fake_run) == 0
    assert "MISSED local: forward and backward of dense 1, at most 0.18" in capsys.readouterr().out


@pytest.mark.full
def test_a_worker_measures_time_in_every_mode_and_skips_what_does_not_fit_into_memory():
    seconds = worker.measure(worker.Measurement("time", "local", 32, modes=("graph",), repeats=1))
    assert {"graph forward", "graph both", "graph remat"} <= set(seconds)
    assert all(0 < value < 60 for value in seconds.values())
    skipped = worker.measure(worker.Measurement("time", "keras dense", 2_000_000, modes=("graph",)))
    assert skipped["skipped"].startswith("needs about")


@pytest.mark.large
def test_a_process_reports_the_peak_of_its_memory():
    result = attention.run_worker(worker.Measurement("memory", "local", 256, modes=("graph",)), "tensorflow")
    # Output and three gradients are 2 MB; the process must not count the libraries it has loaded.
    assert "skipped" in result or 2e6 < result["bytes"] < 100e6


@pytest.mark.large
def test_the_aims_are_met_at_8192(capsys):
    cases = ["local", "nearest", "top_k", "selected"]
    assert attention.main(["--lengths", "4096", "8192", "--check", "--cases", *cases]) == 0, capsys.readouterr().out
