"""Attention that a reader can work out: one head, vectors of size one, queries of zero, groups by hand."""

import numpy as np
from keras import ops

from tf_sparse_attention.patterns import Hashed
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster, MemberSelection
from tf_sparse_attention.patterns.engine import attention
from tf_sparse_attention.patterns.engine.head_plans import AttentionOptions
from tf_sparse_attention.patterns.group_band import GroupSelection

VALUES = [1, 2, 4, 8, 16, 32]


def attend_pattern(*arguments, **keywords):
    """Call `attend_pattern` of the engine with the fields of `AttentionOptions` by name."""
    fields = {name: keywords.pop(name) for name in AttentionOptions._fields if name in keywords}
    return attention.attend_pattern(*arguments, options=AttentionOptions(**fields), **keywords)


def column(x):
    """Return numbers as one head of one row with vectors of size 1: (1, 1, T, 1)."""
    return np.array(x, "float32").reshape(1, 1, -1, 1)


def means(attention, values=VALUES, num_queries=None):
    """Return what zero queries get, the plain mean of the values they see, 0 if they see none.

    Args:
        attention: function of query, key and value to an `Attended`.
        values: S numbers; powers of two tell which of them a mean is of.
        num_queries: T, or None for S.
    """
    queries, keys = column([0] * (num_queries or len(values))), column([0] * len(values))
    return ops.convert_to_numpy(attention(queries, keys, column(values))[0])[0, 0, :, 0].tolist()


def selecting(*selections):
    """Return the `select` of `attend_pattern` for given selections of the leaves."""
    return lambda *_: list(selections)


def attend_groups(query, key, value, query_groups, key_groups, band, mask_self=False, **options):
    """Attend in a band inside given groups (B, N, T) and (B, N, S); where they are one object, so are the tokens."""
    options["hide_self"] = "unless_alone" if mask_self else None
    return attend_pattern(
        Hashed(2, band), query, key, value, select=selecting(GroupSelection(query_groups, key_groups)), **options
    )


def attend_members(query, key, value, queries, keys, causal=None, mask_self=False, extra_count=0.0, **options):
    """Return output and weights inside clusters of given `Members`; `causal` is "position", "rank" or None."""
    pattern = BestOfCluster(1, 1, causal_by_rank=causal == "rank", extra_count=extra_count)
    options |= {"hide_self": "unless_alone" if mask_self else None, "causal": causal is not None}
    return attend_pattern(pattern, query, key, value, select=selecting(MemberSelection((queries, keys))), **options)[:2]
