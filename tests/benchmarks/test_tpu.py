"""Operations of compiled programs for TPU: `benchmarks.tpu_check`, `tpu_roofline` and `tpu_sharded`."""

import pytest

from benchmarks import tpu_kernels

HEADS = "bf16[8,2048,64]{2,1,0}"
CALL = (
    '  %{name}.1 = (f32[512,64]{{1,0:T(8,128)}}) custom-call(%a), custom_call_target="tpu_custom_call", '
    "operand_layout_constraints={{{steps}, {heads}, {heads}, {heads}}}, frontend_attributes={{kernel_metadata={{"
)
OF_JAX = 8 * 512 * 512  # two blocks of 512 keys for each of four of queries
OWN = 128 * 256


@pytest.mark.parametrize(
    ("name", "steps", "pairs", "products"),
    [
        ("splash_mha_fwd_residuals", "s8[1,4,2]{2,1,0}", OF_JAX, 2),
        ("splash_mha_dq_no_residuals", "s8[1,4,2]{2,1,0}", OF_JAX, 3),
        ("splash_mha_dkv_no_residuals", "s8[1,2,4]{2,1,0}", OF_JAX, 4),
        ("jvp_attend_block_128_by_256_", "s32[16,2]{1,0}, s32[16,3]{1,0}", 16 * 3 * OWN, 2),
        ("jvp_differentiate_queries_128_by_256_", "s32[16,2]{1,0}, s32[16,3]{1,0}", 16 * 3 * OWN, 3),
        ("jvp_differentiate_keys_128_by_256_", "s32[8,2]{1,0}, s32[8,3]{1,0}", 8 * 3 * OWN, 4),
    ],
)
def test_operations_of_kernels_are_those_of_their_blocks(name, steps, pairs, products):
    text = CALL.format(name=name, steps=steps, heads=HEADS)
    found = tpu_kernels.flops(f"{text}\n  %dot = f32[8,8]{{1,0}} dot(%a, %b)\n{text}")
    assert found == 2 * products * 2 * 64 * 8 * pairs
