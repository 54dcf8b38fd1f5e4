"""Batches are functions of their number, equal on processes and replicas, in independent random orders."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.data.memory import ListSource
from tests.draws import is_full
from tf_sparse_attention import data
from tf_sparse_attention.data import LengthBuckets, Utterance
from tf_sparse_attention.data.batches.random_order import random_order, shuffled_index

rng = np.random.default_rng(0)
TEXTS = [rng.bytes(int(size)) for size in rng.integers(1, 240, 40)]
IMAGES = rng.integers(256, size=(10, 4, 6, 3), dtype=np.uint8)
CODEC = data.ImageCodec(4, 6, 3, "blocks", (2, 3))
MASKS = data.FeatureMasks(time_masks=5, frequency_masks=1, frequency_width=2)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Batches of all kinds by name; each has 4 rows or a multiple of it."""
    folder = tmp_path_factory.mktemp("stores")
    text = data.open_token_store(ListSource(TEXTS, folder), data.ByteTokenizer(), "train")
    target = data.open_token_store(ListSource(TEXTS[::-1], folder, "target"), data.ByteTokenizer(), "train")
    spoken = [
        Utterance(f"{number}", rng.normal(size=(int(frames), 4)).astype("float32"), list("ab c"[: 1 + number % 4]))
        for number, frames in enumerate(rng.integers(30, 790, 30))
    ]
    speech = data.SpeechBuckets(data.open_speech_store(ListSource(spoken, folder), "train"), 4, 800)
    pairs = data.PairBuckets(text, target, 4, 256)
    prefixes = data.PairBuckets(text, target, 4, 512, as_prefix=True)
    labeled = data.LabeledBuckets(text, np.arange(40) % 3, 4, 128)
    return {
        "windows": data.training_batches(text, 4, 16, seed=3),
        "masked windows": data.training_batches(text, 4, 16, seed=3, mask_rate=0.2),
        "segments": data.segment_batches(text, 4, 16, seed=3),
        "images": data.image_batches(IMAGES, CODEC, 4, use_flips=True),
        "pairs": pairs.training_batches(seed=1),
        "prefixes": prefixes.training_batches(seed=1),
        "texts with classes": labeled.training_batches(seed=1),
        "speech": speech.training_batches(seed=1, masks=MASKS),
        "evaluation of windows": data.evaluation_batches(text, 4, 64, overlap=16),
        "evaluation of masked windows": data.evaluation_batches(text, 4, 64, mask_rate=0.2),
        "evaluation of segments": data.evaluation_segments(text, 4, 64, use_packing=False),
        "evaluation of images": data.image_evaluation_batches(IMAGES, CODEC, 4),
        "evaluation of pairs": pairs.evaluation_batches(use_source=False),
        "evaluation of texts with classes": labeled.evaluation_batches(),
        "evaluation of speech": speech.evaluation_batches(),
    }


KINDS = [
    *("windows", "masked windows", "segments", "images", "pairs", "prefixes", "texts with classes", "speech"),
    *("evaluation of windows", "evaluation of masked windows", "evaluation of segments", "evaluation of images"),
    *("evaluation of pairs", "evaluation of texts with classes", "evaluation of speech"),
]


def assert_equal(ours, theirs):
    """Compare two batches, dtypes included."""
    for one, other in zip(keras.tree.flatten(ours), keras.tree.flatten(theirs), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype == np.asarray(other).dtype


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_a_function_of_their_number_and_shards_are_their_rows(kind, kinds):
    batches = kinds[kind]
    assert (batches.num_batches is None) == (not kind.startswith("evaluation"))
    stop = 9 if batches.num_batches is None else batches.num_batches
    start = stop // 2
    for dataset in (batches.dataset(start, stop), batches.grain_dataset(start, stop)):
        found = list(dataset)
        assert len(found) == stop - start > 0
        for number, batch in enumerate(found, start):
            assert_equal(batch, batches[number])
    assert not list(batches.grain_dataset(stop, stop))
    if batches.num_batches is None:  # late batches are as fast as the first
        assert_equal(next(iter(batches.dataset(10**15))), batches[10**15])
    for count in (2, 4):
        shards = [batches.shard(index, count) for index in range(count)]
        for number in (0, 1):
            parts = [shard[number] for shard in shards]
            assert_equal(keras.tree.map_structure(lambda *rows: np.concatenate(rows), *parts), batches[number])
    # Shapes are static unless batches differ in length.
    for spec in keras.tree.flatten(batches.dataset().element_spec):
        assert spec.shape.is_fully_defined() == batches.has_fixed_shapes
        assert spec.shape[2:].is_fully_defined()


def test_replicas_get_their_rows_in_static_shapes(two_replicas, kinds):
    batches = kinds["windows"]
    dataset = two_replicas.experimental_distribute_dataset(batches.dataset(3, 5))
    for spec in keras.tree.flatten(dataset.element_spec):
        assert all(part.shape == (2, 16) for part in spec._component_specs)
    for number, element in enumerate(dataset, 3):
        replicas = [two_replicas.experimental_local_results(tensor) for tensor in tf.nest.flatten(element)]
        first, second = (half.numpy() for half in replicas[2])  # targets
        assert (first != second).any()
        whole = [np.concatenate(values) for values in replicas]
        assert_equal(whole, tf.nest.flatten(batches[number]))


def test_invalid_shards_are_errors(kinds):
    for name, index, count in [("index", 2, 2), ("count", 0, 3), ("count", 0, 0)]:
        with pytest.raises(ValueError, match=f"`{name}`"):
            kinds["windows"].shard(index, count)


# One less and one more than a power of two, of even and odd exponents, and where permutations are not listed.
SIZES = [1, 2, 3, 7, 255, 256, 257, 2**16 - 1, 2**16, 2**16 + 1, 2**16 + 2, 2**17, 2**17 + 1, 2**18, 2**18 + 1]
FURTHER = [2**18 - 1, 2**20 - 1, 2**20, 2**20 + 1, 2**22 + 1]
OTHERS = [(1, 0), (2, 0), (256, 0), (2**32, 0), (2**63 - 1, 0), (0, 1), (0, 2), (0, 256), (0, 2**32), (1, 1)]


def aligned(ours, theirs):
    """Return the largest number of items that two orders have at one distance, of positions or of values."""
    count = len(ours)
    places = np.bincount((np.argsort(theirs)[ours] - np.arange(count)) % count)
    values = np.bincount((theirs - ours) % count)
    return max(places.max(), values.max())


def assert_independent(ours, theirs):
    assert sorted(theirs.tolist()) == list(range(len(ours)))
    # Of 2,000 pairs of independent orders none had more than 10; a shifted copy has thousands.
    assert aligned(ours, theirs) < 12
    assert abs(np.corrcoef(ours, theirs)[0, 1]) < 4.5 * len(ours) ** -0.5  # standard deviations


def shuffled(size, seed=0, epoch=0):
    return shuffled_index(np.arange(size), seed, np.full(size, epoch), size)


def test_every_index_occurs_once(subtests):
    for size in SIZES + (FURTHER if is_full() else []):
        with subtests.test(size=size):
            assert (np.bincount(shuffled(size, seed=3, epoch=1), minlength=size) == 1).all()


def test_orders_of_other_seeds_epochs_and_streams_are_independent(subtests):
    for size in (4000, 2**16 + 3):  # listed, and not listed
        order = shuffled(size)
        assert_independent(np.arange(size), order)
        for other in OTHERS if size == 4000 or is_full() else OTHERS[::3]:
            with subtests.test("order", size=size, other=other):
                assert_independent(order, shuffled(size, *other))
    for other in [(0, 0), *OTHERS] if is_full() else OTHERS[::3]:
        with subtests.test("stream", other=other):
            assert_independent(random_order(0, 0, 0, 4000), random_order(*other, 1, 4000))


def test_the_order_is_the_same_with_every_version_of_numpy():
    assert random_order(7, 3, 1, 8).tolist() == [6, 4, 0, 2, 5, 3, 1, 7]
    assert shuffled_index(np.arange(4), 7, np.full(4, 3), 10**6).tolist() == [839581, 456215, 662845, 368279]


def test_more_numbers_than_can_be_listed(subtests):
    for size in (2**32, 2**32 + 1, 2**61 + 5):
        with subtests.test(size=size):
            index = np.unique(np.linspace(0, size - 1, 20_000).astype("int64"))
            found = shuffled_index(index, 11, np.full(len(index), 2**35), size)
            assert found.min() >= 0 and found.max() < size and len(np.unique(found)) == len(index)
            parts = [shuffled_index(index[at : at + 2], 11, [2**35, 4], size) for at in (0, 100)]
            assert [part[0] for part in parts] == found[[0, 100]].tolist()


LENGTHS = np.random.default_rng(0).integers(100, 1600, 60)


def test_a_row_is_at_least_half_full_and_all_batches_have_as_many_positions():
    buckets = LengthBuckets(LENGTHS, batch_size=2, max_length=1600, shortest=200)
    assert buckets.lengths == [1600, 800, 400, 200]
    for _, items, _, length in buckets.plans():
        assert length * len(items) == 2 * 1600
        assert length == 200 or (LENGTHS[items[items >= 0]] > length // 2).all()


def test_orders_of_neighbouring_seeds_are_independent():
    class Numbers(LengthBuckets):
        def read(self, rows):
            return rows.items

    batches = [Numbers(np.full(4000, 10), batch_size=1, max_length=10).training_batches(seed) for seed in (0, 1)]
    orders = [[int(each[step][0]) for step in range(4000)] for each in batches]
    assert aligned(*np.array(orders)) < 12
