"""Published checkpoints of the Routing Transformer as Keras models."""

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

    Sizes, heads, layers, which of them route and the kind of feed-forward are read from names and shapes; block sizes,
    cluster sizes, dropout and the optimizer from the settings of tensor2tensor. The model gives the logits of the
    published code at full blocks: `model(ids)` takes ids unshifted and its logits at t are for the token after t,
    whereas the published model shifts its targets right by itself. Routed heads select as published ("top_k"): over the
    whole sequence with its padding, and so not causally; `with_causal_routing` makes them causal.

    A checkpoint with an encoder becomes a `SequenceToSequence`. The published encoder is given vectors, so ours reads
    "encoder_features", float (B, S, D) with zeros for padding, and "encoder_padding_mask" says which are none. Routed
    heads of its decoder look ahead over the targets in cross-attention too.

    Weights change in four ways that do not affect the results: the joint kernels are split by heads, the [d, d] matrix
    that all heads share is folded into the output projections, the scale d^-1/2 of routed queries into theirs, and
    tables of local distances in an encoder, which the published code reads at another distance, are put in order.

    Args:
        path: prefix of the checkpoint's files ("rt-checkpoint/ckpt-3530000"), a folder with one checkpoint, or the zip
            file it was published in.
        hparams: path of a file of settings, the name of a preset ("pg19_routing_published", "pg19_local8k"), or a
            dictionary, which overrides hparams.json in the checkpoint's folder, if there is one. If None, that file.
            Default: None.
        with_optimizer: whether the model is compiled with the published Adafactor and the part of its state that the
            checkpoint has, to continue training. The state of weights that are split or folded is reset; they are
            logged. Default: True.
        dtype: dtype policy of the model; None for Keras's global policy. Weights are float32 in the file.
            Default: None.

    Returns:
        A `tsa.models.LanguageModel`, or a `tsa.models.SequenceToSequence`, built. Besides its weights only the tensor
        being read is in memory.

    Raises:
        ValueError: If files are missing or damaged; if variables are missing, unknown or of a wrong shape (all are
            listed); if settings are missing or contradict names and shapes; if the model has heads of kinds that no
            published checkpoint has, or an encoder with norms before its sublayers.

    Example:
        >>> model = from_t2t_checkpoint("checkpoint.zip", hparams="pg19_routing_published")
        >>> model.save("pg19.keras")
    """
    with open_checkpoint(path) as checkpoint:
        return convert_checkpoint(checkpoint, plan_conversion(checkpoint, hparams), with_optimizer, dtype)


def plan_conversion(checkpoint: Checkpoint, hparams: str | os.PathLike | dict[str, Any] | None = None) -> Plan:
    """Return the plan of an open `Checkpoint`; `hparams` as for `from_t2t_checkpoint`."""
    return make_plan(checkpoint.shapes, read_settings(hparams, checkpoint.folder))


def convert_checkpoint(
    checkpoint: Checkpoint, plan: Plan, with_optimizer: bool = True, dtype: Any = None
) -> LanguageModel | SequenceToSequence:
    """Return the model of an open `Checkpoint` by its plan; other arguments as for `from_t2t_checkpoint`."""
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
        logging.info("The model is not compiled: its optimizer differs from the published one, %s.", unsupported)
        return
    optimizer, reset = restore_optimizer(model, plan, checkpoint)
    model.compile(optimizer, loss=language_model_loss())
    if len(reset) == len(model.trainable_variables):
        logging.info("The checkpoint has no optimizer state: it is initialized, at the step of the file.")
    elif reset:
        logging.info("The optimizer state of %d weights is reset: %s.", len(reset), ", ".join(reset))


def plan_t2t_checkpoint(
    path: str | os.PathLike | dict[str, Shape], hparams: str | os.PathLike | dict[str, Any] | None = None
) -> Plan:
    """Return what `from_t2t_checkpoint` would do, from names and shapes alone.

    Args:
        path: as for `from_t2t_checkpoint`, or a dictionary of shapes by name.
        hparams: as for `from_t2t_checkpoint`.

    Returns:
        A plan: `plan.table()` is the mapping as text, `plan.layout` what is known from names and shapes.

    Raises:
        ValueError: As for `from_t2t_checkpoint`.

    Example:
        >>> print(plan_t2t_checkpoint("checkpoint.zip", hparams="pg19_routing_published").table())
    """
    if isinstance(path, dict):
        return make_plan(path, read_settings(hparams, None))
    with open_checkpoint(path) as checkpoint:
        return plan_conversion(checkpoint, hparams)


def _value(row, scope, checkpoint):
    """Return the value of a weight; where nothing changes the tensor that was read, which is not copied again."""
    names = [scope + name for name in row.sources]
    return checkpoint.read_tensor(*names) if row.compute is identity else row.compute(*map(checkpoint.read, names))
