"""A conversion holds the weights and at most one tensor of the checkpoint more."""

import numpy as np
import pytest

from tests.convert.t2t.cases import small

VOCABULARY, WIDTH = 120_000, 256  # each of the two large tensors has 123 MB
CODE = """
from benchmarks.memory import status
from tf_sparse_attention.convert import from_t2t_checkpoint
from_t2t_checkpoint({small!r}, with_optimizer=False)  # what TensorFlow itself takes once
before = status("VmHWM")
model = from_t2t_checkpoint({large!r}, with_optimizer=False)
print(status("VmHWM") - before)
"""


@pytest.mark.large
def test_no_more_than_one_tensor_is_held_besides_the_weights(tmp_path, run_python):
    checkpoint, folders = small(), [tmp_path / "small", tmp_path / "large"]
    for folder in folders:
        folder.mkdir()
    paths = [checkpoint.write(folders[0])]
    for name, values in checkpoint.tensors.items():
        ends = any(part in name for part in ("final_dense", "emb"))
        sizes = [{20: VOCABULARY, 8: WIDTH}.get(size, size) if ends else size for size in np.shape(values)]
        if sizes != list(np.shape(values)):
            checkpoint.tensors[name] = np.resize(values, sizes)
    paths.append(checkpoint.write(folders[1]))
    nbytes = [np.asarray(values).nbytes for values in checkpoint.tensors.values()]
    used = int(run_python(CODE.format(small=str(paths[0]), large=str(paths[1]))))
    print(f"{used / 1e6:.0f} MB for {sum(nbytes) / 1e6:.0f} MB, the largest tensor {max(nbytes) / 1e6:.0f} MB")
    # A quarter for the question which numbers are finite.
    assert used < sum(nbytes) + 1.25 * max(nbytes) + 40e6
