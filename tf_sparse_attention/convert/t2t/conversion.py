"""Published checkpoints of the Routing Transformer as Keras models."""

import logging

from tf_sparse_attention.convert.t2t.files import open_checkpoint
from tf_sparse_attention.convert.t2t.mapping import unchanged
from tf_sparse_attention.convert.t2t.optimizer import restore_optimizer, unlike_published
from tf_sparse_attention.convert.t2t.plan import make_plan
from tf_sparse_attention.convert.t2t.settings import read_settings
from tf_sparse_attention.convert.weights import weights_by_path, zeros_at_first
from tf_sparse_attention.models.metrics import language_model_loss


def from_t2t_checkpoint(path, hparams=None, with_optimizer=True, dtype=None):
    """Returns the language model of a TensorFlow 1 checkpoint of the Routing Transformer (Roy et al. 2021).

    Sizes, heads, layers, which of them route and the kind of feed-forward are read from names and shapes; block sizes,
    the members of a cluster, dropout and the optimizer from the settings of tensor2tensor. The model gives the logits
    of the published code at full blocks: `model(ids)` takes ids as they are and its logits at t are for the token after
    t, where the published model moves its targets right by itself. Heads that route select as published ("top_k"):
    over the whole sequence with its padding, and so not causally; `with_causal_routing` makes them causal.

    Weights change in three ways, without effect: heads are cut out of the joint kernels, the [d, d] matrix that all
    heads share is folded into the output projections, and the scale d^-1/2 of routed queries into theirs.

    Args:
        path: prefix of the checkpoint's files ("rt-checkpoint/ckpt-3530000"), a folder with one checkpoint, or the zip
            file it was published in.
        hparams: None: the file hparams.json beside the checkpoint. Otherwise the path of such a file, the name of a
            preset ("pg19_routing_published", "pg19_local8k"), or a dictionary, which replaces settings of the file
            beside, if there is one.
        with_optimizer: whether the model comes compiled with the published Adafactor and its state, as far as the
            checkpoint has it, to train on. Weights that were cut or folded begin a fresh state; they are logged.
        dtype: dtype policy of the model. None: that of Keras. Weights are float32 in the file.

    Returns:
        A `tsa.models.LanguageModel`, built. No tensor but the one being read is in memory besides its weights.

    Raises:
        ValueError: if files are missing or damaged; if variables are missing, unknown or of a wrong shape (all are
            listed); if settings are missing or contradict names and shapes; for models with an encoder, and with heads
            of kinds that no published checkpoint has.

    Example:
        >>> model = from_t2t_checkpoint("checkpoint.zip", hparams="pg19_routing_published")
        >>> model.save("pg19.keras")
    """
    with open_checkpoint(path) as checkpoint:
        return convert(checkpoint, plan_of(checkpoint, hparams), with_optimizer, dtype)


def plan_of(checkpoint, hparams=None):
    """Returns the plan of an open `Checkpoint`; `hparams` as for `from_t2t_checkpoint`."""
    return make_plan(checkpoint.shapes, read_settings(hparams, checkpoint.folder))


def convert(checkpoint, plan, with_optimizer=True, dtype=None):
    """Returns the model of an open `Checkpoint` and its plan; the others as for `from_t2t_checkpoint`."""
    with zeros_at_first():
        model = plan.make_model(dtype)
    weights = weights_by_path(model)
    for row in plan.rows:
        weights[row.target].assign(_value(row, plan.layout.scope, checkpoint))
    if with_optimizer:
        _compile(model, plan, checkpoint)
    return model


def _compile(model, plan, checkpoint):
    others = unlike_published(plan.settings)
    if others:
        logging.info("The model is not compiled: its optimizer is another than the published one, %s.", others)
        return
    optimizer, fresh = restore_optimizer(model, plan, checkpoint)
    model.compile(optimizer, loss=language_model_loss())
    if len(fresh) == len(model.trainable_variables):
        logging.info("The checkpoint has no state of an optimizer: all of it begins anew, at the step of the file.")
    elif fresh:
        logging.info("The optimizer begins anew for %d weights: %s.", len(fresh), ", ".join(fresh))


def plan_t2t_checkpoint(path, hparams=None):
    """Returns what `from_t2t_checkpoint` would do, from names and shapes alone.

    Args:
        path: as for `from_t2t_checkpoint`; or a dictionary of shapes by name.
        hparams: as for `from_t2t_checkpoint`.

    Returns:
        A plan: `plan.table()` is the mapping as text, `plan.layout` what names and shapes tell.

    Raises:
        ValueError: as `from_t2t_checkpoint`.

    Example:
        >>> print(plan_t2t_checkpoint("checkpoint.zip", hparams="pg19_routing_published").table())
    """
    if isinstance(path, dict):
        return make_plan(path, read_settings(hparams, None))
    with open_checkpoint(path) as checkpoint:
        return plan_of(checkpoint, hparams)


def _value(row, scope, checkpoint):
    """Returns the value of a weight: the variable itself, of which a weight makes no copy, where nothing changes."""
    names = [scope + name for name in row.sources]
    return checkpoint.read_tensor(*names) if row.make is unchanged else row.make(*map(checkpoint.read, names))
