"""Exports a trained model for others to run without the library: python -m trainers.export --workdir=runs/demo

--format=saved_model  WORKDIR/saved_model, with a README.md on its use. It is then loaded in a process that cannot
                      import the library and tried: a language model scores a line, a translator writes one.
--format=litert       WORKDIR/model.tflite, for phones: ids or features in, numbers out (docs/portable.md).
--format=onnx         WORKDIR/model_onnx, for ONNX Runtime: a file a signature, the same.

LiteRT and ONNX files have one row of the length of training and compute in float32. Their answers are compared with the
model's before they are written; a model with heads that a format has no operations for is refused in one line. Heads
without a cache are written with --signatures=score. A run trained on JAX is exported with TensorFlow just the same.
"""

import os

from absl import flags, logging

from trainers.shared import console

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run to export.")
SAVED_MODEL = "saved_model"
FORMAT = flags.DEFINE_enum("format", SAVED_MODEL, [SAVED_MODEL, "litert", "onnx"], "What is written, see above.")
SIGNATURES = flags.DEFINE_list("signatures", None, "Of LiteRT and ONNX: those to write, such as score. Default: all.")
WEIGHT_DTYPE = flags.DEFINE_enum("weight_dtype", None, ["int8"], "Of SavedModels: large weights in 8 bits.")
JIT_COMPILE = flags.DEFINE_bool(
    "jit_compile", True, "Of SavedModels: whether generation is compiled; not for servers without XLA."
)


def main() -> None:
    result = _export_saved_model() if FORMAT.value == SAVED_MODEL else _export_portable()
    logging.info("Written to %s.", result["path"])
    print(result["proof"], flush=True)


def _export_saved_model():
    from trainers.tasks import registry

    if SIGNATURES.value is not None:
        raise ValueError(f"`--signatures` must be unset for SavedModels. Received: signatures={SIGNATURES.value}.")
    task = registry.load_task(WORKDIR.value)  # type: ignore[arg-type]  # required
    result = task.export(WORKDIR.value, JIT_COMPILE.value, WEIGHT_DTYPE.value)
    return {**result, "proof": f"loaded in a process without the library, {result['proof']}"}


def _export_portable():
    from trainers.shared.portable_files import export_portable

    if WEIGHT_DTYPE.value is not None:
        raise ValueError(f"`--weight_dtype` must be unset for {FORMAT.value} files. Received: {WEIGHT_DTYPE.value}.")
    return export_portable(WORKDIR.value, FORMAT.value, SIGNATURES.value)  # type: ignore[arg-type]  # required


def run() -> None:
    """Runs the program."""
    flags.mark_flag_as_required("workdir")
    # SavedModels are TensorFlow's, whatever backend the run was trained with; Keras reads this when it is imported.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    console.run(__name__, main)


if __name__ == "__main__":
    run()
