"""Conversion of published Routing Transformer checkpoints to Keras models."""

import logging
import os
from typing import Any

from tf_sparse_attention.convert.t2t.files import Checkpoint, open_checkpoint
from tf_sparse_attention.convert.t2t.mapping import identity
from tf_sparse_attention.convert.t2t.optimizer import restore_optimizer, unsupported_optimizer_settings
from tf_sparse_attention.convert.t2t.plan import Plan, make_plan
from tf_sparse_attention.convert.t2t.settings import read_settings
from tf_sparse_attention.models import LanguageModel, SequenceToSequence
from tf_sparse_attention.models.metrics import language_model_loss
from tf_sparse_attention.models.rebuilding import initialize_with_zeros, weights_by_path
from tf_sparse_attention.types import Shape


def from_t2t_checkpoint(
    path: str | os.PathLike,
    hparams: str | os.PathLike | dict[str, Any] | None = None,
    with_optimizer: bool = True,
    dtype: Any = None,
) -> LanguageModel | SequenceToSequence:
    """Return the model of a TensorFlow 1 checkpoint of the Routing Transformer (Roy et al. 2021).

    Variable names and shapes determine sizes, heads, layers, the routed layers and the type of feed-forward.
    tensor2tensor's hparams determine block sizes, cluster sizes, dropout and the optimizer. For sequences of full
    blocks, logits equal those of the published code. `model(ids)` takes unshifted ids, and its logits at position t
    predict token t + 1; the published model shifts its targets to the right itself. Routed heads select as published
    ("top_k"): over the whole sequence including padding, which is not causal. `with_causal_routing` makes them causal.

    A checkpoint with an encoder becomes a `SequenceToSequence`. Like the published encoder, its encoder takes vectors:
    "encoder_features", float (B, S, D) with zeros at padding, and "encoder_padding_mask", bool (B, S). In
    cross-attention, routed heads also select over all targets and are not causal.

    Four changes of the weights do not affect results. Joint kernels are split by head. The [d, d] matrix shared by all
    heads is folded into the output projections. The scale d^-1/2 of routed queries is folded into their projections.
    An encoder's tables of local distances, which the published code reads with an offset, are shifted.

    Args:
        path: prefix of the checkpoint's files ("rt-checkpoint/ckpt-3530000"), a folder with one checkpoint, or the
            published zip file.
        hparams: path of a file of hparams, the name of a preset ("pg19_routing_published", "pg19_local8k"), or a
            dictionary that overrides the hparams.json in the checkpoint's folder, if present. None: only this
            hparams.json. Default: None.
        with_optimizer: whether to compile the model with the published Adafactor and its state in the checkpoint, to
            continue training. The state of split or folded weights is reset; a log line lists them. Default: True.
        dtype: dtype policy of the model; None for Keras's global policy. Weights are float32 in the file.
            Default: None.

    Returns:
        A built `tsa.models.LanguageModel` or `tsa.models.SequenceToSequence`. During conversion, memory holds the
        weights and one tensor of the checkpoint.

    Raises:
        ValueError: If files are missing or damaged; if variables are missing, unknown or have a wrong shape (all are
            listed); if hparams are missing or contradict names and shapes; if the model has a type of heads that no
            published checkpoint has, or an encoder with pre-norm layers.

    Example:
        >>> model = from_t2t_checkpoint("checkpoint.zip", hparams="pg19_routing_published")
        >>> model.save("pg19.keras")
    """
    with open_checkpoint(path) as checkpoint:
        return convert_checkpoint(checkpoint, plan_conversion(checkpoint, hparams), with_optimizer, dtype)


def plan_conversion(checkpoint: Checkpoint, hparams: str | os.PathLike | dict[str, Any] | None = None) -> Plan:
    """Return the conversion plan of an open `Checkpoint`; for `hparams`, see `from_t2t_checkpoint`."""
    return make_plan(checkpoint.shapes, read_settings(hparams, checkpoint.prefix.parent))


def convert_checkpoint(
    checkpoint: Checkpoint, plan: Plan, with_optimizer: bool = True, dtype: Any = None
) -> LanguageModel | SequenceToSequence:
    """Convert an open `Checkpoint` to a model; for the other arguments, see `from_t2t_checkpoint`."""
    with initialize_with_zeros():
        model = plan.make_model(dtype)
    weights = weights_by_path(model)
    for row in plan.rows:
        weights[row.target].assign(_value(row, plan.layout.scope, checkpoint))
    if with_optimizer:
        _compile(model, plan, checkpoint)
    return model


def _compile(model, plan, checkpoint):
    unsupported = unsupported_optimizer_settings(plan.settings)
    if unsupported:
        logging.info("The model is not compiled, because its optimizer settings are not supported: %s.", unsupported)
        return
    optimizer, reset = restore_optimizer(model, plan, checkpoint)
    model.compile(optimizer, loss=language_model_loss())
    if len(reset) == len(model.trainable_variables):
        logging.info("The checkpoint has no optimizer state: only the step is restored.")
    elif reset:
        logging.info("The optimizer state of %d weights is reset: %s.", len(reset), ", ".join(reset))


def plan_t2t_checkpoint(
    path: str | os.PathLike | dict[str, Shape], hparams: str | os.PathLike | dict[str, Any] | None = None
) -> Plan:
    """Return the conversion plan of a checkpoint, without reading weights.

    Args:
        path: see `from_t2t_checkpoint`, or a dictionary of shapes by variable name.
        hparams: see `from_t2t_checkpoint`.

    Returns:
        A plan: `plan.table()` is the mapping of variables to weights as text, `plan.layout` the architecture.

    Raises:
        ValueError: See `from_t2t_checkpoint`.

    Example:
        >>> print(plan_t2t_checkpoint("checkpoint.zip", hparams="pg19_routing_published").table())
    """
    if isinstance(path, dict):
        return make_plan(path, read_settings(hparams, None))
    with open_checkpoint(path) as checkpoint:
        return plan_conversion(checkpoint, hparams)


def _value(row, scope, checkpoint):
    """Return the value of a weight: the tensor of the checkpoint itself, without a copy, if it does not change."""
    names = [scope + name for name in row.sources]
    return checkpoint.read_tensor(*names) if row.compute is identity else row.compute(*map(checkpoint.read, names))
