"""Tables of compiled programs for TPU: `benchmarks.tpu_check`, `tpu_roofline` and `tpu_sharded`."""

from benchmarks import tpu_kernels, tpu_sharded

HEADS = "bf16[8,2048,64]{2,1,0}"
CALL = (
    '  %splash_mha_{name}.1 = (f32[512,64]{{1,0:T(8,128)}}) custom-call(%a), custom_call_target="tpu_custom_call", '
    "operand_layout_constraints={{{steps}{{2,1,0}}, s8[1,4,2]{{2,1,0}}, {heads}, {heads}, {heads}}}, "
    "frontend_attributes={{kernel_metadata={{"
)


OWN_CALL = (
    '  %jvp_{name}.1 = (bf16[8,2048,64]{{2,1,0}}) custom-call(%a), custom_call_target="tpu_custom_call", '
    "operand_layout_constraints={{s32[{blocks},2]{{1,0}}, s32[{blocks},3]{{1,0}}, {heads}, {heads}, {heads}}}, "
    "frontend_attributes={{kernel_metadata={{"
)


def program(*kernels):
    """Return lines as those of a program whose kernels take two blocks of 512 keys for each of four of queries."""
    steps = {"fwd_residuals": "s8[1,4,2]", "dq_no_residuals": "s8[1,4,2]", "dkv_no_residuals": "s8[1,2,4]"}
    return "\n".join(CALL.format(name=name, steps=steps[name], heads=HEADS) for name in kernels)


def test_operations_of_kernels_are_those_of_their_blocks():
    steps = 2 * 64 * 8 * (8 * 512 * 512)
    for names, products in [
        (["fwd_residuals"], 2),
        (["dq_no_residuals"], 3),
        (["dkv_no_residuals"], 4),
        (["fwd_residuals", "dq_no_residuals"], 5),
    ]:
        assert tpu_kernels.flops(program(*names)) == products * steps
    for kernel, blocks, products in [
        ("attend_block", 16, 2),
        ("differentiate_queries", 16, 3),
        ("differentiate_keys", 8, 4),
    ]:
        text = OWN_CALL.format(name=f"{kernel}_128_by_256_", blocks=blocks, heads=HEADS)
        assert tpu_kernels.flops(text) == products * 2 * 64 * 8 * (blocks * 3 * 128 * 256)
    assert tpu_kernels.flops("  %dot = f32[8,8]{1,0} dot(%a, %b)") == 0


COUNTS = dict.fromkeys(tpu_sharded.COLLECTIVES, 3)


def test_a_row_of_devices_has_a_cell_for_each_column_or_too_much_memory():
    sizes = {"state_bytes": 2_000_000, "temporary_bytes": 5_000_000, "peak_bytes": 6_400_000}
    result = {"split": [4, 2], **sizes, "flops": 7e9, "collectives": COUNTS, "seconds": 8.2}
    assert tpu_sharded.row(result).split() == ["4x2", "2", "5", "6", "7", *["3"] * 5, "8"]
    result = {"split": [8, 1], "needed_gb": 20.25, "available_gb": 15.75}
    assert tpu_sharded.row(result).split(maxsplit=1) == ["8x1", "does not fit: 20.25 GB of 15.75 GB"]
    said = "Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm. Exceeded hbm capacity by 4.50G."
    assert tpu_sharded.TOO_MUCH.search(said).groups() == ("20.25", "15.75")


def test_without_the_compiler_nothing_is_compiled(monkeypatch, capsys):
    monkeypatch.setattr(tpu_sharded.tpu_compile, "missing_packages", lambda: ["libtpu"])
    assert tpu_sharded.main([]) == 3
    assert "not installed: libtpu" in capsys.readouterr().err
