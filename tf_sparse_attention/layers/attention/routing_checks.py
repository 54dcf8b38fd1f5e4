"""Checks of the arguments and calls of routing attention."""

from collections.abc import Mapping
from typing import Any

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_checks import check_successors
from tf_sparse_attention.types import Tensor

OF_ALL_TOKENS = ("top_k", "strided", "hash")  # selections that look at the whole sequence for queries and keys
OF_ANY_LENGTHS = (*OF_ALL_TOKENS, "top_keys")
WITHOUT_CENTROIDS = ("hash", "random")
SELECTIONS = ("nearest", *OF_ANY_LENGTHS, "random")
DISTANCES = ("rank", "token")


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises a `ValueError` for a wrong argument of `RoutingAttention`, given by name."""
    for name in ("num_clusters", "cluster_size"):
        checks.check_count(name, arguments[name])
    checks.check_choice("selection", arguments["selection"], SELECTIONS)
    checks.check_choice("distance", arguments["distance"], DISTANCES)
    position = arguments["kwargs"].get("position")
    if arguments["distance"] == "token" and position != "relative":
        raise ValueError(
            "`distance` must be 'rank' unless `position` is 'relative'; the others go by token. "
            f"Received: distance='token', position={position!r}."
        )
    checks.check_switch("share_qk", arguments["share_qk"])
    checks.check_optional_switch("mask_self", arguments["mask_self"])
    check_successors(arguments["use_successor_values"], arguments["mask_self"])
    if arguments["use_successor_values"] and arguments["selection"] in OF_ANY_LENGTHS:
        raise ValueError(
            "`selection` must be 'nearest' or 'random' with `use_successor_values`. "
            f"Received: selection={arguments['selection']!r}."
        )
    checks.check_switch("reproduce_reference", arguments["reproduce_reference"])
    if arguments["selection"] == "top_keys":
        _check_top_keys(arguments)
    checks.check_rate("ema_decay", arguments["ema_decay"])
    checks.check_not_negative("commitment_loss", arguments["commitment_loss"])
    checks.check_count("revive_after", arguments["revive_after"], minimum=0)
    num_clusters = arguments["num_clusters"]
    if arguments["selection"] == "hash" and (num_clusters < 2 or num_clusters & (num_clusters - 1)):
        raise ValueError(
            "`num_clusters` must be 2, 4, 8 or another power of two where `selection` is 'hash'. "
            f"Received: num_clusters={num_clusters}."
        )


def _check_top_keys(arguments):
    wrong = {
        "share_qk": "which is for queries and keys of their own",
        "mask_self": "where a query is no key",
        "reproduce_reference": "which is not in the published code",
    }
    for name, reason in wrong.items():
        if arguments[name]:
            raise ValueError(f"`{name}` must be False with selection='top_keys', {reason}. Received: {name}=True.")


def check_has_centroids(selection: str) -> None:
    """Raises a `ValueError` for a selection without centroids."""
    if selection in WITHOUT_CENTROIDS:
        raise ValueError(
            f"`selection` must be one with centroids to start them from data, not one of {list(WITHOUT_CENTROIDS)}. "
            f"Received: selection={selection!r}."
        )


def check_sink(use_sink: bool, selection: str) -> None:
    """Raises a `ValueError` for a sink with a selection that has several softmaxes for a query."""
    if use_sink and selection in OF_ALL_TOKENS:
        raise ValueError(
            "`use_sink` must be False where clusters choose queries, each of which has several softmaxes then: "
            f"pass selection='nearest'. Received: use_sink=True, selection={selection!r}."
        )


def check_lengths(selection: str, query: Tensor, value: Tensor) -> None:
    """Raises a `ValueError` if a selection cannot serve queries and values (B, N, T, H) of these lengths."""
    lengths = query.shape[2], value.shape[2]
    if selection not in OF_ANY_LENGTHS and None not in lengths and lengths[0] != lengths[1]:
        raise ValueError(
            f"`selection` must be one of {list(OF_ANY_LENGTHS)} where `query` and `value` have different lengths. "
            f"Received: selection={selection!r}, lengths {lengths[0]} and {lengths[1]}."
        )
