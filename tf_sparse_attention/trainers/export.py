"""Export a trained model for use without the library.

--format=saved_model  WORKDIR/saved_model, with usage in README.md. It is tested in a process
                      without this library.
--format=litert       WORKDIR/model.tflite, for phones: ids or features in, numbers out.
--format=onnx         WORKDIR/model_onnx, for ONNX Runtime: ids or features in, numbers out;
                      one file per signature.

LiteRT and ONNX files compute in float32, with one row of the training length. Their outputs are
compared with the model before they are written. Unsupported attention raises an error
(docs/portable.md). Attention without a KV cache requires --signatures=score. Runs trained on JAX
are exported with TensorFlow.

Examples:
  tsa-export --workdir=runs/demo
  tsa-export --workdir=runs/demo --weight_dtype=int8 --nojit_compile
  tsa-export --workdir=runs/demo --format=onnx --signatures=score
"""

import os

from absl import flags, logging

from tf_sparse_attention.trainers.shared import command_line

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory to export.")
FORMAT = flags.DEFINE_enum("format", "saved_model", ["saved_model", "litert", "onnx"], "Format, see above.")
SIGNATURES = flags.DEFINE_list("signatures", None, "LiteRT, ONNX: signatures to write, such as score. Default: all.")
WEIGHT_DTYPE = flags.DEFINE_enum("weight_dtype", None, ["int8"], "SavedModel: dtype of large weights.")
JIT_COMPILE = flags.DEFINE_bool(
    "jit_compile", True, "SavedModel: whether XLA compiles generation. Disable for servers without XLA."
)


def main() -> None:
    """Run the command."""
    from tf_sparse_attention.trainers.shared import exporting, remote_run

    with remote_run.reading(WORKDIR.value) as folder:  # type: ignore[arg-type]  # required
        result = exporting.export(folder, FORMAT.value, SIGNATURES.value, WEIGHT_DTYPE.value, JIT_COMPILE.value)
    logging.info("Written to %s.", result["path"])
    print(result["test_result"], flush=True)


def run() -> None:
    """Run the command."""
    flags.mark_flag_as_required("workdir")
    # Keras reads this at import. SavedModels require TensorFlow, regardless of the training backend.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
