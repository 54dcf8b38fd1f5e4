"""Attention layers for tests: how to make and call each, and its properties.

A new layer needs an entry in `CASES`, and one in `CASES` of `tests/oracle/layers.py`, which computes its heads in NumPy
from its definition. The contracts and the tests of decoding, JAX, files and pictures use these layers.
"""

import dataclasses
from collections.abc import Callable

import pytest

from tf_sparse_attention import layers
from tf_sparse_attention.patterns import (
    Blocks,
    Dilated,
    First,
    Hashed,
    Heads,
    ImageBlocks,
    Nearest,
    RetrievedClusters,
    SelectedBlocks,
    Stride,
    Successors,
    Summary,
    TopKeys,
    Window,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of attention layer."""

    make: Callable  # from the keyword arguments of all attention layers (dropout, use_bias, dtype ...) to a layer
    causal: bool = True  # the checks call it with `use_causal_mask=True`
    crosses: bool = False  # supports cross-attention, also with other lengths
    packs: bool = True  # packed documents have the results of separate rows
    can_be_causal: bool = True  # otherwise a causal call raises ValueError
    pairs: bool = True  # supports attention masks of pairs, otherwise only of keys
    segments: bool = True  # supports `segment_ids`
    vectors: bool = False  # a query also sees persistent vectors or a sink, whose weights are not returned
    num_softmaxes: int = 1  # softmaxes over keys that a query adds


def family(layer_class, **defaults):
    """Return a function of the arguments of a class to a function of common arguments to a layer."""
    return lambda **own: lambda **common: layer_class(**{**defaults, **own, **common})


HEADS = {"num_heads": 2, "key_dim": 4}
local = family(layers.LocalAttention, **HEADS)
local_2d = family(layers.LocalAttention2D, **HEADS, width=5)
all_attention = family(layers.AllAttention, **HEADS, num_persistent=3, window=4)
strided = family(layers.StridedAttention, **HEADS)
fixed = family(layers.FixedAttention, **HEADS)
global_local = family(layers.GlobalLocalAttention, **HEADS, num_global=3)
clustered = family(layers.ClusteredAttention, **HEADS, num_clusters=3, num_bits=16, num_iterations=3, seed=5)
lsh = family(layers.LSHAttention, **HEADS, num_buckets=4, bucket_size=3, seed=5)
selected = family(layers.BlockSelectedAttention, **HEADS)
native = family(layers.NativeSparseAttention, num_heads=4, key_dim=4)
routing = family(layers.RoutingAttention, **HEADS, num_clusters=3, cluster_size=4, seed=5)


def sparse(pattern, **own):
    return family(layers.SparseAttention, **HEADS, pattern=pattern, seed=5)(**own)


def dense(**common):
    return layers.DenseAttention(2, 4, **common, position="relative", max_distance=3)


def mixed(**common):
    parts = [make(**common) for make in (local(window=3, position="relative"), routing(position="rotary"))]
    return layers.MixedAttention(parts, dtype=common.get("dtype"))


SINKS, ROUTED = Window(4) | First(2), Window(2) | Nearest(3, 4)
OF_TWO_KINDS = Heads([(1, Dilated(3, 4) | First(1)), (2, Blocks(6, 1) | Stride(5) | Hashed(4, 3))])
SPAN = {"ramp": 2, "initial": 0.3}
NEVER_CAUSAL = {"causal": False, "can_be_causal": False}
ACROSS = {**NEVER_CAUSAL, "crosses": True, "packs": False}
CROSSES_UNPACKED = {"crosses": True, "packs": False}
SEPARATE = {"causal": False, "crosses": True, "packs": False}
CHOOSES_KEYS = {**ACROSS, "segments": False}
CLUSTERED = {**CHOOSES_KEYS, "pairs": False}
GATED = {"packs": False, "vectors": True, "num_softmaxes": 2}
CASES = {
    "sparse_sinks": Case(sparse(SINKS, position="relative")),
    "sparse_routed": Case(sparse(ROUTED, position="rotary")),
    "sparse_routed_shared": Case(sparse(Dilated(2, 3) | Nearest(3, 4) | Hashed(4, 2), share_qk=True), causal=False),
    "sparse_heads": Case(sparse(OF_TWO_KINDS, num_heads=3, position="alibi"), packs=False),
    "sparse_two_groupings": Case(sparse(Nearest(3, 2) | Nearest(2, 4), position="relative")),
    "sparse_image": Case(sparse(ImageBlocks(6, (2, 3)) | Summary(8, 2), position="rotary"), packs=False),
    "local_blocks": Case(local(block_size=4, position="rotary"), **CROSSES_UNPACKED),
    "local_blocks_both_sides": Case(local(block_size=3, num_blocks_after=2), **SEPARATE),
    "local_blocks_of_two_sizes": Case(local(block_size=3, key_block_size=4, position="rotary"), **ACROSS),
    "local_window": Case(local(window=5), crosses=True),
    "local_window_relative": Case(local(window=4, position="relative", max_distance=2), crosses=True),
    "local_2d": Case(local_2d(block_shape=(2, 2), position="rotary_2d"), **CROSSES_UNPACKED),
    "local_2d_blocks": Case(
        local_2d(block_shape=(4, 3), height=15, order="blocks", position="relative", max_distance=6), **CROSSES_UNPACKED
    ),
    "local_2d_relative": Case(
        local_2d(block_shape=(3, 2), num_blocks_after=(1, 2), position="relative_2d"), **SEPARATE
    ),
    "local_2d_class": Case(
        local_2d(block_shape=(2, 2), num_class_tokens=2, position="relative_2d", max_distance=2), **CROSSES_UNPACKED
    ),
    "global_window": Case(global_local(window=3, num_first_global=2), **NEVER_CAUSAL, packs=False),
    "global_window_relative": Case(
        global_local(window=3, num_first_global=2, position="relative", max_distance=4), **NEVER_CAUSAL, packs=False
    ),
    "global_window_span": Case(
        global_local(window=4, num_first_global=1, position="alibi", adaptive_span=SPAN), **NEVER_CAUSAL, packs=False
    ),
    "all": Case(all_attention(position="relative", mask_self=True), crosses=True, vectors=True),
    "all_span": Case(all_attention(position="rotary", adaptive_span=SPAN), crosses=True, vectors=True),
    "all_split": Case(all_attention(variant="split", position="alibi"), causal=False, crosses=True, vectors=True),
    "all_head_split": Case(all_attention(variant="head_split"), crosses=True, vectors=True),
    "local_span": Case(local(window=5, position="relative", adaptive_span=SPAN), causal=False, crosses=True),
    "clustered": Case(clustered(), **CLUSTERED),
    "improved_clustered": Case(clustered(top_k=4, position="rotary"), **CLUSTERED),
    "dense": Case(dense, crosses=True),
    "strided": Case(strided(num_heads=3, stride=4, position="relative", max_distance=6), crosses=True),
    "strided_merged": Case(
        strided(num_heads=2, stride=3, heads="merged", position="rotary"), causal=False, crosses=True
    ),
    "fixed": Case(
        fixed(num_heads=4, block_size=4, num_groups=2, num_summary=1, position="alibi"), crosses=True, packs=False
    ),
    "fixed_merged": Case(
        fixed(num_heads=4, block_size=5, num_groups=2, num_summary=2, heads="merged", position="relative"),
        **CROSSES_UNPACKED,
    ),
    "nearest": Case(routing(position="relative")),
    "nearest_both_sides": Case(routing(selection="nearest", position="alibi"), causal=False),
    "nearest_separate": Case(routing(share_qk=False, position="rotary")),
    "lsh": Case(lsh(num_rounds=2, position="relative")),
    "lsh_separate": Case(lsh(num_rounds=2, share_qk=False, position="rotary")),
    "lsh_chunks": Case(lsh(selection="chunks", num_rounds=2, position="relative"), packs=False),
    "successors": Case(routing(position="relative", use_successor_values=True)),
    "successors_token_distance": Case(routing(position="relative", distance="token", use_successor_values=True)),
    "successors_window": Case(local(window=4, position="alibi", use_successor_values=True)),
    "successors_beside": Case(sparse(Window(3) | Successors(Nearest(3, 4)), position="relative", share_qk=True)),
    "successors_of_two_kinds": Case(
        sparse(Successors(Window(3)) | Successors(Nearest(3, 4)) | Successors(Hashed(4, 3)), position="rotary")
    ),
    "selected": Case(selected(block_size=3, num_blocks=3, position="rotary"), packs=False),
    "selected_convolved": Case(
        selected(
            num_heads=4,
            num_key_value_heads=2,
            block_size=3,
            num_blocks=2,
            key_convolution=3,
            use_shared_choice=True,
            choice_chunk_size=5,
            position="rotary",
        ),
        packs=False,
    ),
    "native": Case(native(block_size=3, num_blocks=3, window=4), **GATED),
    "native_grouped": Case(
        native(
            block_size=2,
            num_blocks=2,
            window=3,
            num_key_value_heads=2,
            use_sink=True,
            logit_soft_cap=0.5,
            use_query_key_norm=True,
            use_gate=True,
            position="rotary",
        ),
        **GATED,
    ),
    "native_relative": Case(
        native(block_size=4, num_blocks=2, window=2, num_key_value_heads=1, position="relative"), **GATED
    ),
    "selected_beside": Case(
        sparse(Nearest(3, 3) | SelectedBlocks(4, 2) | Window(3), share_qk=True, position="alibi"), packs=False
    ),
    "retrieved_beside": Case(
        sparse(Window(3) | RetrievedClusters(2, 2, 8, use_estimate=False), position="rotary"),
        packs=False,
        segments=False,
    ),
    "random": Case(routing(selection="random", position="alibi"), packs=False),
    "top_k": Case(routing(selection="top_k", position="relative"), causal=False, packs=False),
    "top_k_separate": Case(routing(share_qk=False, selection="top_k", position="alibi"), **SEPARATE),
    "top_k_published": Case(routing(selection="top_k", reproduce_reference=True, position="relative"), packs=False),
    "top_keys": Case(routing(share_qk=False, selection="top_keys", position="relative"), **CHOOSES_KEYS),
    "sparse_top_keys": Case(sparse(Window(2) | TopKeys(3, 4) | Nearest(2, 3), position="rotary"), **CHOOSES_KEYS),
    "strided_clusters": Case(routing(selection="strided", position="relative"), packs=False),
    "hash_buckets": Case(routing(selection="hash", num_clusters=4, cluster_size=9, position="rotary"), packs=False),
    "hash_buckets_separate": Case(
        routing(share_qk=False, selection="hash", num_clusters=2, cluster_size=9, position="relative"), **SEPARATE
    ),
    "mixed": Case(mixed),
    "grouped_window": Case(
        local(
            num_heads=4,
            num_key_value_heads=2,
            window=5,
            position="rotary",
            rotary_max_wavelength=50.0,
            rotary_dim=2,
            use_sink=True,
            use_query_key_norm=True,
            use_gate=True,
            attention_scale=0.7,
        ),
        crosses=True,
        vectors=True,
    ),
    "own_slopes": Case(
        local(
            window=5,
            position="alibi",
            alibi_slopes=[0.3, 0.05],
            use_value_norm=True,
            query_key_norm_epsilon=1.0,
        ),
        crosses=True,
    ),
    "grouped_union": Case(
        sparse(
            Heads([(2, Window(2) | Nearest(3, 4)), (2, Blocks(5, 1))]),
            num_heads=4,
            num_key_value_heads=2,
            position="alibi",
            logit_soft_cap=0.5,
            use_sink=True,
        ),
        packs=False,
        vectors=True,
    ),
    "grouped_nearest": Case(routing(share_qk=False, num_key_value_heads=1, position="relative")),
}


# One layer of each class.
OF_EACH_CLASS = (
    "sparse_routed",
    "local_window_relative",
    "local_2d",
    "global_window_relative",
    "all_span",
    "improved_clustered",
    "strided_merged",
    "fixed",
    "nearest_separate",
    "top_k_separate",
    "lsh",
    "selected",
    "native",
    "mixed",
)
# For parts of a layer outside its pattern: heads of two kinds, a mean over clusters, parts of two layers.
FEW = ("fixed", "top_k_separate", "mixed")


def marks(name, by_default):
    """Return the marks of a case: "full" unless the case is in the default run."""
    return () if name in by_default else pytest.mark.full


def every_layer(*, by_default, **wanted):
    """Parametrize a test over `case`, with all cases or those with certain attributes.

    Args:
        by_default: names of the cases of the default run. Other cases are marked for the full run.
        **wanted: attributes of the cases.
    """
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=name, marks=marks(name, by_default))
            for name, case in CASES.items()
            if all(getattr(case, attribute) == value for attribute, value in wanted.items())
        ],
    )
