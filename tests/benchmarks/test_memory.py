"""Peak memory of a process, as the system counts it."""

import numpy as np
import pytest

from benchmarks import memory


@pytest.mark.skipif(not memory.can_measure(), reason="this system does not let the peak be reset")
def test_the_peak_is_the_largest_memory_of_a_call_even_if_it_is_freed():
    held = np.ones(50_000_000, "float32")  # 200 MB, which do not count

    def take_and_give_back():
        np.ones(30_000_000, "float32")  # 120 MB
        np.ones(10_000_000, "float32")

    assert 115e6 < memory.peak_above_now(take_and_give_back) < 160e6
    assert held.size
