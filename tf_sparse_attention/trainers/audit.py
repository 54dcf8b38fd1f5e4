"""Audits whether the language model of a run is causal.

Takes random tokens, changes the later ones, and asks of each earlier output whether it changed and
whether it has a gradient. The sequence has to be longer than the windows, blocks and clusters of
the model: in a shorter one they hold every token, and a leak does not show. For a model in a file
there is `python -m tf_sparse_attention.audit`, with the same report and exit statuses. The backend
is TensorFlow unless the variable KERAS_BACKEND says jax.

Examples:
  tsa-audit --workdir=runs/demo
  tsa-audit --workdir=runs/demo --sequence_length=1024 --seed=1
  tsa-audit --workdir=gs://bucket/run --sequence_length=4096
"""

import sys

from absl import flags

from tf_sparse_attention.trainers.shared import console

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run, or its address, as gs://bucket/run.")
LENGTH = flags.DEFINE_integer("sequence_length", 512, "Positions of the input.", lower_bound=2)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the inputs.")


def main() -> None:
    from tf_sparse_attention import audit
    from tf_sparse_attention.analysis import causality_report
    from tf_sparse_attention.trainers.shared import remote_run, workdir

    with remote_run.reading(WORKDIR.value) as folder:  # type: ignore[arg-type]  # required
        model = workdir.load_language_model(folder)
    report = causality_report(model, LENGTH.value, seed=SEED.value)
    print(report.to_text(), flush=True)
    sys.exit(audit.exit_status(report))


def run() -> None:
    """Runs the program."""
    flags.mark_flags_as_required(["workdir"])
    console.run(__name__, main)


if __name__ == "__main__":
    run()
