"""Decoding of drawn layers, and of mixtures of them, against one call: for the whole sequence, or for all queries."""

import functools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from tests import drawn
from tests.contracts import normal, with_random_weights
from tests.programs import as_program, compiled_on_jax
from tf_sparse_attention import layers
from tf_sparse_attention.patterns.pattern import primitives

SIZE = 6
LONGEST = 26
VARIANTS = ("all", "split", "head_split", "single_head")
KINDS = {
    "local": drawn.local,
    "local_2d": drawn.local_2d,
    "all_attention": lambda: drawn.all_attention(VARIANTS),
    "strided": drawn.strided,
    "fixed": drawn.fixed,
    "routing": drawn.routing,
    "lsh": drawn.lsh,
    "selected": drawn.selected,
    "native": drawn.native,
    "sparse": drawn.sparse,
}


LENGTHS, SEEDS = st.integers(1, LONGEST), st.integers(0, 999)
SPLITS, BACK = st.sampled_from([1, 5, 18]), st.sampled_from([0, 3])
PROMPTS = st.lists(st.integers(0, LONGEST), min_size=2, max_size=2)


def largest_of_draws(wanted, compare, *strategies):
    """Return the number of draws and the largest result of a function of drawn arguments."""
    errors = []

    @settings(max_examples=wanted, deadline=None, database=None)
    @given(st.tuples(*strategies))
    def run(arguments):
        errors.append(compare(*arguments))

    run()
    return len(errors), float(max(errors))


def compare_drawn(kind, wanted):
    """Return the number of drawn layers and the largest error on two rows with prompts of different lengths."""

    def compare(make, length, prompts, size, back, seed):
        layer = built(make(), seed)
        x = normal(2, length, SIZE, seed=seed)
        return largest_error(layer, x, np.minimum(prompts, length), size=size, back=back)

    return largest_of_draws(wanted, compare, drawn.made(KINDS, kind), LENGTHS, PROMPTS, SPLITS, BACK, SEEDS)


def built(layer, seed=0):
    """Return a layer, built, with random weights."""
    layer.build((None, None, SIZE))
    return with_random_weights(layer, seed)


@st.composite
def remembering(draw):
    """Draw functions that make a layer that accepts a memory, without successor values."""
    local = drawn.local().filter(lambda part: not part[1].get("use_successor_values"))
    parts = draw(st.lists(st.one_of(local, KINDS["all_attention"]()), min_size=1, max_size=3))
    made = [lambda kind=kind, arguments=arguments: kind(**arguments) for kind, arguments in parts]
    return made[0] if len(made) == 1 else lambda: layers.MixedAttention([make() for make in made])


def compare_remembered(wanted):
    """Return the same for layers that continue from a memory, of which rows see a part."""

    def compare(make, length, memory_length, prompts, share, size, seed):
        rng = np.random.default_rng(seed)
        x, memory = (rng.normal(size=(2, size, SIZE)).astype("float32") for size in (length, memory_length))
        seen = rng.random((2, memory_length)) < share
        return largest_error(built(make(), seed), x, np.minimum(prompts, length), (memory, seen), size)

    shares = st.sampled_from([0.0, 0.5, 1.0])
    return largest_of_draws(wanted, compare, remembering(), LENGTHS, LENGTHS, PROMPTS, shares, SPLITS, SEEDS)


def largest_error(layer, x, lengths, memory=None, size=1, back=0):
    """Return the largest difference between decoding of a built layer and one causal call; see `error_of_decoding`.

    A memory is a pair: an array (B, L, D), and which slots of it are seen, bool (B, L).
    """
    given = {} if memory is None else {"memory": memory[0], "memory_segment_ids": np.where(memory[1], 0, -1)}
    whole = compiled_on_jax(functools.partial(layer, use_causal_mask=True))(x, **given)
    cache = layer.init_cache(*x.shape[:2], *(memory or ()), rewind=back)
    return error_of_decoding(layer, x, lengths, cache, whole, size, back)


def by_index(decoder):
    """Return a program (x, cache, index) that adds the tokens of a layer or model at `index`."""
    return as_program(lambda x, cache, index: decoder.extend(x, cache, index=index))


def error_of_decoding(decoder, x, lengths, cache, whole, size=1, back=0):
    """Return the largest difference between decoding of a layer or model and `whole`, the results of one call.

    Rows have prompts of `lengths`, int (B,). The other tokens follow in steps of up to `size` tokens, of which each row
    gets another number. Before some steps, up to `back` tokens are taken back.
    """
    whole, length, longest = ops.convert_to_numpy(whole), x.shape[1], int(lengths.max())
    rows, worst, at, rng = np.arange(len(x))[:, None], 0.0, np.array(lengths), np.random.default_rng(length)
    extend, rewind = by_index(decoder) if size == 1 else as_program(decoder.extend), as_program(decoder.rewind)
    longest_so_far = at

    def compare(found, start, counts):
        found, numbers = ops.convert_to_numpy(found), np.arange(found.shape[1])
        apart = np.abs(found - whole[rows, np.minimum(start[:, None] + numbers, length - 1)])
        return apart[numbers < counts[:, None]].max(initial=0)

    if longest:
        given, cache = compiled_on_jax(decoder.extend)(x[:, :longest], cache, np.arange(longest) < lengths[:, None])
        worst = compare(given, 0 * at, lengths)
    while at.min() < length:
        longest_so_far = np.maximum(longest_so_far, at)
        if back and rng.random() < 0.3:
            at = np.minimum(at, np.maximum(0, longest_so_far - rng.integers(0, back + 1, len(x))))
            cache = rewind(cache, at)
        counts = np.minimum(rng.integers(1 if size == 1 else 0, size + 1, len(x)), length - at)
        given = x[rows, np.minimum(at[:, None] + np.arange(size), length - 1)]
        which = np.where(counts > 0, at, -1) if size == 1 else np.arange(size) < counts[:, None]
        found, cache = extend(given, cache, which)
        worst, at = max(worst, compare(found, at, counts)), at + counts
    return worst


def crossing(kind, **changes):
    """Draw layers of a kind that take another sequence, which those that require causal self-attention do not."""
    return kind().filter(lambda made: not _must_be_causal(**made[1])).map(lambda made: (made[0], made[1] | changes))


def _must_be_causal(pattern=None, use_successor_values=False, **others):
    return use_successor_values or (pattern is not None and any(leaf.must_be_causal for leaf in primitives(pattern)))


CROSSING = {
    "local": lambda: crossing(drawn.local),
    "unequal_blocks": drawn.unequal_blocks,
    "all_attention": lambda: drawn.all_attention(VARIANTS),
    "routing": lambda: st.one_of(
        crossing(drawn.routing, selection="nearest", share_qk=False),
        crossing(drawn.routing, selection="random", share_qk=False),
    ),
    "lsh": lambda: crossing(drawn.lsh, share_qk=False),
    "local_2d": drawn.local_2d,
    "strided": drawn.strided,
    "fixed": drawn.fixed,
    "sparse": lambda: crossing(drawn.sparse, share_qk=False),
    "top_keys": drawn.top_keys,
    "sparse_top_keys": lambda: crossing(drawn.sparse_top_keys, share_qk=False),
}
OF_CONTENT = ("routing", "lsh", "sparse", "mixed")  # queries and keys are as many


def compare_crossing(kind, wanted):
    """Return the number of layers and the largest error of cross-attention, whose queries come in different orders."""

    def compare(make, num_queries, num_keys, masked, seed):
        num_keys = num_queries if kind in OF_CONTENT else num_keys
        layer, rng = make(), np.random.default_rng(seed)
        layer.build((None, None, SIZE), (None, None, SIZE - 1), (None, None, SIZE - 2))
        with_random_weights(layer, seed)
        sizes = ((num_queries, SIZE), (num_keys, SIZE - 1), (num_keys, SIZE - 2))
        query, value, key = (rng.normal(size=(2, *size)).astype("float32") for size in sizes)
        masks = {f"{name}_mask": rng.random((2, num_keys)) < 0.7 for name in masked}
        return largest_cross_error(layer, query, {"value": value, "key": key, **masks}, rng)

    masks = st.sampled_from([(), ("value",), ("key", "value")])
    return largest_of_draws(wanted, compare, drawn.made(CROSSING, kind), LENGTHS, LENGTHS, masks, SEEDS)


def largest_cross_error(layer, query, given, rng):
    """Return the largest difference between single queries, each row in an order of its own, and one call for all."""
    whole = ops.convert_to_numpy(compiled_on_jax(layer)(query, **given))
    cache, rows, worst = layer.init_cross_cache(**given), np.arange(len(query)), 0.0
    decode = as_program(layer.decode_cross)
    for index in rng.permuted(np.tile(np.arange(query.shape[1]), (len(query), 1)), axis=1).T:
        found = decode(query[rows, index][:, None], cache, index.astype("int32"))
        worst = max(worst, np.abs(ops.convert_to_numpy(found)[:, 0] - whole[rows, index]).max())
    return worst
