"""Whether code runs as one of several TensorFlow replicas. Imports TensorFlow inside its functions."""

import keras


def replica_count() -> int:
    """Return how many TensorFlow replicas the current strategy has; 1 on other backends, whose arrays are global."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def in_several_replicas() -> bool:
    """Return whether this code runs as one of several replicas."""
    if replica_count() == 1:
        return False
    import tensorflow as tf

    return tf.distribute.in_cross_replica_context() is False
