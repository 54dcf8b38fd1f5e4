"""Properties of all batches: pure functions of their number, and equal on processes and replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention import data
from tf_sparse_attention.data import Utterance

rng = np.random.default_rng(0)
TEXTS = [rng.bytes(int(size)) for size in rng.integers(1, 240, 40)]
IMAGES = rng.integers(256, size=(10, 4, 6, 3), dtype=np.uint8)
CODEC = data.ImageCodec(4, 6, 3, "blocks", (2, 3))
MASKS = data.FeatureMasks(time_masks=5, frequency_masks=1, frequency_width=2)


class Source:
    """A source of text or speech in memory."""

    unit, labels, num_features, name, description = "character", None, 4, "memory", {}

    def __init__(self, items, data_dir, fingerprint="memory"):
        self.items, self.data_dir, self.fingerprint = items, str(data_dir), fingerprint

    def documents(self, split):
        return iter(self.items)

    utterances = documents


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Batches of all kinds by name; each has 4 rows or a multiple of it."""
    folder = tmp_path_factory.mktemp("stores")
    text = data.open_token_store(Source(TEXTS, folder), data.ByteTokenizer(), "train")
    target = data.open_token_store(Source(TEXTS[::-1], folder, "target"), data.ByteTokenizer(), "train")
    spoken = [
        Utterance(f"{number}", rng.normal(size=(int(frames), 4)).astype("float32"), list("ab c"[: 1 + number % 4]))
        for number, frames in enumerate(rng.integers(30, 790, 30))
    ]
    speech = data.SpeechBuckets(data.open_speech_store(Source(spoken, folder), "train"), 4, 800)
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


def joined(parts):
    return keras.tree.map_structure(lambda *rows: np.concatenate(rows), *parts)


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
            assert_equal(joined([shard[number] for shard in shards]), batches[number])
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
