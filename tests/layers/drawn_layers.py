"""Layers whose arguments, lengths and masks Hypothesis draws, each against NumPy: for patterns that have weights.

What positions alone make is drawn in `tests/ops/strategies.py`, with gradients. Here persistent vectors, spans, hash
planes and rotations take part, which the layers own.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts import CLOSE, Maker, assert_close, normal, random_masks, to_numpy, with_random_weights
from tests.layers.dense import dense_call
from tf_sparse_attention.layers import AllAttention, ClusteredAttention, LSHAttention

SIZE = 5
LENGTHS = st.integers(1, 60)
FIXED_LENGTHS = st.sampled_from([1, 7, 33, 60])


@st.composite
def all_attention(draw):
    # "single_head" has its own test: its vectors ask with all heads joined.
    variant = draw(st.sampled_from(["all", "all", "split", "head_split"]))
    window = draw(st.integers(1, 40))
    span = {"ramp": draw(st.integers(1, 12)), "initial": draw(st.floats(0, 1))}
    return AllAttention, {
        "num_heads": draw(st.integers(2 if variant == "head_split" else 1, 3)),
        "key_dim": draw(st.sampled_from([2, 4])),
        "num_persistent": draw(st.integers(1, 6)),
        "window": window,
        "see_self": draw(st.booleans()),
        "variant": variant,
        "position": draw(st.sampled_from([None, "relative", "rotary", "alibi"])),
        "adaptive_span": draw(st.sampled_from([None, span])),
    }


@st.composite
def clustered(draw):
    return ClusteredAttention, {
        "num_heads": draw(st.integers(1, 3)),
        "key_dim": draw(st.sampled_from([2, 4])),
        "num_clusters": draw(st.integers(1, 9)),
        "num_bits": draw(st.integers(8, 40)),
        "num_iterations": draw(st.integers(1, 5)),
        "top_k": draw(st.sampled_from([None, 1, 3, 8])),
        "position": draw(st.sampled_from([None, "rotary"])),
    }


@st.composite
def lsh(draw):
    return LSHAttention, {
        "num_heads": draw(st.integers(1, 3)),
        "key_dim": draw(st.sampled_from([2, 4])),
        "num_buckets": 2 * draw(st.integers(1, 4)),
        "bucket_size": draw(st.integers(1, 20)),
        "num_rounds": draw(st.integers(1, 3)),
        "share_qk": draw(st.booleans()),
        "mask_self": draw(st.sampled_from([None, True, False])),
        "position": draw(st.sampled_from([None, "relative", "rotary", "alibi"])),
    }


KINDS = {"all_attention": all_attention, "clustered": clustered, "lsh": lsh}


def compare_drawn(kind, wanted, lengths=LENGTHS):
    """Compares outputs, weights and patterns of drawn layers with NumPy.

    Args:
        kind: a key of `KINDS`.
        wanted: different configurations.
        lengths: strategy of lengths.

    Returns:
        How many there were.
    """
    drawn = set()

    # Many draws repeat earlier ones; those are passed over, and so is what comes after the last one wanted.
    @settings(max_examples=5 * wanted, deadline=None)
    @given(KINDS[kind](), lengths, st.booleans(), st.booleans(), st.integers(0, 2**16))
    def compare(made, length, causal, masked, seed):
        layer_class, arguments = made
        causal = causal and kind != "clustered"
        configuration = repr(arguments), length, causal, masked
        if configuration in drawn or len(drawn) == wanted:
            return
        drawn.add(configuration)
        layer = layer_class(**arguments, seed=seed)
        layer.build((2, length, SIZE))
        fractions = [weight.numpy() for weight in layer.weights if weight.path.endswith("span/fraction")]
        with_random_weights(layer, seed)
        for weight in layer.weights:
            if weight.path.endswith("span/fraction"):
                weight.assign(fractions.pop())
        x = normal(2, length, SIZE, seed=seed)
        masks = random_masks(2, layer.num_heads, length, seed, pairs=kind != "clustered") if masked else {}
        expected = dense_call(layer, x, causal=causal, **masks)
        maker = Maker(None, causal=causal)
        output, weights = maker.call(layer, x, return_attention_scores=True, **masks)
        pattern = to_numpy(layer.attention_pattern(x, use_causal_mask=causal, **masks))
        np.testing.assert_array_equal(pattern, expected.pattern)
        assert_close(weights, expected.weights, CLOSE)
        assert_close(output, expected.output, 4 * CLOSE)

    compare()
    assert len(drawn) >= wanted
    return len(drawn)
