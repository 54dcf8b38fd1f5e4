"""Restoration of the published Adafactor state: moments and step."""

import math
from collections.abc import Mapping
from typing import Any

import keras

from tf_sparse_attention.convert.t2t.files import Checkpoint
from tf_sparse_attention.convert.t2t.layout import SLOTS, STEP
from tf_sparse_attention.convert.t2t.plan import Plan
from tf_sparse_attention.models.rebuilding import weights_by_path
from tf_sparse_attention.optimizers import Adafactor, RsqrtNormalizedDecay

SLOT, SECOND_SLOT = "Adafactor", "Adafactor_1"
# Settings for which tensor2tensor's optimizer equals `Adafactor` here; they are also tensor2tensor's defaults.
PUBLISHED = {
    "optimizer": "adafactor",
    "optimizer_adafactor_decay_type": "pow",
    "optimizer_adafactor_factored": True,
    "learning_rate_schedule": "constant*rsqrt_normalized_decay",
}


def unsupported_optimizer_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the optimizer settings, by name, that restoring does not support."""
    given = {name: settings.get(name, value) for name, value in PUBLISHED.items()}
    return {name: value for name, value in given.items() if value != PUBLISHED[name]}


def restore_optimizer(model: keras.Model, plan: Plan, checkpoint: Checkpoint) -> tuple[Adafactor, list[str]]:
    """Restore the optimizer of a converted model with the state of a checkpoint.

    Args:
        model: the converted model.
        plan: the `Plan` of its conversion.
        checkpoint: the open `Checkpoint`.

    Returns:
        Pair of an `Adafactor` and the paths of the weights whose state is reset.
    """
    settings = plan.settings
    optimizer = Adafactor(
        RsqrtNormalizedDecay(
            settings.get("learning_rate_constant", 0.01),
            warmup_steps=settings.get("learning_rate_warmup_steps", 10_000),
        ),
        beta_1=settings.get("optimizer_adafactor_beta1", 0.0),
        decay_power=settings.get("optimizer_adafactor_memory_exponent", 0.8),
        clip_threshold=settings.get("optimizer_adafactor_clipping_threshold", 1.0),
        multiply_by_parameter_scale=settings.get("optimizer_adafactor_multiply_by_parameter_scale", True),
    )
    optimizer.build(model.trainable_variables)
    if STEP in checkpoint.shapes:
        optimizer.iterations.assign(int(checkpoint.read(STEP)))
    return optimizer, _restore_moments(optimizer, model, plan, checkpoint)


def _restore_moments(optimizer, model, plan, checkpoint):
    """Restore the moments of each weight that is a plain copy of a variable; return the paths of all other weights."""
    rows = {row.target: row for row in plan.rows}
    reset = []
    for path, variable in weights_by_path(model).items():
        if not variable.trainable:
            continue
        row = rows[path]
        own = optimizer.get_slots(variable)
        moments = _moments(row, plan.layout.scope, checkpoint.shapes, own)
        if moments is None:
            reset.append(row.target)
            continue
        for name, source in moments.items():
            own[name].assign(checkpoint.read(source).reshape(own[name].shape))
    return reset


def _moments(row, scope, shapes, own):
    """Return the checkpoint names of a weight's slots, by our names, or None if no slots fit."""
    if row.change or "momentum" in own:
        return None
    slot = f"{SLOTS}{scope}{row.sources[0]}/"
    names = {"second_moment": slot + SLOT}
    if "row_moment" in own:
        names = {"row_moment": slot + SLOT, "column_moment": slot + SECOND_SLOT}
    # If rows and columns have equal sizes, only the names distinguish the two moments.
    fits = all(math.prod(shapes.get(source, (-1,))) == math.prod(own[name].shape) for name, source in names.items())
    return names if fits else None
