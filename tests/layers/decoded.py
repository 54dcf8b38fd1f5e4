"""Decoding of drawn layers, and of mixtures of them, against one causal call for the whole sequence."""

import functools

import keras
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from tests.contracts import with_random_weights
from tf_sparse_attention import layers

SIZE = 6
LONGEST = 26
POSITIONS = st.sampled_from([None, "relative", "rotary", "alibi"])


FEW_HEADS = st.integers(1, 3)


def common(draw, num_heads=FEW_HEADS):
    sizes = {"num_heads": draw(num_heads), "key_dim": draw(st.sampled_from([2, 4]))}
    return sizes | {"position": draw(POSITIONS), "value_dim": draw(st.sampled_from([None, 3])), "seed": 1}


@st.composite
def local(draw):
    own = {"window": draw(st.integers(1, 12)), "adaptive_span": draw(st.sampled_from([None, {"ramp": 3}]))}
    blocks = {"block_size": draw(st.integers(1, 9)), "num_blocks_before": draw(st.integers(0, 2))}
    return layers.LocalAttention, common(draw) | draw(st.sampled_from([own, blocks]))


@st.composite
def all_attention(draw):
    variant = draw(st.sampled_from(["all", "split", "head_split", "single_head"]))
    own = {"variant": variant, "num_persistent": draw(st.integers(1, 4)), "window": draw(st.integers(1, 12))}
    own |= {"see_self": draw(st.booleans()), "adaptive_span": draw(st.sampled_from([None, {"ramp": 3}]))}
    heads = st.sampled_from([2, 4]) if variant == "head_split" else st.integers(1, 3)
    return layers.AllAttention, common(draw, heads) | own


def heads_of_factorized(draw):
    heads = draw(st.sampled_from(["split", "merged", "interleaved"]))
    return {"heads": heads, "layer_index": draw(st.integers(0, 1)) if heads == "interleaved" else None}


@st.composite
def strided(draw):
    own = {"stride": draw(st.integers(1, 12))} | heads_of_factorized(draw)
    return layers.StridedAttention, common(draw, st.integers(2, 3)) | own


@st.composite
def fixed(draw):
    groups, summaries = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    own = {"num_groups": groups, "num_summary": summaries, "block_size": draw(st.integers(groups * summaries, 9))}
    return layers.FixedAttention, common(draw, st.just(4)) | own | heads_of_factorized(draw)


@st.composite
def routing(draw):
    own = {"num_clusters": draw(st.integers(1, 5)), "cluster_size": draw(st.integers(1, 9))}
    own |= {"selection": draw(st.sampled_from([None, "nearest", "random"])), "share_qk": draw(st.booleans())}
    own |= {"mask_self": draw(st.sampled_from([None, True, False]))}
    # Vectors of 2 channels are (1, -1) or (-1, 1) once they are normalised, and so are all centroids.
    shared = common(draw) | {"key_dim": 4}
    distances = ["rank", "token"] if shared["position"] == "relative" else ["rank"]
    return layers.RoutingAttention, shared | own | {"distance": draw(st.sampled_from(distances))}


@st.composite
def lsh(draw):
    own = {"num_buckets": 2 * draw(st.integers(1, 3)), "bucket_size": draw(st.integers(1, 9))}
    own |= {"num_rounds": draw(st.integers(1, 3)), "share_qk": draw(st.booleans())}
    return layers.LSHAttention, common(draw) | own | {"mask_self": draw(st.sampled_from([None, True, False]))}


@st.composite
def local_2d(draw):
    width, blocks = draw(st.integers(1, 7)), st.none() | st.tuples(st.integers(0, 2), st.integers(0, 2))
    heights = st.none() | st.integers(-(-LONGEST // width), LONGEST)
    own = {"width": width, "height": draw(heights), "order": draw(st.sampled_from(["raster", "blocks"]))}
    own |= {"block_shape": draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))}
    own |= {"num_blocks_before": draw(blocks), "num_blocks_after": draw(blocks)}
    return layers.LocalAttention2D, common(draw) | own


KINDS = {
    "local": local,
    "local_2d": local_2d,
    "all_attention": all_attention,
    "strided": strided,
    "fixed": fixed,
    "routing": routing,
    "lsh": lsh,
}


@st.composite
def mixed(draw):
    parts = draw(st.lists(st.one_of([kind() for kind in KINDS.values()]), min_size=2, max_size=3))
    return lambda: layers.MixedAttention([kind(**arguments) for kind, arguments in parts])


@st.composite
def one_kind(draw, kind):
    made, arguments = draw(KINDS[kind]())
    return lambda: made(**arguments)


def made(kind):
    """Returns a strategy of functions that make a layer of a kind, or a mixture of all kinds."""
    return mixed() if kind == "mixed" else one_kind(kind)


def compare_drawn(kind, wanted):
    """Compares drawn layers on rows with prompts of different lengths, none of one row.

    Returns:
        Pair of the number of draws and the largest difference.
    """
    errors = []

    @settings(max_examples=wanted, deadline=None, database=None)
    @given(
        made(kind),
        st.integers(1, LONGEST),
        st.lists(st.integers(0, LONGEST), min_size=2, max_size=2),
        st.integers(0, 999),
    )
    def compare(make, length, prompts, seed):
        layer = make()
        layer.build((None, None, SIZE))
        with_random_weights(layer, seed)
        x = np.random.default_rng(seed).normal(size=(2, length, SIZE)).astype("float32")
        errors.append(largest_error(layer, x, np.minimum(prompts, length)))

    compare()
    return len(errors), float(max(errors))


@st.composite
def remembering(draw):
    """Draws functions that make a layer with `supports_memory`."""
    parts = draw(st.lists(st.one_of(local(), all_attention()), min_size=1, max_size=3))
    made = [lambda kind=kind, arguments=arguments: kind(**arguments) for kind, arguments in parts]
    return made[0] if len(made) == 1 else lambda: layers.MixedAttention([make() for make in made])


def compare_remembered(wanted):
    """Compares drawn layers that go on from a memory, which rows see in part; returns as `compare_drawn` does."""
    errors = []

    @settings(max_examples=wanted, deadline=None, database=None)
    @given(
        remembering(),
        st.tuples(st.integers(1, LONGEST), st.integers(1, LONGEST)),
        st.lists(st.integers(0, LONGEST), min_size=2, max_size=2),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.integers(0, 999),
    )
    def compare(make, sizes, prompts, share, seed):
        layer = make()
        layer.build((None, None, SIZE))
        with_random_weights(layer, seed)
        rng = np.random.default_rng(seed)
        x, memory = (rng.normal(size=(2, length, SIZE)).astype("float32") for length in sizes)
        seen = rng.random((2, sizes[1])) < share
        errors.append(largest_error(layer, x, np.minimum(prompts, sizes[0]), (memory, seen)))

    compare()
    return len(errors), float(max(errors))


def as_program(function):
    """Returns a function as one program: a fraction of the time of many eager calls."""
    if keras.backend.backend() == "jax":
        return compiled_on_jax(function)
    import tensorflow as tf

    return tf.function(function, autograph=False)


def compiled_on_jax(function):
    """Returns a function that is called once as a program of JAX, which would compile each of its operations."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def largest_error(layer, x, lengths, memory=None):
    """Returns the largest difference between decoding and one causal call.

    Args:
        layer: a built attention layer.
        x: its inputs (B, T, D).
        lengths: int (B,), tokens of each row that are a prompt; the others come one by one.
        memory: pair of a memory (B, L, D) and which places of it are seen, bool (B, L). None: none.
    """
    batch, length = x.shape[:2]
    cache, given = layer.init_cache(batch, length, *(memory or ())), {}
    if memory is not None:
        given = {"memory": memory[0], "memory_segment_ids": np.where(memory[1], 0, -1)}
    whole = ops.convert_to_numpy(compiled_on_jax(functools.partial(layer, use_causal_mask=True))(x, **given))
    rows, worst, decode = np.arange(batch), 0.0, as_program(layer.decode)
    longest = int(lengths.max())
    if longest:
        known = np.arange(longest) < lengths[:, None]
        given, cache = compiled_on_jax(layer.prefill)(x[:, :longest], cache, known)
        given = ops.convert_to_numpy(given)
        worst = max(np.abs(given[row, :count] - whole[row, :count]).max(initial=0) for row, count in enumerate(lengths))
    for step in range(length - int(lengths.min())):
        index = np.minimum(lengths + step, length - 1)
        found, cache = decode(x[rows, index][:, None], cache, index)
        goes_on = lengths + step < length  # a row that is at its end is asked again for nothing
        apart = np.abs(ops.convert_to_numpy(found)[:, 0] - whole[rows, index])[goes_on]
        worst = max(worst, apart.max(initial=0))
    return worst
