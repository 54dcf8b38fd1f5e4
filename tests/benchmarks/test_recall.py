"""The recall task: what it asks, and that routing answers where local attention cannot."""

import pytest

from benchmarks import recall


def pairs_of(task):
    return task.token_ids[:, 0::2], task.token_ids[:, 1::2]


def test_the_target_of_a_repeated_key_is_its_value_at_the_distance_to_the_last_one():
    task = recall.draw(20, seed=1)
    keys, values = pairs_of(task)
    for row in range(20):
        last = {}
        for index, (key, value) in enumerate(zip(keys[row], values[row], strict=True)):
            assert task.targets[row, 2 * index] == (value if key in last else 0)
            assert task.distances[row, 2 * index] == (2 * (index - last[key]) if key in last else 0)
            last[key] = index
    assert not task.targets[:, 1::2].any() and not task.distances[:, 1::2].any()


@pytest.mark.large
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_routing_recalls_values_beyond_the_window_and_local_attention_does_not(seed):
    assert recall.train("local + nearest", seed)[-1][1] >= 0.9
    assert recall.train("local", seed)[-1][1] < 2 * recall.CHANCE
