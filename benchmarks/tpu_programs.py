"""The programs that `benchmarks.tpu_check` compiles, and what they may hold.

Imported on the JAX backend only. Every program is (function, arguments); bounds are of the compiled program.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention import layers, models, optimizers
from tf_sparse_attention.ops import gather

LENGTH = 2048
HEADS = {"num_heads": 8, "key_dim": 64, "dtype": "bfloat16", "seed": 0}
ROUTED = {"num_clusters": 8, "cluster_size": 256, **HEADS}


class Bounds(NamedTuple):
    """The most of each operation that a program may hold; a `while` is never allowed.

    Attributes:
        gather, scatter, sort: numbers.
        why: what the operations are for.
    """

    gather: int
    scatter: int
    sort: int
    why: str


class Program(NamedTuple):
    """What to compile: `make()` returns (function, arguments)."""

    make: Callable
    bounds: Bounds


def layer_program(make_layer, backward, length=LENGTH, causal=True):
    """Returns (function, arguments) of an attention layer in training, on (1, length, 512) in bfloat16.

    Args:
        make_layer: function that returns the layer.
        backward: whether to compute the gradients of the input and of all weights too.
        length: T.
        causal: whether later positions are hidden.
    """
    layer = make_layer()
    layer.build((1, length, 512))
    x = np.zeros((1, length, 512), "float32")
    state = [np.asarray(v) for v in layer.non_trainable_variables]

    def forward(x, trainable, state):
        # A compiled program of top_k under a causal mask is wanted here, and so is not the warning about it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output, state, losses = layer.stateless_call(
                trainable, state, ops.cast(x, "bfloat16"), training=True, use_causal_mask=causal, return_losses=True
            )
        return ops.sum(ops.square(ops.cast(output, "float32"))) + sum(losses, 0.0), (output, state)

    return _gradient(forward, (0, 1)) if backward else forward, (x, _values(layer.trainable_variables), state)


def _gradient(function, arguments):
    import jax

    return jax.value_and_grad(function, argnums=arguments, has_aux=True)


def _values(variables):
    return [ops.convert_to_tensor(variable) for variable in variables]


def model_program(length=LENGTH):
    """Returns (function, arguments) of one training step of a language model of two layers in bfloat16.

    Each layer has 6 local heads and 2 that route, hidden size 512; the optimizer is Adafactor.
    """
    local = {"layer": "LocalAttention", "num_heads": 6, "key_dim": 64, "window": 256}
    routed = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 64, "num_clusters": 8, "cluster_size": 256}
    backbone = models.Backbone(258, 2, 512, [local, routed], intermediate_dim=2048, dtype="bfloat16", seed=0)
    model = models.LanguageModel(backbone, dtype="bfloat16")
    optimizer = optimizers.Adafactor(1e-2)
    optimizer.build(model.trainable_variables)
    loss_of = models.language_model_loss()

    def loss(trainable, state, token_ids, targets):
        logits, state, losses = model.stateless_call(trainable, state, token_ids, training=True, return_losses=True)
        return loss_of(targets, logits) + sum(losses, 0.0), state

    def step(trainable, state, optimizer_state, token_ids, targets):
        (value, state), gradients = _gradient(loss, (0,))(trainable, state, token_ids, targets)
        trainable, optimizer_state = optimizer.stateless_apply(optimizer_state, gradients[0], trainable)
        return value, trainable, state, optimizer_state

    states = [_values(v) for v in (model.trainable_variables, model.non_trainable_variables, optimizer.variables)]
    token_ids = np.zeros((1, length), "int32")
    return step, (*states, token_ids, token_ids)


def permutation_program(take):
    """Returns (function, arguments) of the gradient of a gather by a permutation of 8 x 2048 rows.

    Args:
        take: function of (x, order, inverse).
    """

    def gradient(x, order, inverse, upstream):
        import jax

        return jax.vjp(lambda x: take(x, order, inverse), x)[1](upstream)[0]

    x = np.zeros((1, 8, LENGTH, 64), "float32")
    order = np.zeros((1, 8, LENGTH), "int32")
    return gradient, (x, order, order, x)


def _local():
    return layers.LocalAttention(window=256, **HEADS)


def _nearest():
    return layers.RoutingAttention(selection="nearest", **ROUTED)


def _successors():
    return layers.RoutingAttention(use_successor_values=True, **ROUTED)


def _successors_separate():
    return layers.RoutingAttention(use_successor_values=True, share_qk=False, **ROUTED)


def _separate():
    return layers.RoutingAttention(selection="nearest", share_qk=False, **ROUTED)


def _top_k():
    return layers.RoutingAttention(selection="top_k", **ROUTED)


def _mixed():
    parts = [
        layers.LocalAttention(window=256, **{**HEADS, "num_heads": 6}),
        layers.RoutingAttention(selection="nearest", **{**ROUTED, "num_heads": 2}),
    ]
    return layers.MixedAttention(parts, dtype="bfloat16")


def _strided():
    return layers.StridedAttention(stride=64, heads="merged", **HEADS)


def _fixed():
    return layers.FixedAttention(block_size=64, num_summary=8, heads="merged", **HEADS)


def _all():
    return layers.AllAttention(num_persistent=512, window=256, adaptive_span=True, **HEADS)


def _image():
    return layers.LocalAttention2D(width=64, block_shape=(8, 8), **HEADS)


def _global():
    return layers.GlobalLocalAttention(window=256, num_first_global=1, num_global=64, **HEADS)


def _hashing():
    return layers.LSHAttention(num_buckets=16, bucket_size=128, num_rounds=2, **HEADS)


def _clustered(top_k=None):
    return layers.ClusteredAttention(num_clusters=64, top_k=top_k, **HEADS)


def _improved():
    return _clustered(top_k=32)


def _of_layer(name, make_layer, forward, gradient, causal=True):
    """Returns the two programs of a layer, by name."""
    return {
        f"{name}, forward": Program(lambda: layer_program(make_layer, backward=False, causal=causal), forward),
        f"{name}, gradient": Program(lambda: layer_program(make_layer, backward=True, causal=causal), gradient),
    }


RESHAPES = Bounds(0, 0, 0, "groups are reshapes and slices, and so are their gradients")
# Revival of centroids takes one sort and two gathers of (N, K) numbers in every routing layer: next to nothing.
PROGRAMS = {
    "permutation, gradient": Program(
        lambda: permutation_program(gather.permute_rows), Bounds(1, 0, 0, "the gather by the inverse")
    ),
    "permutation by plain gather, gradient": Program(
        lambda: permutation_program(lambda x, order, inverse: gather.take_rows(x, order)),
        Bounds(0, 1, 0, "what is avoided: a scatter"),
    ),
    **_of_layer(
        "LocalAttention",
        _local,
        Bounds(0, 0, 0, "blocks are reshapes and slices"),
        Bounds(0, 0, 0, "and so are their gradients"),
    ),
    **_of_layer(
        "RoutingAttention nearest",
        _nearest,
        Bounds(6, 0, 3, "order and its inverse; queries, values, groups there, output back; revival"),
        Bounds(9, 0, 3, "the gradients of three permutations are gathers"),
    ),
    **_of_layer(
        "RoutingAttention nearest, separate keys",
        _separate,
        Bounds(11, 0, 5, "two orders and inverses; rows, their positions and groups; blocks of keys; revival"),
        Bounds(15, 2, 5, "a block of keys or values is read by several blocks of queries, which add up"),
    ),
    **_of_layer(
        "RoutingAttention successors",
        _successors,
        Bounds(6, 0, 3, "as nearest: keys are sorted a position late, values come along"),
        Bounds(9, 0, 3, "as nearest"),
    ),
    **_of_layer(
        "RoutingAttention successors, separate keys",
        _successors_separate,
        Bounds(11, 0, 5, "as nearest"),
        Bounds(15, 2, 5, "a block of keys or values is read by several blocks of queries, which add up"),
    ),
    **_of_layer(
        "RoutingAttention top_k",
        _top_k,
        Bounds(4, 2, 4, "top_k is a sort, members are sorted; means are two scatters; revival"),
        Bounds(5, 5, 4, "a token may be in several clusters: three gathers become scatters"),
    ),
    **_of_layer(
        "RoutingAttention top_keys",
        lambda: layers.RoutingAttention(selection="top_keys", share_qk=False, **ROUTED),
        Bounds(13, 0, 5, "best keys by a sort, in order; queries by cluster in blocks, beside their rows; revival"),
        Bounds(16, 4, 5, "a key may be of several clusters, whose rows are beside several blocks: gradients add up"),
        causal=False,
    ),
    **_of_layer(
        "MixedAttention local and nearest",
        _mixed,
        Bounds(6, 0, 3, "as nearest"),
        Bounds(9, 0, 3, "as nearest"),
    ),
    **_of_layer("StridedAttention", _strided, RESHAPES, RESHAPES),
    **_of_layer("FixedAttention", _fixed, RESHAPES, RESHAPES),
    **_of_layer("AllAttention with spans", _all, RESHAPES, RESHAPES),
    **_of_layer("LocalAttention2D", _image, RESHAPES, RESHAPES),
    **_of_layer(
        "GlobalLocalAttention",
        _global,
        Bounds(5, 0, 1, "the first 64 marks; counts, keys, values and queries there, and their rows back"),
        Bounds(9, 0, 1, "and their four gradients, in which each token takes the row of its slot"),
        causal=False,
    ),
    **_of_layer(
        "LSHAttention, two rounds",
        _hashing,
        Bounds(12, 0, 4, "each round: order and inverse; queries, keys, values, groups there, output and sums back"),
        Bounds(22, 0, 4, "the gradients of five permutations a round are gathers"),
    ),
    **_of_layer(
        "ClusteredAttention",
        _clustered,
        Bounds(2, 0, 1, "the first members of the clusters; means and votes are products with zeros and ones"),
        Bounds(2, 0, 1, "no gradient goes into the choice of clusters"),
        causal=False,
    ),
    **_of_layer(
        "ClusteredAttention, improved",
        _improved,
        Bounds(16, 1, 4, "best keys by a sort, their rows; queries by cluster in blocks, and back"),
        Bounds(19, 7, 4, "a key may be among the best of several clusters, whose gradients add up"),
        causal=False,
    ),
    "training step, two layers": Program(
        model_program, Bounds(19, 1, 6, "twice nearest; the embedding is a gather, its gradient a scatter")
    ),
}


def excess(ops_found, bounds):
    """Returns what a program holds too much of, as text: "" if nothing.

    Args:
        ops_found: {name: number} of `tpu_compile.COUNTED`.
        bounds: a `Bounds`.
    """
    limits = {"gather": bounds.gather, "scatter": bounds.scatter, "sort": bounds.sort, "while": 0}
    over = {name: (ops_found[name], limit) for name, limit in limits.items() if ops_found[name] > limit}
    return ", ".join(f"{name} {found} > {limit}" for name, (found, limit) in over.items())
