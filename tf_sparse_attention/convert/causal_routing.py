"""Conversion of trained models with non-causal routed heads to causal routing."""

import functools
from typing import Any, TypeVar

from tf_sparse_attention.models import LanguageModel, SequenceToSequence
from tf_sparse_attention.models.blocks import all_parts, class_name, map_parts
from tf_sparse_attention.models.rebuilding import rebuilt, rebuilt_backbone

LOOK_AHEAD = ("top_k", "strided")  # selections by centroids over the whole sequence
Routed = TypeVar("Routed", LanguageModel, SequenceToSequence)


def with_causal_routing(model: Routed) -> Routed:
    """Return a model with the same weights whose routed heads select causally ("nearest").

    Cluster membership changes. In the given model, each cluster takes its highest-scoring tokens of the whole sequence:
    a token is in zero or more clusters and attends to their earlier members. In the new model, each token is in the
    cluster of its nearest centroid and attends to the last `cluster_size` tokens of this cluster. The selection no
    longer depends on later tokens or on padding. Logits differ until the model is trained further. A token still
    attends to itself (`mask_self=False`). Further training revives unused centroids.

    In the cross-attention of an encoder-decoder, a target token attends to the `cluster_size` highest-scoring source
    tokens of its nearest centroid ("top_keys"), independently of other target tokens. The encoder's selection does not
    change, except that source padding is no longer assigned to clusters (`reproduce_reference=False`).

    Args:
        model: a `LanguageModel` or a `SequenceToSequence`, with any selection of routed heads that uses centroids.

    Returns:
        A new model of the same class, not compiled.

    Raises:
        ValueError: If the model has another type, has no routed heads that select by centroids over the whole
            sequence, or has other non-causal heads, which cannot be converted.

    Example:
        >>> model = with_causal_routing(from_t2t_checkpoint("checkpoint.zip"))
        >>> tsa.analysis.assert_causal(model, sequence_length=512)
    """
    if isinstance(model, SequenceToSequence):
        parts = map_parts(_changed, model.encoder.get_config()["attention"]["parts"])
        encoder = rebuilt_backbone(model.encoder, attention={"parts": parts, "reproduce_reference": False})
        return SequenceToSequence(encoder, _with_causal_decoder(model.decoder), dtype=model.dtype_policy)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"`model` must be a `LanguageModel` or a `SequenceToSequence`. Received: model={model!r}.")
    return _with_causal_decoder(model)


def _with_causal_decoder(model: LanguageModel) -> LanguageModel:
    config = model.backbone.get_config()
    parts = {"attention": config["attention"]["parts"], "cross_attention": config["cross_attention"]}
    parts = {name: listed for name, listed in parts.items() if listed is not None}
    # In cross-attention, queries must not depend on each other.
    change: dict[str, dict[str, Any]] = {
        "attention": {"selection": "nearest", "mask_self": False},
        "cross_attention": {"selection": "top_keys"},
    }
    changed = {name: map_parts(functools.partial(_changed, **change[name]), parts[name]) for name in parts}
    if changed == parts:
        listed = [class_name(part) for attention in parts.values() for part in all_parts(attention)]
        raise ValueError(f"`model` must have routed heads that are not causal. Received: a model of {listed}.")
    own_parts = changed.pop("attention")
    causal = rebuilt(model, attention={"parts": own_parts, "reproduce_reference": False}, **changed)
    if not causal.backbone.causal_selection:
        others = [_arguments(part).get("selection") for part in all_parts(own_parts)]
        others = [selection for selection in others if selection not in (None, "nearest")]
        raise ValueError(
            f"`model` must not have non-causal heads that select without centroids. Received: selection={others}."
        )
    return causal


def _arguments(part):
    return part["config"] if "class_name" in part else part


def _changed(part: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the config of a part, changed if it has routed heads that select over the whole sequence.

    The new config has no options that reproduce the published code.
    """
    arguments = _arguments(part)
    if class_name(part) != "RoutingAttention" or arguments.get("selection") not in LOOK_AHEAD:
        return part
    dropped = "reproduce_reference", "revive_after"
    arguments = {**{name: value for name, value in arguments.items() if name not in dropped}, **changes}
    return {**part, "config": arguments} if "class_name" in part else arguments
