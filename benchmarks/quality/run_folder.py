"""The folder of a run, as an argument of a program."""

import argparse


def run_folder(folder: str) -> str:
    """Return a run directory as it was given, for `type=` of argparse, which ends the program otherwise."""
    from tf_sparse_attention.trainers.shared import workdir  # imports TensorFlow, which help does without

    try:
        workdir.load_config(folder)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return folder
