"""Matrix products of attention with leading axes of any size, including size 1, which crashes TensorFlow's `matmul`.

The latter in a process of their own: a fault there is a crash, which would take the other tests with it.
"""

import numpy as np
import pytest
from keras import ops

from tests.programs import differentiate
from tf_sparse_attention.ops.attend import query_key_products

CODE = """
import itertools
import numpy as np
from keras import ops
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.attend import attend_shared_keys
from tf_sparse_attention.ops.shapes import matmul_last_axis

rng = np.random.default_rng(0)

def draw(*shape):
    return rng.normal(size=shape).astype("float32")

def same(actual, expected):
    np.testing.assert_allclose(ops.convert_to_numpy(actual), expected, rtol=0, atol=1e-4)

for batch, heads, length in itertools.product((1, 2), (1, 3), (1, 16)):
    x, centroids, matrix = draw(batch, heads, length, 8), draw(heads, 5, 8), draw(8, 4)
    for _ in range(3):  # what is written outside its memory is not always noticed at once
        same(matmul_last_axis(x, matrix), np.einsum("bnth,hr->bntr", x, matrix))
        scores = np.einsum("bnth,nkh->bntk", x, centroids)
        same(kmeans.scores(x, centroids), scores)
        clusters = scores.argmax(-1)
        own = np.take_along_axis(centroids[None].repeat(batch, 0), clusters[..., None], 2)
        same(kmeans.commitment(x, clusters, centroids), np.mean((x - own) ** 2))
    for lead in ((heads,), (batch, heads)):
        keys, values = draw(*lead, 3, 8), draw(*lead, 3, 2)
        whole = [np.broadcast_to(a, (batch, heads, *a.shape[-2:])) for a in (keys, values)]
        weights = np.exp(np.einsum("...th,...mh->...tm", x, whole[0]))
        weights /= weights.sum(-1, keepdims=True)
        expected = np.einsum("...tm,...mh->...th", weights, whole[1])
        same(attend_shared_keys(x, keys, values).output, expected)
print("done")
"""


@pytest.mark.full
def test_products_with_leading_axes_of_any_size_are_right(run_python):
    pytest.importorskip("tensorflow")
    assert run_python(CODE, KERAS_BACKEND="tensorflow", PYTHONPATH=".").endswith("done\n")


@pytest.mark.parametrize(("heads", "number", "jit_compile"), [((), 3, False), ((2,), 1, True), ((2,), 5, False)])
def test_query_key_products_and_gradients_equal_their_definition(heads, number, jit_compile):
    tf = pytest.importorskip("tensorflow")
    draw = np.random.default_rng(0).normal
    rows, keys, cotangent = (draw(size=(2, 3, *sizes)) for sizes in ((*heads, number, 4), (6, 4), (*heads, number, 6)))
    run = tf.function(differentiate, jit_compile=jit_compile, autograph=False)
    (actual,), gradient = run(lambda x: (query_key_products(**x),), {"rows": rows, "keys": keys}, cotangent)
    shared = keys[:, :, None] if heads else keys
    of_keys = np.einsum("...ts,...th->...sh", cotangent, rows)
    found = actual, gradient["rows"], gradient["keys"]
    expected = rows @ np.swapaxes(shared, -1, -2), cotangent @ shared, of_keys.sum(2) if heads else of_keys
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(one), other, rtol=0, atol=1e-12)
