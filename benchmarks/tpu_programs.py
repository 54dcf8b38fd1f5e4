"""Programs that `benchmarks.tpu_check` compiles, with bounds on their operations.

Import this module only on the JAX backend. Every program is a pair (function, arguments). Bounds apply to the compiled
program.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.tpu_layers import LAYERS, LENGTH, gradient_of, layer_program, values_of
from tf_sparse_attention import models, optimizers
from tf_sparse_attention.ops import gather


class Bounds(NamedTuple):
    """Maximal numbers of operations in a program; a `while` is never allowed.

    Attributes:
        gather, scatter, sort: maximal numbers.
        why: purpose of the operations.
    """

    gather: int
    scatter: int
    sort: int
    why: str


class Program(NamedTuple):
    """Program to compile, `make()` returns (function, arguments), with its bounds."""

    make: Callable
    bounds: Bounds


def model_program(length=LENGTH):
    """Return (function, arguments) of one training step of a language model with two layers in bfloat16.

    Each layer has 6 local heads, 2 routed heads and hidden size 512. The optimizer is Adafactor.
    """
    local = {"layer": "LocalAttention", "num_heads": 6, "key_dim": 64, "window": 256}
    routed = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 64, "num_clusters": 8, "cluster_size": 256}
    backbone = models.Backbone(258, 2, 512, [local, routed], intermediate_dim=2048, dtype="bfloat16", seed=0)
    model = models.LanguageModel(backbone, dtype="bfloat16")
    optimizer = optimizers.Adafactor(1e-2)
    optimizer.build(model.trainable_variables)
    states = [values_of(v) for v in (model.trainable_variables, model.non_trainable_variables, optimizer.variables)]
    token_ids = np.zeros((1, length), "int32")
    return training_step(model, optimizer), (*states, token_ids, token_ids)


def training_step(model, optimizer):
    """Return a function (weights, state, optimizer state, token ids, targets) -> (loss, new states).

    Args:
        model: a `LanguageModel`.
        optimizer: a built optimizer of the model.
    """
    loss_of = models.language_model_loss()

    def loss(trainable, state, token_ids, targets):
        logits, state, losses = model.stateless_call(trainable, state, token_ids, training=True, return_losses=True)
        return loss_of(targets, logits) + sum(losses, 0.0), state

    def step(trainable, state, optimizer_state, token_ids, targets):
        (value, state), gradients = gradient_of(loss, 0)(trainable, state, token_ids, targets)
        trainable, optimizer_state = optimizer.stateless_apply(optimizer_state, gradients, trainable)
        return value, trainable, state, optimizer_state

    return step


def permutation_program(take):
    """Return (function, arguments) of the gradient of a gather by a permutation of 8 x 2048 rows.

    Args:
        take: function of (x, order, inverse).
    """

    def gradient(x, order, inverse, upstream):
        import jax

        return jax.vjp(lambda x: take(x, order, inverse), x)[1](upstream)[0]

    x = np.zeros((1, 8, LENGTH, 64), "float32")
    order = np.zeros((1, 8, LENGTH), "int32")
    return gradient, (x, order, order, x)


def _of_layer(name, forward, gradient):
    """Return the two programs of a layer, by name."""
    layer = LAYERS[name]
    return {
        f"{name}, forward": Program(lambda: layer_program(layer, backward=False), forward),
        f"{name}, gradient": Program(lambda: layer_program(layer, backward=True), gradient),
    }


RESHAPES = Bounds(0, 0, 0, "groups are reshapes and slices, and so are their gradients")
# Revival of centroids takes one sort and two gathers of (N, K) numbers in every routing layer, a negligible cost.
PROGRAMS = {
    "permutation, gradient": Program(
        lambda: permutation_program(gather.permute_rows), Bounds(1, 0, 0, "the gather by the inverse")
    ),
    "permutation by plain gather, gradient": Program(
        lambda: permutation_program(lambda x, order, inverse: gather.take_rows(x, order)),
        Bounds(0, 1, 0, "a scatter, which `permute_rows` avoids"),
    ),
    **_of_layer(
        "LocalAttention",
        Bounds(0, 0, 0, "blocks are reshapes and slices"),
        Bounds(0, 0, 0, "gradients are reshapes and slices"),
    ),
    **_of_layer(
        "LocalAttention, grouped heads",
        Bounds(0, 0, 0, "blocks are reshapes and slices; a group of heads shares keys"),
        Bounds(0, 0, 0, "gradients are reshapes and slices"),
    ),
    **_of_layer(
        "BlockSelectedAttention",
        Bounds(22, 0, 2, "reorder pairs of queries and blocks, and restore the order; one key block per tile"),
        Bounds(26, 2, 2, "like forward; several tiles read a block, so gradients add up"),
    ),
    **_of_layer(
        "NativeSparseAttention",
        Bounds(22, 0, 2, "like BlockSelectedAttention; other branches are reshapes"),
        Bounds(26, 2, 2, "like BlockSelectedAttention"),
    ),
    **_of_layer(
        "RoutingAttention nearest",
        Bounds(6, 0, 3, "order and inverse; reorder queries, values, groups, restore output; revival"),
        Bounds(9, 0, 3, "the gradients of three permutations are gathers"),
    ),
    **_of_layer(
        "RoutingAttention nearest, separate keys",
        Bounds(11, 0, 5, "two orders and inverses; rows, their positions and groups; key blocks; revival"),
        Bounds(15, 2, 5, "several query blocks read a block of keys or values, so gradients add up"),
    ),
    **_of_layer(
        "RoutingAttention successors",
        Bounds(6, 0, 3, "like nearest; keys are shifted by one position before the sort"),
        Bounds(9, 0, 3, "like nearest"),
    ),
    **_of_layer(
        "RoutingAttention successors, separate keys",
        Bounds(11, 0, 5, "like nearest, separate keys"),
        Bounds(15, 2, 5, "several query blocks read a block of keys or values, so gradients add up"),
    ),
    **_of_layer(
        "RoutingAttention top_k",
        Bounds(4, 2, 4, "sorts for top_k and for members; means are two scatters; revival"),
        Bounds(5, 5, 4, "a token may be in several clusters: three gathers become scatters"),
    ),
    **_of_layer(
        "RoutingAttention top_keys",
        Bounds(13, 0, 5, "sort for top keys; query blocks by cluster, with the rows of their keys; revival"),
        Bounds(16, 4, 5, "a key may be in several clusters, and several blocks read its rows: gradients add up"),
    ),
    **_of_layer(
        "MixedAttention local and nearest",
        Bounds(6, 0, 3, "like nearest"),
        Bounds(9, 0, 3, "like nearest"),
    ),
    **_of_layer("StridedAttention", RESHAPES, RESHAPES),
    **_of_layer("FixedAttention", RESHAPES, RESHAPES),
    **_of_layer("AllAttention with spans", RESHAPES, RESHAPES),
    **_of_layer("LocalAttention2D", RESHAPES, RESHAPES),
    **_of_layer(
        "GlobalLocalAttention",
        Bounds(5, 0, 1, "the first 64 marked tokens; gather counts, keys, values and queries, and restore rows"),
        Bounds(9, 0, 1, "and their four gradients, where each token takes the row of its slot"),
    ),
    **_of_layer(
        "LSHAttention, two rounds",
        Bounds(12, 0, 4, "per round: order and inverse; reorder queries, keys, values, groups, restore output, sums"),
        Bounds(22, 0, 4, "the gradients of five permutations per round are gathers"),
    ),
    **_of_layer(
        "ClusteredAttention",
        Bounds(2, 0, 1, "the first members of the clusters; means and votes are matrix products"),
        Bounds(2, 0, 1, "the choice of clusters has no gradient"),
    ),
    **_of_layer(
        "ClusteredAttention, improved",
        Bounds(16, 1, 4, "sort for top keys, their rows; query blocks by cluster, restore the order"),
        Bounds(19, 7, 4, "a key may be a top key of several clusters, so gradients add up"),
    ),
    "training step, two layers": Program(
        model_program, Bounds(19, 1, 6, "twice nearest; the embedding is a gather, its gradient a scatter")
    ),
}


def excess(ops_found, bounds):
    """Return the operations that exceed their bounds, as text; "" if there are none.

    Args:
        ops_found: {name: number} of `tpu_compile.COUNTED`.
        bounds: a `Bounds`.
    """
    limits = {"gather": bounds.gather, "scatter": bounds.scatter, "sort": bounds.sort, "while": 0}
    over = {name: (ops_found[name], limit) for name, limit in limits.items() if ops_found[name] > limit}
    return ", ".join(f"{name} {found} > {limit}" for name, (found, limit) in over.items())
