"""An update in which all TensorFlow replicas meet, and which is taken back afterwards if one of them says so.

Imports TensorFlow inside its functions.
"""

from collections.abc import Callable, Sequence

import keras

from tf_sparse_attention.types import Tensor


def update_if(update: Callable[[], None], condition: Tensor, variables: Sequence[keras.Variable]) -> Tensor:
    """Runs an update of variables, which then have the values from before unless all replicas meet a condition.

    A condition around the update would not do, since the replicas exchange gradients in it. A copy of all `variables`
    lives as long as it runs.

    Args:
        update: the function that changes the variables.
        condition: bool (), of this replica.
        variables: all that it may change.

    Returns:
        Whether all replicas met the condition, bool (), the same on each.
    """
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    failed = context.all_reduce(tf.distribute.ReduceOp.SUM, 1.0 - tf.cast(condition, "float32"))
    is_met = tf.equal(failed, 0.0)
    before = [tf.identity(variable.value) for variable in variables]
    update()

    def choose(strategy, before, is_met):
        for variable, value in zip(variables, before, strict=True):
            strategy.extended.update(variable.value, _keep_if, args=(is_met, value), group=False)

    context.merge_call(choose, args=(before, is_met))
    return is_met


def _keep_if(variable, is_met, before):
    import tensorflow as tf

    variable.assign(tf.where(is_met, variable, before))
