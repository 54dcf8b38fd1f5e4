"""The program `trainers.convert` by another name: python -m tf_sparse_attention.convert --help"""

import runpy

if __name__ == "__main__":
    runpy.run_module("trainers.convert", run_name="__main__")
