"""Numbers of the published implementations, read case by case."""

import json
import pathlib

import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.ops.positions import NoPosition, Relative

OBSERVERS = []  # functions of the name of a set and a case, called when the case is read: for docs/tables/goldens.py


def goldens_of(path):
    """Return a fixture of the arrays of a file of goldens: `goldens = goldens_of("torch_peers/clustered.npz")`."""

    @pytest.fixture(scope="module")
    def goldens(references):
        with np.load(references / path) as arrays:
            yield arrays

    return goldens


def read_case(goldens, name):
    """Return the settings of a case and its arrays by name, from a file whose arrays are called "CASE/ARRAY"."""
    settings = json.loads(str(goldens["meta_json"]))[name]
    observe(pathlib.Path(goldens.fid.name), name)
    prefix = f"{name}/"
    return settings, {key.removeprefix(prefix): goldens[key] for key in goldens.files if key.startswith(prefix)}


def observe(path, case):
    """Tell the observers that a case of a file, or of a folder of files, is read."""
    observe_set(f"{'routing_transformer' if path.parent.name == 'golden' else path.parent.name}/{path.stem}", case)


def observe_set(name, case):
    """Tell the observers that a case of a set is read."""
    for observer in OBSERVERS:
        observer(name, case)


def block_by_block(x, block_shape):
    """Return images (B, N, H, W, D), whose sides the blocks divide, as sequences (B, N, H W, D) of their blocks."""
    (rows, columns), (height, width) = x.shape[2:4], block_shape
    x = x.reshape(*x.shape[:2], rows // height, height, columns // width, width, x.shape[-1])
    return x.swapaxes(3, 4).reshape(*x.shape[:2], rows * columns, x.shape[-1])


def shifted_position(x, shift):
    """Return relative positions by "key_table" and "value_table" of `x`, if any, with distances `shift` too small."""
    if "key_table" not in x:
        return NoPosition()
    rows = shifted_rows(x["key_table"].shape[0], shift, wider=shift)
    return Relative(*(ops.take(x[side + "_table"], rows, axis=0) for side in ("key", "value")))


def shifted_rows(num_rows, shift, wider=0):
    """Return the rows of a table of distances that make one with distances `shift` too small, wider at both ends."""
    return np.clip(np.arange(-wider, num_rows + wider) - shift, 0, num_rows - 1)
