"""Run directories as arguments of programs."""

import argparse


def run_folder(folder: str) -> str:
    """Check that a folder is a run directory and return it, for `type=` of argparse."""
    from tf_sparse_attention.trainers.shared import workdir  # imports TensorFlow, which `--help` does not need

    try:
        workdir.load_config(folder)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return folder
