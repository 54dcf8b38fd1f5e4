"""The state of the published Adafactor: its moments and its step, to train on."""

import math

from tf_sparse_attention.convert.t2t.layout import SLOTS, STEP
from tf_sparse_attention.convert.weights import weights_by_path
from tf_sparse_attention.optimizers import Adafactor, RsqrtNormalizedDecay

SLOT, SECOND_SLOT = "Adafactor", "Adafactor_1"
SCHEDULE = "constant*rsqrt_normalized_decay"
# Settings under which tensor2tensor's optimizer is ours; absent ones are so.
PUBLISHED = {
    "optimizer": "adafactor",
    "optimizer_adafactor_decay_type": "pow",
    "optimizer_adafactor_factored": True,
    "learning_rate_schedule": SCHEDULE,
}


def unlike_published(settings):
    """Returns the settings, by name, that ask for another optimizer than the one that can be restored."""
    given = {name: settings.get(name, value) for name, value in PUBLISHED.items()}
    return {name: value for name, value in given.items() if value != PUBLISHED[name]}


def restore_optimizer(model, plan, checkpoint):
    """Returns the optimizer of a converted model with the state of a checkpoint.

    Args:
        model: the converted model.
        plan: the `Plan` of its conversion.
        checkpoint: the open `Checkpoint`.

    Returns:
        Pair of an `Adafactor` and the paths of the weights whose state begins anew.
    """
    given = plan.settings
    optimizer = Adafactor(
        RsqrtNormalizedDecay(
            given.get("learning_rate_constant", 0.01), warmup_steps=given.get("learning_rate_warmup_steps", 10_000)
        ),
        beta_1=given.get("optimizer_adafactor_beta1", 0.0),
        decay_power=given.get("optimizer_adafactor_memory_exponent", 0.8),
        clip_threshold=given.get("optimizer_adafactor_clipping_threshold", 1.0),
        multiply_by_parameter_scale=given.get("optimizer_adafactor_multiply_by_parameter_scale", True),
    )
    optimizer.build(model.trainable_variables)
    if STEP in checkpoint.shapes:
        optimizer.iterations.assign(int(checkpoint.read(STEP)))
    return optimizer, _fill(optimizer, model, plan, checkpoint)


def _fill(optimizer, model, plan, checkpoint):
    """Takes over the moments of each weight that is one whole variable; returns the others' paths."""
    rows = {row.target: row for row in plan.rows}
    fresh = []
    for path, variable in weights_by_path(model).items():
        if not variable.trainable:
            continue
        row = rows[path]
        own = optimizer.slots_of(variable)
        moments = _moments(row, plan.layout.scope, checkpoint.shapes, own)
        if moments is None:
            fresh.append(row.target)
            continue
        for name, source in moments.items():
            own[name].assign(checkpoint.read(source).reshape(own[name].shape))
    return fresh


def _moments(row, scope, shapes, own):
    """Returns the names of the slots of a weight, by ours, or None if its own are not in the file."""
    if row.change or "momentum" in own:
        return None
    slot = f"{SLOTS}{scope}{row.sources[0]}/"
    names = {"second_moment": slot + SLOT}
    if "row_moment" in own:
        names = {"row_moment": slot + SLOT, "column_moment": slot + SECOND_SLOT}
    # The published matrix and ours are cut at one place where both factors are of one size; names tell the two apart.
    fits = all(math.prod(shapes.get(source, (-1,))) == math.prod(own[name].shape) for name, source in names.items())
    return names if fits else None
