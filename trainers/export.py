"""Exports a trained model as a SavedModel: python -m trainers.export --workdir=runs/demo

It is written to WORKDIR/saved_model, with a README.md on its use, and is then loaded in a process that cannot import
the library and tried: a language model scores a line, a translator writes one. A run trained on JAX is exported with
TensorFlow just the same.
"""

import os

from absl import flags, logging

from trainers.shared import console

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run to export.")
WEIGHT_DTYPE = flags.DEFINE_enum("weight_dtype", None, ["int8"], "int8: large weights in 8 bits.")
JIT_COMPILE = flags.DEFINE_bool("jit_compile", True, "Whether generation is compiled; not for servers without XLA.")


def main() -> None:
    from trainers.tasks import registry

    task = registry.load_task(WORKDIR.value)  # type: ignore[arg-type]  # required
    result = task.export(WORKDIR.value, JIT_COMPILE.value, WEIGHT_DTYPE.value)
    logging.info("Written to %s.", result["path"])
    print(f"loaded in a process without the library, {result['proof']}", flush=True)


def run() -> None:
    """Runs the program."""
    flags.mark_flag_as_required("workdir")
    # SavedModels are TensorFlow's, whatever backend the run was trained with; Keras reads this when it is imported.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    console.run(__name__, main)


if __name__ == "__main__":
    run()
