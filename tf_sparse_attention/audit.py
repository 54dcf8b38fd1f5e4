"""Audit whether a Keras model is causal, on TensorFlow, JAX or torch (environment variable KERAS_BACKEND).

MODEL is one of
  NAME.keras           a file with a model or layer; --custom names a file with the code of custom layers
  FILE.py:NAME         a model, layer or function of one argument, or a function without arguments that returns a model,
                       layer or function
  keras_hub:PRESET     a causal language model of KerasHub, by the name or the folder of its preset
  FOLDER               a run directory of `tsa-train`, or its address, as gs://bucket/run

Use a sequence that is longer than all windows, blocks and clusters of the model. Otherwise leaks can be missed.

Examples:
  tsa-audit model.keras --length 1024
  tsa-audit train.py:make_model --length 256 --training --json
  tsa-audit keras_hub:gpt2_base_en --length 512 --quick --random_weights
  tsa-audit runs/demo --length 1024

Exit status: 0: causal. 3: not causal. 2: inconclusive, or an error, which is one line on stderr.
"""

import argparse
import importlib.util
import inspect
import json
import pathlib
import re
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import keras

from tf_sparse_attention.analysis import CausalityReport, causality_report
from tf_sparse_attention.remote_files import is_remote

CAUSAL, FAILED, NOT_CAUSAL = 0, 2, 3  # not 1: Python's own status after an uncaught error
_KERAS_HUB = "keras_hub:"
_NO_FILE = "`MODEL` and `--custom` must name files that exist. Received: {}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: command-line arguments. Default: None, those of the process.

    Returns:
        The exit status.
    """
    options = _parser().parse_args(arguments)
    with warnings.catch_warnings(record=True) as caught:
        try:
            status = _audit(options, caught)
        except Exception as error:  # the audited code may raise any error
            if options.debug:
                raise
            print(f"error: {_to_one_line(error)} (--debug shows where)", file=sys.stderr)
            status = FAILED
    for warning in caught:  # without the source line
        print(f"warning: {warning.message}", file=sys.stderr)
    return status


def _audit(options, caught):
    if options.length < 2:
        raise ValueError(f"`--length` must be at least 2. Received: {options.length}.")
    target = load_target(options.model, options.custom, options.random_weights)
    report = causality_report(
        target,
        options.length,
        options.hidden_dim,
        options.batch_size,
        options.seed,
        options.atol,
        vocabulary_size=options.vocabulary_size,
        training=options.training,
        dtype=options.dtype,
        num_cuts=options.num_cuts,
        gradients=not options.no_gradients,
        quick=options.quick,
    )
    if options.json:
        messages = [str(warning.message) for warning in caught]
        print(json.dumps(json.loads(report.to_json()) | {"warnings": messages}), flush=True)
    else:
        print(report.to_text(), flush=True)
    return exit_status(report)


def exit_status(report: CausalityReport) -> int:
    """Return the exit status of an audit: `CAUSAL`, `NOT_CAUSAL`, or `FAILED` if it is inconclusive."""
    return CAUSAL if report.is_causal else NOT_CAUSAL if report.leaks else FAILED


def _to_one_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return kind + (" ".join(lines) if lines[0].endswith(":") else lines[0])  # a heading needs the list that follows


def load_target(name: str, custom: str | None = None, random_weights: bool = False) -> Any:
    """Load the target of an audit.

    Args:
        name: NAME.keras, FILE.py:NAME, keras_hub:PRESET or a run directory.
        custom: a Python file with the custom layers of NAME.keras, by registered name or class name. Default: None.
        random_weights: whether to initialize the weights of a preset at random instead of loading them. Default: False.

    Returns:
        A layer, a model or a function.

    Raises:
        ValueError: If the file, name or preset does not exist, or an argument does not apply to it.
    """
    if custom is not None and not name.endswith(".keras"):
        raise ValueError(f"`--custom` applies to NAME.keras only. Received: {name}.")
    if random_weights and not name.startswith(_KERAS_HUB):
        raise ValueError(f"`--random_weights` applies to keras_hub:PRESET only. Received: {name}.")
    if name.startswith(_KERAS_HUB):
        return _from_keras_hub(name.removeprefix(_KERAS_HUB), random_weights)
    if is_remote(name) or (pathlib.Path(name) / "config.json").is_file():
        return _from_run(name)
    file, _, attribute = name.rpartition(":")
    if file.endswith(".py"):
        return _from_code(file, attribute)
    if not name.endswith(".keras"):
        raise ValueError(
            f"`MODEL` must be NAME.keras, FILE.py:NAME, keras_hub:PRESET or a run directory. Received: {name}."
        )
    if not pathlib.Path(name).is_file():
        raise ValueError(_NO_FILE.format(name))
    classes = {} if custom is None else vars(_execute(custom))
    layers = {key: value for key, value in classes.items() if inspect.isclass(value) and issubclass(value, keras.Layer)}
    try:
        return keras.models.load_model(name, custom_objects=layers, compile=False)
    except TypeError as error:
        missing = re.search(r"Could not locate class '(\w+)'", str(error))
        if missing is None:
            raise
        raise ValueError(
            f"`--custom` must name a file that defines {missing[1]}, a layer of {name}. Received: --custom={custom}."
        ) from error


def _from_code(file, attribute):
    found = getattr(_execute(file), attribute, None)
    if not callable(found):
        raise ValueError(f"`MODEL` must name a model or function in {file}. Received: {attribute}.")
    if isinstance(found, keras.Layer):
        return found
    parameters = inspect.signature(found).parameters.values()
    needs_inputs = any(
        each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters
    )
    model = found if needs_inputs else found()
    if not callable(model):
        raise ValueError(f"`{attribute}` of {file} must return a model. Received: {type(model).__name__}.")
    return model


def _execute(file: str) -> ModuleType:
    path = pathlib.Path(file)
    if not path.is_file():
        raise ValueError(_NO_FILE.format(file))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"`MODEL` and `--custom` must name Python files. Received: {file}.")
    module = importlib.util.module_from_spec(spec)
    # As for a Python program: the file can import modules in its folder, and classes find their module.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _from_keras_hub(preset, random_weights):
    try:
        import keras_hub
    except ImportError as error:
        raise ValueError(f"`MODEL` needs KerasHub: pip install keras-hub. Received: keras_hub:{preset}.") from error
    from tf_sparse_attention.convert import register_presets  # needs more packages than the audit

    register_presets()
    return keras_hub.models.CausalLM.from_preset(preset, preprocessor=None, load_weights=not random_weights)


def _from_run(folder):
    from tf_sparse_attention.models import LanguageModel
    from tf_sparse_attention.trainers.shared import remote_run, workdir  # which need more packages than the audit

    with remote_run.reading(folder) as local:
        model = workdir.load_model(local)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"`MODEL` must be the run of a language model. Received: one of a {type(model).__name__}.")
    return model


def _parser():
    description, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="tsa-audit",
        description=description,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="see below")
    add("--length", type=int, default=512, help="positions of the input, longer than windows and clusters (512)")
    exclusive = parser.add_mutually_exclusive_group().add_argument
    exclusive("--quick", action="store_true", help="forward passes only, for large models; skips the gradient check")
    exclusive("--no_gradients", action="store_true", help="skip the gradient check")
    add("--training", action="store_true", help="audit with dropout and batch statistics")
    add("--json", action="store_true", help="print the report as JSON")
    add("--batch_size", type=int, default=2, help="sequences (2)")
    add("--hidden_dim", type=int, default=32, help="channels of vector inputs, if the model does not fix them (32)")
    add("--vocabulary_size", type=int, help="number of token ids to draw from (that of the embedding)")
    add("--num_cuts", type=int, default=8, help="positions at which the future is replaced (8)")
    add("--seed", type=int, default=0, help="seed of inputs and cuts (0)")
    add("--atol", type=float, help="maximum change that passes (depends on the dtype; 1e-5 in float32)")
    add("--dtype", choices=("float32", "float64"), help="audit a copy that computes in this dtype")
    add("--custom", metavar="FILE.py", help="file with the code of custom layers in NAME.keras")
    add(
        "--random_weights",
        action="store_true",
        help="initialize the weights of a preset at random instead of loading them",
    )
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
