"""Exports a trained model for others to run without the library.

--format=saved_model  WORKDIR/saved_model, with a README.md on its use. Then loaded in a process
                      without the library, and tried: a language model scores a line.
--format=litert       WORKDIR/model.tflite, for phones: ids or features in, numbers out.
--format=onnx         WORKDIR/model_onnx, for ONNX Runtime: a file a signature, the same.

LiteRT and ONNX files have one row of the length of training and compute in float32. Their answers
are compared with the model's before they are written; a model with heads that a format has no
operations for is refused in one line (docs/portable.md). Heads without a cache are written with
--signatures=score. A run trained on JAX is exported with TensorFlow just the same.

Examples:
  tsa-export --workdir=runs/demo
  tsa-export --workdir=runs/demo --weight_dtype=int8 --nojit_compile
  tsa-export --workdir=runs/demo --format=onnx --signatures=score
"""

import os

from absl import flags, logging

from tf_sparse_attention.trainers.shared import command_line

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run to export.")
FORMAT = flags.DEFINE_enum("format", "saved_model", ["saved_model", "litert", "onnx"], "What is written, see above.")
SIGNATURES = flags.DEFINE_list("signatures", None, "Of LiteRT and ONNX: those to write, such as score. Default: all.")
WEIGHT_DTYPE = flags.DEFINE_enum("weight_dtype", None, ["int8"], "Of SavedModels: large weights in 8 bits.")
JIT_COMPILE = flags.DEFINE_bool(
    "jit_compile", True, "Of SavedModels: whether generation is compiled; not for servers without XLA."
)


def main() -> None:
    from tf_sparse_attention.trainers.shared import exporting, remote_run

    with remote_run.reading(WORKDIR.value) as folder:  # type: ignore[arg-type]  # required
        result = exporting.export(folder, FORMAT.value, SIGNATURES.value, WEIGHT_DTYPE.value, JIT_COMPILE.value)
    logging.info("Written to %s.", result["path"])
    print(result["proof"], flush=True)


def run() -> None:
    """Runs the program."""
    flags.mark_flag_as_required("workdir")
    # SavedModels are TensorFlow's, whatever backend the run was trained with; Keras reads this when it is imported.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
