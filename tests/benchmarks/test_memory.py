"""Peak memory of a process, as the system counts it."""

import numpy as np
import pytest

from benchmarks import memory

needs_linux = pytest.mark.skipif(not memory.can_measure(), reason="this system does not let the peak be reset")


@needs_linux
def test_the_peak_is_the_largest_memory_of_a_call_even_if_it_is_freed():
    def take_and_give_back():
        np.ones(30_000_000, "float32")  # 120 MB
        np.ones(10_000_000, "float32")

    assert 115e6 < memory.peak_above_now(take_and_give_back) < 160e6


@pytest.mark.full
@needs_linux
def test_memory_allocated_before_the_call_does_not_count():
    held = np.ones(50_000_000, "float32")  # 200 MB
    assert memory.peak_above_now(lambda: np.ones(5_000_000, "float32")) < 100e6
    assert held.size


def test_a_field_of_the_status_is_read_in_bytes(tmp_path):
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t    12 kB\nVmRSS:\t     7 kB\n")
    assert memory.status("VmHWM", tmp_path) == 12 * 1024
    with pytest.raises(ValueError, match=r"`name` must be a field of .* Received: name='VmNone'"):
        memory.status("VmNone", tmp_path)
