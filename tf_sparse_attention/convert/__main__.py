"""Converts trained weights from elsewhere: python -m tf_sparse_attention.convert --help"""

import sys

from tf_sparse_attention.convert.command import main

if __name__ == "__main__":
    sys.exit(main())
