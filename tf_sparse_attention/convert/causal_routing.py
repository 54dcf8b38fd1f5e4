"""Makes trained models with routed heads that look ahead causal."""

from tf_sparse_attention.convert.weights import rebuilt
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.models.attention_parts import all_parts, class_name, map_parts


def with_causal_routing(model: LanguageModel) -> LanguageModel:
    """Returns a language model of the same weights whose routed heads select causally ("nearest").

    The members of clusters change. Before, each cluster took its best tokens of the whole sequence, so that a token was
    in no cluster or in several, and saw their earlier members. Now a token is in the cluster of its nearest centroid
    and sees the last `cluster_size` tokens of it. Which earlier tokens it sees no longer depends on later tokens or on
    padding, and every token has a cluster. Logits differ until the weights are trained further. As before, a token sees
    itself too (`mask_self=False`). Further training revives unused centroids.

    Args:
        model: a `LanguageModel` whose routed heads may have any selection that uses centroids.

    Returns:
        A new `LanguageModel`, not compiled.

    Raises:
        ValueError: If the model is no `LanguageModel`, has no routed heads that select by centroids over the whole
            sequence, or has other heads that look ahead and cannot be changed.

    Example:
        >>> model = with_causal_routing(from_t2t_checkpoint("checkpoint.zip"))
        >>> tsa.analysis.assert_causal(model, sequence_length=512)
    """
    if not isinstance(model, LanguageModel):
        raise ValueError(f"`model` must be a `LanguageModel`. Received: model={model!r}.")
    parts = model.backbone.get_config()["attention"]
    changed = map_parts(_causal, parts)
    if changed == parts:
        listed = [class_name(part) for part in all_parts(parts)]
        raise ValueError(f"`model` must have routed heads that are not causal. Received: a model of {listed}.")
    causal = rebuilt(model, attention=changed)
    if not causal.backbone.causal_selection:
        others = [_arguments(part).get("selection") for part in all_parts(changed)]
        others = [selection for selection in others if selection not in (None, "nearest")]
        raise ValueError(
            f"`model` must have no heads that choose without centroids and look ahead. Received: {others}."
        )
    return causal


def _arguments(part):
    return part["config"] if "class_name" in part else part


def _causal(part):
    """Returns the config of a part, changed to causal routing if its routed heads look ahead."""
    selections, arguments = {"top_k", "strided"}, _arguments(part)
    if class_name(part) != "RoutingAttention" or arguments.get("selection") not in selections:
        return part
    dropped = "reproduce_reference", "revive_after"
    arguments = {name: value for name, value in arguments.items() if name not in dropped}
    arguments |= {"selection": "nearest", "mask_self": False}
    return {**part, "config": arguments} if "class_name" in part else arguments
