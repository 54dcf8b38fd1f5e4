"""Keras's LiteRT export of attention layers, run in another process, which the interpreter may abort."""

import pytest
import tensorflow as tf

from tests.cases import CASES, FEW, OF_EACH_CLASS, every_layer
from tests.contracts import SIZE, built
from tests.draws import first
from tf_sparse_attention.ops.masks import MAX_AXES

RUN = """
import keras
import numpy as np
import tensorflow as tf
from tests.cases import CASES
from tests.contracts import SIZE, built, normal

case, inputs, x = CASES[{name!r}], keras.Input((13, SIZE)), normal(2, 13, SIZE)
model = keras.Model(inputs, built(case)(inputs, use_causal_mask=case.causal))
model.export({path!r}, format="litert", verbose=False)
interpreter = tf.lite.Interpreter({path!r})
(given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
try:
    interpreter.resize_tensor_input(given["index"], x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    print(float(np.abs(interpreter.get_tensor(result["index"]) - model(x)).max()))
except RuntimeError:
    print("RuntimeError")
"""


# LiteRT's interpreter refuses these: arrays of more axes than it takes, or operations that it does not have.
REFUSED = ("local_2d", "sparse_image", "sparse_heads", "sparse_routed_shared", "sparse_top_keys", "top_keys")
REFUSED += ("selected_convolved", "top_k_separate", "hash_buckets_separate")


# Each layer takes a process of its own, of some 12 seconds. test_portable.py runs files of LiteRT by default.
ALL = [pytest.param(name, marks=pytest.mark.full if name in OF_EACH_CLASS else pytest.mark.large) for name in CASES]


@pytest.mark.parametrize("name", ALL)
def test_a_layer_that_keras_exports_to_litert_gives_the_same_result(run_python, tmp_path, name):
    result = run_python(RUN.format(name=name, path=str(tmp_path / "layer.tflite"))).splitlines()[-1]
    if name.startswith(REFUSED):
        assert result == "RuntimeError" or float(result) < 1e-5
    else:
        assert float(result) < 1e-5


@every_layer(by_default=FEW)
@pytest.mark.parametrize("length", first([None, 13], 1))
@pytest.mark.filterwarnings("ignore:.*is not causal")
def test_no_logical_operation_broadcasts_more_axes_than_litert_can(case, length):
    """LiteRT converts such an operation, and its interpreter aborts the process."""
    layer = built(case)
    function = tf.function(lambda x: layer(x, use_causal_mask=case.causal))
    graph = function.get_concrete_function(tf.TensorSpec((None, length, SIZE))).graph
    for operation in graph.get_operations():
        if operation.type in ("LogicalAnd", "LogicalOr") and operation.outputs[0].shape.rank > MAX_AXES:
            first, second = (x.shape.as_list() for x in operation.inputs)
            # An axis that one mask does not know may be the one that the other knows.
            assert all(1 not in pair or pair == (1, 1) for pair in zip(first, second, strict=True)), operation.name
