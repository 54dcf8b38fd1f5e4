"""Products of queries and keys, with heads that share keys and without."""

import numpy as np
import pytest
from keras import ops

from tests.programs import differentiate
from tf_sparse_attention.ops.attend import query_key_products


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
