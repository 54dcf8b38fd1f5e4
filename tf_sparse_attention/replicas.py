"""Queries about TensorFlow replicas. Imports TensorFlow only inside functions."""

import keras


def replica_count() -> int:
    """Return the number of replicas of the TensorFlow strategy; 1 on other backends, whose arrays are global."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def in_several_replicas() -> bool:
    """Return whether the caller runs in the context of one of several replicas."""
    if replica_count() == 1:
        return False
    import tensorflow as tf

    return tf.distribute.in_cross_replica_context() is False
