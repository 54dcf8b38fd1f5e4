"""What every attention layer keeps: the checks, written once, and the makers of the layers that have to pass them.

A new layer joins with one entry in `MAKERS` and, for `check_dense_twin`, one case in `tests/layers/dense.py`; the files
`tests/layers/test_contract_*.py` do the rest. The checks here use no backend of their own: a few run on JAX as well.

What a layer declares, as an attribute of its class:

- `causal_selection` (default True): under a causal mask, WHICH keys a query sees is independent of later tokens. A
  layer that says False is checked to look ahead, so that the word is neither missing nor out of date.

What its maker says in `Maker`: how it is called, and which of the optional promises it makes.
"""

import dataclasses
import itertools
from collections.abc import Callable

import keras
import numpy as np
import pytest
from keras import ops

from tests.layers.dense import dense_call
from tf_sparse_attention.analysis.gradients import vector_jacobian_product
from tf_sparse_attention.layers import (
    AllAttention,
    ClusteredAttention,
    FixedAttention,
    GlobalLocalAttention,
    LocalAttention,
    LocalAttention2D,
    LSHAttention,
    MixedAttention,
    RoutingAttention,
    SparseAttention,
    StridedAttention,
)
from tf_sparse_attention.patterns import Dilated, First, Nearest, Window

# In units of one, the size of the outputs compared. Seen: 1e-7 where the order of sums is the same, 1e-6 where tokens
# are grouped otherwise or another program multiplies the matrices.
SAME, CLOSE = 2e-6, 5e-6
SIZE = 8  # features of the inputs


@dataclasses.dataclass(frozen=True)
class Maker:
    """How to make one kind of attention layer, and what it promises.

    Attributes:
        make: takes the keyword arguments that all attention layers have (dropout, use_bias, value_dim, output_shape,
            seed, dtype ...) and returns a layer.
        causal: whether the checks call it with `use_causal_mask=True`.
        crosses: whether it takes a value and a key that are not the query, of other lengths too.
        packs: whether a packed document gets what it gets alone.
        can_be_causal: whether later positions can be hidden at all; one where they cannot says so in an error.
        pairs: whether it takes masks of pairs of tokens; one that does not takes attention masks of keys alone.
        vectors: whether every query also sees persistent vectors, whose weights are not among those returned.
    """

    make: Callable
    causal: bool = True
    crosses: bool = False
    packs: bool = True
    can_be_causal: bool = True
    pairs: bool = True
    vectors: bool = False

    def call(self, layer, *inputs, **arguments):
        """Calls a layer of this kind and returns arrays."""
        return to_numpy(self.call_tensor(layer, *inputs, **arguments))

    def call_tensor(self, layer, *inputs, **arguments):
        """Calls a layer of this kind and returns tensors."""
        return layer(*inputs, use_causal_mask=self.causal, **arguments)


def local(**own):
    return lambda **common: LocalAttention(2, 4, **own, **common)


def local_2d(**own):
    return lambda **common: LocalAttention2D(2, 4, width=5, **own, **common)


def all_attention(**own):
    return lambda **common: AllAttention(2, 4, num_persistent=3, window=4, **own, **common)


def strided(num_heads, **own):
    return lambda **common: StridedAttention(num_heads, 4, **own, **common)


def fixed(num_heads, **own):
    return lambda **common: FixedAttention(num_heads, 4, **own, **common)


def global_local(**own):
    return lambda **common: GlobalLocalAttention(2, 4, num_global=3, **own, **common)


def clustered(**own):
    options = {"num_clusters": 3, "num_bits": 16, "num_iterations": 3, **own}
    return lambda **common: ClusteredAttention(2, 4, **options, **{"seed": 5, **common})


def lsh(**own):
    options = {"num_buckets": 4, "bucket_size": 3, **own}
    return lambda **common: LSHAttention(2, 4, **options, **{"seed": 5, **common})


def routing(**own):
    options = {"num_clusters": 3, "cluster_size": 4, **own}
    return lambda **common: RoutingAttention(2, 4, **options, **{"seed": 5, **common})


def sparse(pattern, **own):
    return lambda **common: SparseAttention(2, 4, pattern, **own, **{"seed": 5, **common})


def mixed(**common):
    parts = [make(**common) for make in (local(window=3, position="relative"), routing(position="rotary"))]
    return MixedAttention(parts, dtype=common.get("dtype"))


SINKS, ROUTED = Window(4) | First(2), Dilated(2, 3) | Nearest(3, 4)
NEVER_CAUSAL = {"causal": False, "can_be_causal": False}
CLUSTERED = {**NEVER_CAUSAL, "crosses": True, "packs": False, "pairs": False}
MAKERS = {
    "sparse_sinks": Maker(sparse(SINKS, position="relative")),
    "sparse_sinks_both_sides": Maker(sparse(SINKS, position="alibi"), causal=False),
    "sparse_routed": Maker(sparse(ROUTED, position="rotary")),
    "local_blocks": Maker(local(block_size=4, position="rotary"), crosses=True, packs=False),
    "local_blocks_both_sides": Maker(local(block_size=3, num_blocks_after=2), causal=False, crosses=True, packs=False),
    "local_blocks_of_two_sizes": Maker(
        local(block_size=3, key_block_size=4, position="rotary"), **NEVER_CAUSAL, crosses=True, packs=False
    ),
    "local_window": Maker(local(window=5), crosses=True),
    "local_window_relative": Maker(local(window=4, position="relative", max_distance=2), crosses=True),
    "local_window_alibi": Maker(local(window=3, position="alibi"), causal=False, crosses=True),
    "local_2d": Maker(local_2d(block_shape=(2, 2), position="rotary"), crosses=True, packs=False),
    "local_2d_both_sides": Maker(
        local_2d(block_shape=(1, 2), num_blocks_after=(2, 0), position="alibi"), causal=False, crosses=True, packs=False
    ),
    "local_2d_blocks": Maker(
        local_2d(block_shape=(4, 3), height=15, order="blocks", position="relative", max_distance=6),
        crosses=True,
        packs=False,
    ),
    "local_2d_blocks_both_sides": Maker(
        local_2d(block_shape=(2, 5), order="blocks", num_blocks_before=(1, 0)), causal=False, crosses=True, packs=False
    ),
    "global_window": Maker(global_local(window=3, num_first_global=2), **NEVER_CAUSAL, packs=False),
    "global_window_relative": Maker(
        global_local(window=3, num_first_global=2, position="relative", max_distance=4), **NEVER_CAUSAL, packs=False
    ),
    "global_window_span": Maker(
        global_local(window=4, num_first_global=1, position="alibi", adaptive_span={"ramp": 2, "initial": 0.3}),
        **NEVER_CAUSAL,
        packs=False,
    ),
    "global_blocks": Maker(global_local(block_size=4, num_first_global=1), **NEVER_CAUSAL, packs=False),
    "all": Maker(all_attention(position="relative", see_self=False), crosses=True, vectors=True),
    "all_span": Maker(
        all_attention(position="rotary", adaptive_span={"ramp": 2, "initial": 0.3}), crosses=True, vectors=True
    ),
    "all_split": Maker(all_attention(variant="split", position="alibi"), causal=False, crosses=True, vectors=True),
    "all_head_split": Maker(all_attention(variant="head_split"), crosses=True, vectors=True),
    "local_span": Maker(
        local(window=5, position="relative", adaptive_span={"ramp": 2, "initial": 0.3}), causal=False, crosses=True
    ),
    "clustered": Maker(clustered(), **CLUSTERED),
    "improved_clustered": Maker(clustered(top_k=4, position="rotary"), **CLUSTERED),
    "strided": Maker(strided(3, stride=4, position="relative", max_distance=6), crosses=True),
    "strided_merged": Maker(strided(2, stride=3, heads="merged", position="rotary"), causal=False, crosses=True),
    "strided_far": Maker(strided(2, stride=4, heads="interleaved", layer_index=1, position="alibi"), crosses=True),
    "fixed": Maker(fixed(4, block_size=4, num_groups=2, num_summary=1, position="alibi"), crosses=True, packs=False),
    "fixed_merged": Maker(
        fixed(4, block_size=5, num_groups=2, num_summary=2, heads="merged", position="relative"),
        crosses=True,
        packs=False,
    ),
    "fixed_far": Maker(
        fixed(2, block_size=4, num_summary=3, heads="interleaved", layer_index=3, position="rotary"),
        causal=False,
        crosses=True,
        packs=False,
    ),
    "nearest": Maker(routing(position="relative")),
    "nearest_both_sides": Maker(routing(selection="nearest", position="alibi"), causal=False),
    "nearest_token_distance": Maker(routing(position="relative", distance="token", mask_self=False)),
    "nearest_separate": Maker(routing(share_qk=False, position="rotary")),
    "nearest_separate_relative": Maker(routing(share_qk=False, position="relative", mask_self=True)),
    "lsh": Maker(lsh(num_rounds=2, position="relative")),
    "lsh_both_sides": Maker(lsh(num_rounds=3, position="alibi", mask_self=False), causal=False),
    "lsh_separate": Maker(lsh(num_rounds=2, share_qk=False, position="rotary")),
    "lsh_chunks": Maker(lsh(selection="chunks", num_rounds=2, position="relative"), packs=False),
    "lsh_chunks_both_sides": Maker(lsh(selection="chunks", num_rounds=3, position="alibi"), causal=False, packs=False),
    "lsh_chunks_separate": Maker(
        lsh(selection="chunks", num_rounds=2, share_qk=False, position="rotary"), causal=False, packs=False
    ),
    "random": Maker(routing(selection="random", position="alibi"), packs=False),
    "top_k": Maker(routing(position="relative"), causal=False, packs=False),
    "top_k_separate": Maker(
        routing(share_qk=False, selection="top_k", position="alibi"), causal=False, crosses=True, packs=False
    ),
    "top_k_published": Maker(routing(selection="top_k", reproduce_reference=True, position="relative"), packs=False),
    "strided_clusters": Maker(routing(selection="strided", position="relative"), packs=False),
    "strided_clusters_separate": Maker(
        routing(share_qk=False, selection="strided", position="alibi"), causal=False, crosses=True, packs=False
    ),
    "hash_buckets": Maker(routing(selection="hash", num_clusters=4, cluster_size=9, position="rotary"), packs=False),
    "hash_buckets_separate": Maker(
        routing(share_qk=False, selection="hash", num_clusters=2, cluster_size=9, position="relative"),
        causal=False,
        crosses=True,
        packs=False,
    ),
    "mixed": Maker(mixed),
}


# All ways of computing: the parts of "mixed" are local and shared nearest, those of "fixed" heads of two patterns. What
# takes long, or follows from equality with the dense twin, runs for these, and for the others as a `large` test.
REPRESENTATIVE = ("all", "fixed", "nearest_separate", "top_k_separate", "mixed")
# One of each class and each way to arrange tokens, which have all quick checks by default.
ONE_A_CLASS = (*REPRESENTATIVE, "sparse_sinks", "sparse_routed", "local_blocks", "local_window_relative", "local_2d")
ONE_A_CLASS += (
    "global_window_relative",
    "all_span",
    "improved_clustered",
    "strided_merged",
    "nearest",
    "lsh",
    "lsh_chunks",
)


def every_layer(*, slow=False, slowest=False, **wanted):
    """Parametrises a test over the makers, or those with certain attributes, as `maker`.

    Args:
        slow: leave all but the `REPRESENTATIVE` ones to `large`; else all but `ONE_A_CLASS` are left to `full`.
        slowest: leave all but "mixed" to `large`.
        **wanted: attributes of the makers to take.
    """
    by_default = ("mixed",) if slowest else REPRESENTATIVE if slow else ONE_A_CLASS
    others = pytest.mark.large if slow or slowest else pytest.mark.full
    return pytest.mark.parametrize(
        "maker",
        [
            pytest.param(maker, id=name, marks=() if name in by_default else others)
            for name, maker in MAKERS.items()
            if all(getattr(maker, attribute) == value for attribute, value in wanted.items())
        ],
    )


def normal(*shape, seed=0):
    """Returns an array of normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def to_numpy(x):
    """Returns tensors as arrays, those of half precision as float32."""

    def convert(tensor):
        half = keras.backend.standardize_dtype(tensor.dtype) == "bfloat16"
        return ops.convert_to_numpy(ops.cast(tensor, "float32") if half else tensor)

    return keras.tree.map_structure(convert, x)


def assert_close(actual, expected, tolerance=SAME):
    """Fails unless two arrays are equal up to rounding."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def with_random_weights(layer, seed=1):
    """Gives a built layer weights without zeros and ones, so that a bias or table that is not used shows."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(0.5 * rng.standard_normal(weight.shape))
    return layer


def built(maker, shape=(2, 13, SIZE), **common):
    """Returns a built layer of a kind with random weights."""
    layer = maker.make(**common)
    layer.build(shape)
    return with_random_weights(layer)


def gradients(layer, maker, x, **arguments):
    """Returns the gradients of a random projection of the output and the layer's losses: of `x`, of each weight."""
    variables = layer.trainable_variables

    def run(sources):
        with keras.StatelessScope(state_mapping=list(zip(variables, sources[1:], strict=True)), collect_losses=True):
            output = layer(sources[0], use_causal_mask=maker.causal, **arguments)
            return [output, sum(layer.losses, ops.zeros(()))]

    sources = [ops.convert_to_tensor(x), *(ops.convert_to_tensor(variable.value) for variable in variables)]
    (output, _), pull_back = vector_jacobian_product(run, sources)
    projection = ops.cast(normal(*output.shape, seed=9), output.dtype)
    return to_numpy(pull_back([projection, ops.ones(())]))


def random_masks(batch, heads, length, seed=2, pairs=True):
    """Returns masks of every kind at once, as a call takes them: some queries are left with nothing to see.

    Without `pairs` the attention mask is one of keys for each head, and there are no segments.
    """
    rng = np.random.default_rng(seed)
    masks = {
        "query_mask": np.arange(length) < rng.integers(length // 2, length + 1, (batch, 1)),
        "key_mask": rng.random((batch, length)) < 0.8,
        "attention_mask": rng.random((batch, heads, length, length)) < 0.7,
        "segment_ids": np.sort(rng.integers(0, 3, (batch, length))).astype("int32"),
    }
    if not pairs:
        del masks["segment_ids"]
        masks["attention_mask"] = masks["attention_mask"][:, :, :1]
    return masks


def check_config_round_trip(maker):
    """A layer made from the config of another, with its weights, computes the same."""
    layer, x = built(maker, dropout=0.1, use_bias=False, value_dim=3), normal(2, 13, SIZE)
    copy = type(layer).from_config(layer.get_config())
    copy.build(x.shape)
    copy.set_weights(layer.get_weights())
    assert copy.get_config() == layer.get_config()
    np.testing.assert_array_equal(maker.call(copy, x), maker.call(layer, x))


def check_dense_twin(maker, **masks):
    """Output, weights and pattern are those of dense attention, computed from the layer's own weights."""
    layer, x = built(maker), normal(2, 13, SIZE)
    expected = dense_call(layer, x, causal=maker.causal, **masks)
    output, weights = maker.call(layer, x, return_attention_scores=True, **masks)
    pattern = to_numpy(layer.attention_pattern(x, use_causal_mask=maker.causal, **masks))
    np.testing.assert_array_equal(pattern, expected.pattern)
    assert_close(weights, expected.weights)
    assert_close(output, expected.output, CLOSE)


def check_gradients(maker):
    """Every trainable weight gets a gradient, save those that a softmax does not notice."""
    layer, x = built(maker), normal(2, 13, SIZE)
    of_x, *of_weights = gradients(layer, maker, x, training=True)
    assert np.all(np.isfinite(of_x)) and np.all(np.any(of_x != 0, axis=-1))
    unnoticed = _unnoticed_weights(layer)
    for weight, gradient in zip(layer.trainable_weights, of_weights, strict=True):
        assert np.all(np.isfinite(gradient)), weight.path
        assert weight.path in unnoticed or np.abs(gradient).max() > 1e-4, weight.path


def _unnoticed_weights(layer):
    """Returns the paths of the weights that no softmax notices: a bias that moves all scores of a query alike.

    That of the keys does, unless they are normalised after it, as in routing, or turned by their positions.
    """
    return {
        weight.path
        for part in getattr(layer, "parts", [layer])
        if not isinstance(part, RoutingAttention) and part.position != "rotary"
        for weight in part.trainable_weights
        if weight.path.endswith("key/bias")
    }


def check_padding(maker, lengths=(1, 2, 7, 65)):
    """Sequences of any length get alone, in a batch of one, what they get padded beside longer ones."""
    layer, x = built(maker), normal(len(lengths), max(lengths) + 5, SIZE)
    mask = np.arange(max(lengths) + 5) < np.reshape(lengths, (-1, 1))
    padded = maker.call(layer, np.where(mask[..., None], x, 1e3 * x), query_mask=mask)
    for row, length in enumerate(lengths):
        alone = maker.call(layer, x[row : row + 1, :length])
        assert alone.shape == (1, length, SIZE) and np.all(np.isfinite(alone))
        assert_close(padded[row, :length], alone[0], CLOSE)


def check_batch_mates(maker):
    """A row has the same output whatever its neighbours in the batch are."""
    layer, x = built(maker), normal(3, 13, SIZE)
    other = np.stack([x[0], np.full_like(x[1], np.nan), 1e3 * x[2]])
    assert_close(maker.call(layer, other)[0], maker.call(layer, x)[0], 0)
    assert_close(maker.call(layer, x[:1])[0], maker.call(layer, x)[0])


def check_segments(maker):
    """Documents packed into one row get what each gets in a row of its own."""
    layer, x = built(maker), normal(1, 17, SIZE)
    ends = [0, 1, 6, 17]
    segments = np.repeat([7, 3, -1], np.diff(ends))[None].astype("int32")
    packed = maker.call(layer, x, segment_ids=segments)
    for start, stop in itertools.pairwise(ends):
        assert_close(packed[:, start:stop], maker.call(layer, x[:, start:stop]), CLOSE)


def check_state_is_left_alone(maker):
    """A call outside training changes no weight; nor does one in training if the layer is frozen."""
    layer, x = built(maker, dropout=0.1), normal(2, 13, SIZE)
    before = layer.get_weights()
    maker.call(layer, x)
    maker.call(layer, x, training=False)
    layer.trainable = False
    maker.call(layer, x, training=True)
    layer.trainable = True
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
