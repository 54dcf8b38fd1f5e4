"""Fixed compositions on JAX: the same checks as on TensorFlow, in a process with that backend."""

import pytest

CODE = """
from tests.patterns.test_compositions import check, check_decoding
from tests.patterns.compositions import ON_JAX

for name, (pattern, num_heads) in ON_JAX.items():
    for causal in (True, False):
        check(pattern, num_heads, length=29, causal=causal, seed=1, masked=causal, share_qk=name == "routed")
    check_decoding(pattern, num_heads, length=7, prompt=3, seed=0, share_qk=name == "routed")
    print("equal:", name)
"""


@pytest.mark.full
def test_four_compositions_equal_dense_attention_and_decode_on_jax(run_jax):
    assert run_jax(CODE).split() == [
        word for name in ("sinks", "routed", "heads", "image") for word in ("equal:", name)
    ]
