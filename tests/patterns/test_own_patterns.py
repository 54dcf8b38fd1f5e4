"""Custom patterns: own groups, selectors, and keys beyond an adaptive span."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.layers.decoded import largest_error
from tf_sparse_attention import patterns
from tf_sparse_attention.layers import LocalAttention, RoutingAttention, SparseAttention
from tf_sparse_attention.patterns.nearest import RandomGroups

LENGTH, SIZE = 14, 6
X = np.random.default_rng(0).standard_normal((2, LENGTH, SIZE)).astype("float32")


@dataclasses.dataclass(frozen=True)
class Halves(patterns.GroupBand):
    """The last keys whose first channel lies on the same side of a threshold, which moves to the mean in training."""

    size: int
    num_groups = 2

    @property
    def band(self):
        return self.size

    def make_selector(self, weights):
        threshold = Threshold(weights.num_heads, dtype=weights.dtype)
        return patterns.GroupSelector(threshold, self.num_groups, weights.num_heads, weights.normalizes)


class Threshold(keras.layers.Layer):
    def __init__(self, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.threshold = self.add_weight(shape=(num_heads,), initializer="zeros", trainable=False)

    def assign(self, heads, positions):
        return ops.cast(heads[..., 0] > self.threshold[:, None], "int32")

    def learn(self, sides):
        channels = ops.concatenate([heads[..., 0] for heads, _, _ in sides], axis=-1)
        self.threshold.assign(ops.mean(channels, axis=(0, 2)))


@dataclasses.dataclass(frozen=True)
class EveryThird(patterns.Pattern):
    """The keys whose positions are multiples of three."""

    reach = None

    def visible(self, query, key):
        return key.position % 3 == 0

    def arrange(self, call, selection=None):
        return patterns.Grid(call.query_length, call.key_length, max(call.query_length, call.key_length), 0, 0)

    def cache(self):
        return patterns.Everything()


class WindowAndThirds(LocalAttention):
    """A window that a learned span ends, and keys that it does not."""

    @property
    def pattern(self):
        return patterns.Union((super().pattern, EveryThird()))


def check_decoding(layer):
    """Compare decoding after prompts with one causal call."""
    assert largest_error(layer, X, np.array([5, 11])) < 1e-5


@pytest.mark.parametrize("share_qk", first([False, True], 1))
def test_own_groups_learn_in_training_and_decode_as_they_attend(share_qk):
    layer = SparseAttention(2, 4, patterns.Window(2) | Halves(3), share_qk=share_qk)
    layer.build(X.shape)
    (threshold,) = layer.non_trainable_weights
    assert not np.any(threshold)
    layer(X, use_causal_mask=True, training=True)
    assert np.all(np.abs(threshold) > 1e-3)
    check_decoding(layer)


def test_keys_beyond_a_span_decode_as_they_attend():
    keras.utils.set_random_seed(0)
    layer = WindowAndThirds(2, 4, window=8, adaptive_span={"ramp": 2, "initial": 0.3})
    layer.build(X.shape)
    seen = ops.convert_to_numpy(layer.attention_pattern(X, use_causal_mask=True))[0, 0]
    assert np.flatnonzero(seen[13]).tolist() == [0, 3, 6, 9, 10, 11, 12, 13]
    check_decoding(layer)


@dataclasses.dataclass(frozen=True)
class CausalThirds(EveryThird):
    must_be_causal = True


def test_wrong_own_patterns_are_named():
    @dataclasses.dataclass(frozen=True)
    class Nobodys(patterns.GroupBand):
        num_groups = 2
        band = 3

    with pytest.raises(ValueError, match="`pattern` must define `make_selector`"):
        SparseAttention(2, 4, patterns.Window(2) | Nobodys())
    with pytest.raises(ValueError, match=r"`pattern` must be .* accepts a `lead` of -1"):
        patterns.Successors(EveryThird())
    for pattern in (CausalThirds(), patterns.Window(2) | CausalThirds()):
        layer = SparseAttention(2, 4, pattern)
        for call in (layer, layer.attention_pattern):
            with pytest.raises(ValueError, match="`use_causal_mask` must be True"):
                call(X)
        assert layer(X, use_causal_mask=True).shape == X.shape


class SideSelection(patterns.Selection):
    def __init__(self, query, key):
        self.sides = patterns.TokenFeatures({"side": query}, {"side": key})

    def features(self):
        return self.sides


class SideSelector(patterns.Selector):
    """Selector with a Keras layer as attribute, which is not a `GroupSelector`."""

    key_features = ("side",)

    def __init__(self, threshold):
        self.threshold = threshold

    def select(self, inputs):
        return SideSelection(self.threshold.assign(inputs.query, None), self.threshold.assign(inputs.key, None))

    def add(self, state, inputs, tokens):
        return {}, {"side": self.threshold.assign(inputs.key, None)}

    def select_new(self, state, inputs, tokens, added):
        return patterns.TokenFeatures({"side": self.threshold.assign(inputs.query, None)}, added)


@dataclasses.dataclass(frozen=True)
class SameSide(EveryThird):
    """The keys on the same side of a threshold."""

    content_based = True

    def visible(self, query, key):
        return query.side == key.side

    def make_selector(self, weights):
        return SideSelector(Threshold(weights.num_heads, dtype=weights.dtype))


def test_an_own_selector_decodes_and_its_layers_are_tracked():
    layer = SparseAttention(2, 4, SameSide())
    layer.build(X.shape)
    assert [weight.path for weight in layer.non_trainable_weights if "threshold" in weight.path]
    check_decoding(layer)


def test_the_pattern_of_routing_has_its_arguments():
    layer = RoutingAttention(2, 4, 3, 5, ema_decay=0.5, commitment_loss=1.0, revive_after=7)
    assert layer.pattern == patterns.Nearest(3, 5, 0.5, 1.0, 7)
    assert RoutingAttention(2, 4, 3, 5, selection="random").pattern == RandomGroups(3, 5)
