"""Audits whether a model looks ahead.

Any Keras model in a file, or the model of a run. Takes random tokens or vectors, changes the later
ones, and asks of each earlier output whether it changed and whether it has a gradient. The sequence
has to be longer than the windows, blocks and clusters of the model: in a shorter one they hold
every token, and a leak does not show. The backend is TensorFlow unless the variable KERAS_BACKEND
says jax.

Examples:
  python -m trainers.audit --model=NAME.keras
  python -m trainers.audit --model=NAME.keras --sequence_length=4096
  python -m trainers.audit --workdir=runs/demo --sequence_length=1024 --seed=1
"""

import sys

from absl import flags

from trainers.shared import console

MODEL = flags.DEFINE_string("model", None, "A file NAME.keras with a model or a layer.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run, in place of --model.")
LENGTH = flags.DEFINE_integer("sequence_length", 512, "Positions of the input.", lower_bound=2)
HIDDEN = flags.DEFINE_integer("hidden_dim", 32, "Channels of the input, where the model leaves them open.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the inputs.")


def main() -> None:
    import tf_sparse_attention as tsa
    from trainers.shared import loading, remote_run, workdir

    if WORKDIR.value is not None:
        with remote_run.reading(WORKDIR.value) as folder:
            model = workdir.load_language_model(folder)
    else:
        model = loading.load_model("--model", MODEL.value)  # type: ignore[arg-type]  # one of the two is given
    report = tsa.analysis.causality_report(model, LENGTH.value, HIDDEN.value, seed=SEED.value)
    print(report.to_text(), flush=True)
    sys.exit(0 if report.is_causal else console.LOOKS_AHEAD if report.leaks else console.WRONG_COMMAND)


def run() -> None:
    """Runs the program."""
    flags.mark_flags_as_mutual_exclusive(["model", "workdir"], required=True)
    console.run(__name__, main)


if __name__ == "__main__":
    run()
