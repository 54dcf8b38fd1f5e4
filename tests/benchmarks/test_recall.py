"""The recall task: what it asks, and that routing answers where local attention cannot."""

import numpy as np
import pytest

from benchmarks import recall


def pairs_of(task):
    return task.token_ids[:, 0::2], task.token_ids[:, 1::2]


def test_a_key_has_one_value_in_a_sequence_and_another_in_the_next():
    keys, values = pairs_of(recall.draw(50, seed=0))
    tables = [{*zip(*pair, strict=True)} for pair in zip(keys.tolist(), values.tolist(), strict=True)]
    assert all(len(table) == len({key for key, _ in table}) for table in tables)
    assert len({value for table in tables for key, value in table if key == 1}) > 8
    # Keys and values have different ids, and neither is 0, padding.
    assert (keys.min(), keys.max()) == (1, recall.NUM_KEYS)
    assert (values.min(), values.max()) == (1 + recall.NUM_KEYS, 2 * recall.NUM_KEYS)


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


def test_a_seed_gives_the_same_sequences():
    for first, second in zip(recall.draw(3, seed=[4, 1]), recall.draw(3, seed=[4, 1]), strict=True):
        np.testing.assert_array_equal(first, second)
    assert (recall.draw(3, seed=4).token_ids != recall.draw(3, seed=5).token_ids).any()


class Copies:
    """A model that names the value that followed the key when it last came within `reach` positions, else nothing."""

    def __init__(self, reach):
        self.reach = reach

    def predict(self, token_ids, **kwargs):
        logits = np.zeros((*token_ids.shape, 1 + 2 * recall.NUM_KEYS))
        for row, ids in enumerate(token_ids):
            for place in range(0, len(ids), 2):
                earlier = [j for j in range(0, place, 2) if ids[j] == ids[place] and place - j <= self.reach]
                if earlier:
                    logits[row, place, ids[earlier[-1] + 1]] = 1
        return logits


def test_the_score_is_only_of_keys_beyond_all_windows():
    task = recall.draw(5, seed=6)
    assert recall.accuracy(Copies(reach=128), task) == 1
    assert recall.accuracy(Copies(reach=recall.NUM_LAYERS * recall.WINDOW), task) == 0


@pytest.mark.full
def test_the_curve_begins_at_chance_and_has_a_point_each_time(tmp_path, monkeypatch):
    draw = recall.draw
    monkeypatch.setattr(recall, "draw", lambda number, seed: draw(min(number, 8), seed))  # 64 of them are scored else
    curve = recall.train("local", seed=0, num_steps=2, batch_size=2, every=1, jit_compile=False)
    assert [step for step, _ in curve] == [0, 1, 2]
    assert all(value < 0.25 for _, value in curve)
    recall.plot({"local": {0: curve}}, tmp_path / "recall.png")
    assert (tmp_path / "recall.png").stat().st_size > 5000


@pytest.mark.large
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_routing_recalls_values_beyond_the_window_and_local_attention_does_not(seed):
    assert recall.train("local + nearest", seed)[-1][1] >= 0.9
    assert recall.train("local", seed)[-1][1] < 2 * recall.CHANCE
