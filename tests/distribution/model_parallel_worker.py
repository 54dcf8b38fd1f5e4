"""A process on the JAX backend with four CPU devices, which trains a model split over some of them.

`JAX_NUM_CPU_DEVICES=4 python -m tests.distribution.model_parallel_worker OPTIMIZER` prints a line of JSON, see `main`.
"""

import contextlib
import json
import sys

import keras
import numpy as np

import tf_sparse_attention as tsa

BATCH, LENGTH, VOCABULARY, STEPS = 4, 24, 16, 4
# Without biases: those of keys have no gradient but rounding, which the optimizers would make steps of.
HEADS = {"key_dim": 4, "use_bias": False}
LOCAL = {"layer": "LocalAttention", "window": 6, "position": "relative", "max_distance": 6, **HEADS}
GROUPED = {"num_key_value_heads": 2, "use_sink": True, "use_gate": True, "use_query_key_norm": True}
ROUTED = {"layer": "RoutingAttention", "num_heads": 2, "num_clusters": 2, "cluster_size": 8, **HEADS}
MESHES = ((1, 2), (1, 4), (2, 2))  # devices for the batch, devices for the model
OPTIMIZERS = {
    "adafactor": lambda: tsa.optimizers.Adafactor(0.05, beta_1=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
    "adagrad": lambda: tsa.optimizers.Adagrad(0.05),
}


def scope(batch_devices, model_devices):
    number = batch_devices * model_devices
    if number == 1:
        return contextlib.nullcontext()
    devices = keras.distribution.list_devices()[:number]
    mesh = keras.distribution.DeviceMesh((batch_devices, model_devices), ("batch", "model"), devices)
    # Two devices divide everything, so that Keras's own class does.
    kind = keras.distribution.ModelParallel if number == 2 else tsa.distribution.ModelParallel
    return kind(layout_map=tsa.distribution.layout_map(mesh), batch_dim_name="batch").scope()


def make_model(optimizer):
    """Two blocks, whose four local heads share two of keys, and of two local and two routed heads.

    Four devices do not divide the heads of keys, nor those of the second block.
    """
    attention = [[{**LOCAL, **GROUPED, "num_heads": 4}], [{**LOCAL, "num_heads": 2}, ROUTED]]
    backbone = tsa.models.Backbone(VOCABULARY, 2, 16, attention, intermediate_dim=32, activation="geglu", seed=0)
    model = tsa.models.LanguageModel(backbone)
    model.compile(OPTIMIZERS[optimizer](), tsa.models.language_model_loss())
    return model


def shards(variables):
    """Return {path: [shape, shape of the part on one device]}."""
    return {v.path: [list(v.shape), list(v.value.addressable_shards[0].data.shape)] for v in variables}


def train(devices, optimizer):
    """Train a few steps and return losses, arrays and shards."""
    rng = np.random.default_rng(0)
    targets = rng.integers(1, VOCABULARY, size=(STEPS * BATCH, LENGTH))
    inputs = np.concatenate([np.zeros_like(targets[:, :1]), targets[:, :-1]], axis=1)
    keras.utils.clear_session(free_memory=False)  # so that automatic names are the same
    keras.utils.set_random_seed(0)
    with scope(*devices):
        model = make_model(optimizer)
        record = []
        note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: record.append(logs["loss"]))
        model.fit(inputs, targets, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[note])
    variables = [*model.variables, *model.optimizer.variables]
    return record, [np.asarray(variable.value) for variable in variables], shards(variables)


def main():
    """Print {"DEVICES of the batch x of the model": [difference of losses, of variables, shards]}."""
    (optimizer,) = sys.argv[1:]
    losses, arrays, _ = train((1, 1), optimizer)
    results = {}
    for devices in MESHES:
        other_losses, other_arrays, parts = train(devices, optimizer)
        differences = [np.max(np.abs(a - b)) for a, b in zip(arrays, other_arrays, strict=True)]
        loss = np.max(np.abs(np.subtract(losses, other_losses)))
        results["{}x{}".format(*devices)] = [float(loss), float(max(differences)), parts]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
