"""Trained models whose routed heads look ahead, made causal."""

from tf_sparse_attention.convert.weights import rebuilt
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.models.attention_parts import all_parts, class_name, map_parts


def with_causal_routing(model):
    """Returns a language model of the same weights whose routed heads select causally ("nearest").

    What changes in meaning: a token was in the clusters that had it among their best of the whole sequence, in none or
    in several, and saw the earlier ones among the members; now it is in the cluster of its nearest centroid and sees
    the last `cluster_size` tokens of it. Which earlier tokens it sees no longer depends on later ones or on padding, no
    token is without a cluster, and the weights have to get used to it by further training: logits differ. As in the
    training before, a token sees itself too (`mask_self=False`). Unused centroids are revived when training goes on.

    Args:
        model: a `LanguageModel` whose routed heads may have any selection that uses centroids.

    Returns:
        A new `LanguageModel`, not compiled.

    Raises:
        ValueError: if the model is no `LanguageModel`, has no routed heads that select by centroids over the whole
            sequence, or has others that look ahead and cannot be changed.

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
    """Returns a part of plain data, routed heads that look ahead made causal."""
    published, given = {"top_k", "strided"}, _arguments(part)
    if class_name(part) != "RoutingAttention" or given.get("selection") not in published:
        return part
    given = {name: value for name, value in given.items() if name not in ("reproduce_reference", "revive_after")}
    given |= {"selection": "nearest", "mask_self": False}
    return {**part, "config": given} if "class_name" in part else given
