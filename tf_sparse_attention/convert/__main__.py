"""Converts trained weights from elsewhere: python -m tf_sparse_attention.convert --help"""

import sys

from tf_sparse_attention.convert.command import main


def run() -> None:
    """Runs the program."""
    sys.exit(main())


if __name__ == "__main__":
    run()
