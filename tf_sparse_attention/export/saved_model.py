"""SavedModels: functions with named inputs and outputs, the weights of a model, and a README.md about them."""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tf_sparse_attention import checks
from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.input_checks import check_backend, check_output_folder
from tf_sparse_attention.remote_files import SAVED_MODEL, output_folder
from tf_sparse_attention.types import Tensor
from tf_sparse_attention.version import __version__

# Names of the files and folders in an export.
WRITTEN = {SAVED_MODEL, "variables", "assets", "fingerprint.pb", "README.md"}
MIN_SIZE = 1024  # smaller weights are not quantized
INT8_MAX = 127


class Input(NamedTuple):
    """Input of a signature.

    Attributes:
        spec: `tf.TensorSpec` with the name of the input.
        meaning: one line for the README.md.
        example: Python expression of a value, for the example in the README.md, with TensorFlow as `tf`.
    """

    spec: tf.TensorSpec
    meaning: str
    example: str

    @classmethod
    def scalar(cls, name: str, dtype: tf.DType, meaning: str, example: float) -> "Input":
        """Return a scalar input."""
        return cls(tf.TensorSpec((), dtype, name), meaning, f"tf.constant({example})")

    @classmethod
    def strings(cls, name: str, meaning: str, *examples: str) -> "Input":
        """Return an input of strings (B,)."""
        return cls(tf.TensorSpec((None,), tf.string, name), meaning, f"tf.constant({json.dumps(examples)})")


class Signature(NamedTuple):
    """Function of a SavedModel, with its documentation in the README.md.

    Attributes:
        function: takes one tensor per input, by position, and returns a dictionary of tensors.
        inputs: the inputs, in the order of the arguments.
        outputs: one line for the README.md about each output, by name.
        summary: title of the signature in the README.md.
        notes: further text for the README.md, in Markdown. Default: "".
    """

    function: Callable[..., dict[str, Tensor]]
    inputs: Sequence[Input]
    outputs: Mapping[str, str]
    summary: str
    notes: str = ""


def write_saved_model(
    path: str | os.PathLike,
    model: keras.Model,
    signatures: Mapping[str, Signature],
    title: str,
    description: str = "",
    tokenizers: Sequence[Tokenizer] = (),
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Write a SavedModel of any Keras model, with a README.md that describes its signatures.

    The SavedModel needs only TensorFlow. Before it replaces an earlier export, the names of its inputs and outputs are
    checked.

    Args:
        path: folder to write, also at an address such as gs://bucket/model. The folder must be
            new, empty, or an earlier export, which is replaced. On a local disk no reader sees a half-written export.
        model: model whose weights the functions use, on the TensorFlow backend.
        signatures: dictionary from names to `Signature`s.
        title: first line of the README.md.
        description: second paragraph of the README.md, in Markdown. Default: "".
        tokenizers: tokenizers that the functions use. Default: none.
        weight_dtype: "int8" to quantize large weights to 8 bits, see `export_language_model`. Default: None.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, for a path with other files, or if `outputs` of a signature does not
            describe all outputs.

    Example:
        >>> inputs = keras.Input((None, 32))
        >>> model = keras.Model(inputs, tsa.layers.LocalAttention(2, 16, window=8)(inputs))
        >>> x = Input(tf.TensorSpec((None, None, 32), tf.float32, "x"), "vectors", "tf.zeros((1, 8, 32))")
        >>> encode = Signature(lambda x: {"y": model(x)}, [x], {"y": "vectors after attention"}, "local attention")
        >>> write_saved_model("encoder", model, {"encode": encode}, title="An encoder")
        >>> tf.saved_model.load("encoder").signatures["encode"](x=tf.zeros((1, 8, 32)))["y"]
    """
    check_backend("A SavedModel")
    checks.check_choice("weight_dtype", weight_dtype, (None, "int8"))
    folder = check_output_folder(path, WRITTEN, required=SAVED_MODEL)
    # A plain module: loading needs no class of Keras or of this library. TensorFlow saves the variables and the tables
    # of tokenizers that it finds in attributes.
    module = tf.Module(name="served")
    module.weights = weights = Weights(model, weight_dtype)
    module.tokenizers = [each.trackable for each in tokenizers if each.trackable is not None]
    functions = {name: _trace(signature, weights) for name, signature in signatures.items()}
    needs = "TensorFlow"
    if any(tokenizer.needs_tensorflow_text for tokenizer in tokenizers):
        needs = "TensorFlow and tensorflow-text (`import tensorflow_text` before loading)"
    num_bytes = sum(variable.shape.num_elements() * variable.dtype.size for variable in weights.variables)
    size = f"{num_bytes / 1e6:,.1f} MB" + (", large weights in 8 bits" if weights.integers else "")
    origin = (
        f"{model.count_params():,} parameters, {size}. Written by tf_sparse_attention {__version__}, "
        f"Keras {keras.__version__}, TensorFlow {tf.__version__}.\nTo run it, install {needs}."
    )
    with output_folder(folder, SAVED_MODEL) as temporary:
        tf.saved_model.save(module, os.fspath(temporary), functions)
        _check_written(temporary, signatures)
        sections = [_describe(name, signature, functions[name]) for name, signature in signatures.items()]
        parts = [f"# {title}", description, origin, *sections, _make_example(folder.name, signatures)]
        readme = "\n\n".join(part for part in parts if part) + "\n"
        (temporary / "README.md").write_text(readme, encoding="utf-8")
    return folder


def _trace(signature, weights):
    """Return the concrete function of a signature, which uses the weights of the SavedModel."""

    def run(*tensors):
        with weights.scope():
            return signature.function(*tensors)

    specs = [each.spec for each in signature.inputs]
    return tf.function(run, input_signature=specs, autograph=False).get_concrete_function()


def _check_written(folder, signatures):
    """Raise a `ValueError` unless the written file has the inputs and outputs of all signatures."""
    content = saved_model_pb2.SavedModel.FromString((folder / SAVED_MODEL).read_bytes())
    written = content.meta_graphs[0].signature_def
    for name, signature in signatures.items():
        for kind, given in (("inputs", [each.spec.name for each in signature.inputs]), ("outputs", signature.outputs)):
            found = sorted(getattr(written[name], kind))
            if found != sorted(given):
                raise ValueError(
                    f"`{kind}` of the signature {name!r} must describe the {kind} of its function, {found}. "
                    f"Received: {sorted(given)}."
                )


def _describe(name, signature, function):
    """Return the section of a signature in the README.md: a table of its inputs and outputs, and its notes."""
    rows = [("in", each.spec.name, each.spec, each.meaning) for each in signature.inputs]
    rows += [("out", key, function.structured_outputs[key], meaning) for key, meaning in signature.outputs.items()]
    lines = ["| | name | type | meaning |", "|---|---|---|---|"]
    lines += [f"| {kind} | `{key}` | {_type_text(tensor)} | {meaning} |" for kind, key, tensor, meaning in rows]
    return "\n".join([f"## `{name}`: {signature.summary}", "", *lines, "", signature.notes]).rstrip()


def _type_text(tensor):
    """Return dtype and shape as text. Unknown sizes are B in the first axis and T in other axes."""
    if tensor.shape.rank is None:
        return tensor.dtype.name
    sizes = [str(size or "BT"[axis > 0]) for axis, size in enumerate(tensor.shape)]
    return f"{tensor.dtype.name} ({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _make_example(name, signatures):
    """Return Python that calls every signature and prints its outputs."""
    lines = ["## Example", "", "```python", "import tensorflow as tf", ""]
    lines += [f'served = tf.saved_model.load("{name}").signatures']
    for key, signature in signatures.items():
        arguments = [f"    {each.spec.name}={each.example}," for each in signature.inputs]
        lines += ["", f'result = served["{key}"](', *arguments, ")"]
        lines += ["print({name: value.numpy() for name, value in result.items()})"]
    return "\n".join([*lines, "```"])


class Weights(tf.Module):
    """Weights of a model, and the scope in which functions use them.

    A quantized weight is an int8 variable and float32 scales, see `quantize`. Trainable weights with at least two axes
    and 1024 elements are quantized. Other weights are not: norms, biases, and centroids, which select the keys of a
    query.

    Note: Keras's `quantize("int8")` leaves adaptive embeddings and persistent vectors in float32, which makes such
    models almost twice as large.

    Args:
        model: Keras model on the TensorFlow backend.
        dtype: "int8", or None for no quantization. Default: None.
    """

    def __init__(self, model: keras.Model, dtype: str | None = None) -> None:
        super().__init__(name="weights")
        large = [variable for variable in model.trainable_variables if _is_large(variable)] if dtype == "int8" else []
        quantized = {id(variable) for variable in large}
        self.plain = [variable.value for variable in model.variables if id(variable) not in quantized]
        pairs = [quantize(keras.ops.convert_to_numpy(variable.value)) for variable in large]
        self.integers = [tf.Variable(integers, trainable=False) for integers, _ in pairs]
        self.scales = [tf.Variable(scale, trainable=False) for _, scale in pairs]
        # In a function, because TensorFlow would also save the variables of a list attribute.
        self._originals = lambda: large

    def scope(self) -> contextlib.AbstractContextManager:
        """Return a context in which the model uses these weights."""
        if not self.integers:
            return contextlib.nullcontext()
        tensors = zip(self._originals(), self.integers, self.scales, strict=True)
        mapping = [(x, tf.cast(tf.cast(integers, tf.float32) * scale, x.dtype)) for x, integers, scale in tensors]
        return keras.StatelessScope(state_mapping=mapping)


def quantize(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 values with the shape of `weight`, and float32 scales to multiply them by.

    Symmetric: the largest value is 127. Scales are shared along the first axis, the last axis, or all axes before
    the last. Of the choices with at most one scale per 16 values, it uses the choice with the smallest squared error
    relative to the mean square of each column.
    """
    weight = np.asarray(weight, "float32")
    columns = tuple(range(weight.ndim - 1))
    power = np.square(weight).mean(axis=columns, keepdims=True)
    found = []
    for axes in {(0,), (weight.ndim - 1,), columns}:
        scale = np.abs(weight).max(axis=axes, keepdims=True) / INT8_MAX
        scale = np.where(scale > 0, scale, 1).astype("float32")
        integers = np.round(weight / scale).astype("int8")
        errors = np.square(integers * scale - weight) / np.where(power > 0, power, 1)
        found.append((16 * scale.size > weight.size, float(errors.sum()), axes, integers, scale))
    *_, integers, scale = min(found, key=lambda entry: entry[:3])
    return integers, scale


def _is_large(variable):
    is_float = keras.backend.is_float_dtype(variable.dtype)
    return is_float and len(variable.shape) >= 2 and int(np.prod(variable.shape)) >= MIN_SIZE
