"""Loss of a trained model without each head: `python -m benchmarks.quality.ablation --workdir=runs/demo`."""

import argparse

from benchmarks.quality.run_folder import run_folder

NUM_WINDOWS = 32  # of the test split, evenly spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", required=True, type=run_folder, help="run directory")
    options = parser.parse_args()

    from benchmarks.quality.held_out import open_held_out  # imports TensorFlow
    from tf_sparse_attention.analysis import head_importance

    model, _, batches = open_held_out(options.workdir, max_windows=NUM_WINDOWS)
    print(head_importance(model, batches))


if __name__ == "__main__":
    main()
