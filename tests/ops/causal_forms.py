"""The causal attentions and their inputs, as `test_causality.py` and the process on JAX try them."""

import keras
import numpy as np
from keras import ops

from tests.ops.compare import differentiate
from tests.ops.forms import (
    Columns,
    fixed_attention,
    local_attention,
    local_attention_2d,
    nearest_attention,
    separate_attention,
    strided_attention,
)
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.groups import groups_of
from tf_sparse_attention.ops.images import Image

LENGTH, CUT, HEADS, CLUSTERS = 90, 50, 2, 4
CENTROIDS = np.random.default_rng(0).normal(size=(HEADS, CLUSTERS, 6)).astype("float32")
DROPOUT = {"whole": None, "dropout": Dropout(0.3, 5)}


def local(query, key, value, dropout=None):
    return local_attention(query, key, value, window=20, causal=True, dropout=dropout)[0]


def blocks(query, key, value, dropout=None):
    return local_attention(query, key, value, block_size=16, num_blocks_before=2, causal=True, dropout=dropout)[0]


def raster(query, key, value, dropout=None):
    return local_attention_2d(query, key, value, Image(11, (3, 4)), causal=True, dropout=dropout)[0]


def image_blocks(query, key, value, dropout=None):
    image = Image(11, (3, 4), "blocks", height=10)
    return local_attention_2d(query, key, value, image, causal=True, dropout=dropout)[0]


def strided(query, key, value, dropout=None):
    return strided_attention(query, key, value, 12, "merged", causal=True, dropout=dropout)[0]


def fixed(query, key, value, dropout=None):
    return fixed_attention(query, key, value, Columns(8, 2), "merged", causal=True, dropout=dropout)[0]


def nearest(query, key, value, dropout=None):
    query = kmeans.normalize(query)
    groups = groups_of(kmeans.nearest(query, CENTROIDS), CLUSTERS)
    return nearest_attention(query, value, groups, 8, dropout=dropout)[0]


def separate(query, key, value, dropout=None):
    query, key = kmeans.normalize(query), kmeans.normalize(key)
    groups = (groups_of(kmeans.nearest(x, CENTROIDS), CLUSTERS) for x in (query, key))
    return separate_attention(query, key, value, *groups, 8, dropout=dropout)[0]


def vectors(seed=0, batch=2):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(batch, HEADS, LENGTH, 6)).astype("float32") for name in ("query", "key", "value")}


def with_another_future(x):
    """Returns the vectors with all tokens from `CUT` on replaced: others join other clusters and blocks."""
    other = vectors(seed=1)
    return {name: np.concatenate([x[name][:, :, :CUT], 3 * other[name][:, :, CUT:]], axis=2) for name in x}


FORMS = {
    "local": local,
    "blocks": blocks,
    "raster": raster,
    "image_blocks": image_blocks,
    "strided": strided,
    "fixed": fixed,
    "nearest": nearest,
    "separate": separate,
}


def look_ahead(name, dropout):
    """Returns what the tokens from `CUT` on do to the outputs of an attention.

    Returns:
        Dictionary of the largest change of an earlier and of a later output where they are replaced, and the largest
        gradient of the earlier outputs by them and by earlier tokens.
    """
    attention = FORMS[name]

    def early(x):
        return (attention(**x, dropout=dropout)[:, :, :CUT],)

    def both(x, cotangent):
        return attention(**x, dropout=dropout), differentiate(early, x, cotangent)[1]

    if keras.backend.backend() == "jax":
        import jax

        both = jax.jit(both)
    x, cotangent = vectors(), np.ones((2, HEADS, CUT, 6), "float32")
    before, gradients = both(x, cotangent)
    after, _ = both(with_another_future(x), cotangent)
    change = np.abs(ops.convert_to_numpy(after) - ops.convert_to_numpy(before))
    slopes = np.stack([np.abs(ops.convert_to_numpy(gradient)) for gradient in gradients.values()])
    return {
        "earlier": float(change[:, :, :CUT].max()),
        "later": float(change[:, :, CUT:].max()),
        "slope_later": float(slopes[..., CUT:, :].max()),
        "slope_earlier": float(slopes[..., :CUT, :].max()),
    }


def look_ahead_of_all():
    """Returns `look_ahead` of every form, with and without dropout, by name."""
    return {f"{name}_{kind}": look_ahead(name, dropout) for name in FORMS for kind, dropout in DROPOUT.items()}
