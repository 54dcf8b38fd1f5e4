"""Tables of compiled programs for TPU: `benchmarks.tpu_check`, `tpu_roofline` and `tpu_sharded`."""

import argparse

import pytest

from benchmarks import tpu_compile, tpu_kernels, tpu_roofline, tpu_sharded, tpu_tensorflow

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


def test_an_unknown_name_is_an_error_with_the_known_names(capsys):
    parser = argparse.ArgumentParser()
    tpu_compile.check_names(parser, ["one"], {"one": 1, "two": 2})
    with pytest.raises(SystemExit, match="2"):
        tpu_compile.check_names(parser, ["one", "three"], {"one": 1, "two": 2})
    assert "names must be in one; two. Received: three." in capsys.readouterr().err


def test_the_least_time_is_that_of_arithmetic_or_memory_whichever_is_longer():
    moving = tpu_compile.Compiled({}, 0, 0, 0, 819e6, 1e9, 0, 1)
    assert moving.least_milliseconds("v5e") == pytest.approx(1)
    assert moving._replace(flops=2 * 918e9).least_milliseconds("v6e") == pytest.approx(2)


def test_a_row_of_the_table_says_how_much_more_than_the_least_is_moved():
    row = {"layer": tpu_roofline.DENSE, "by": "operations", "pass": "forward", "moved_bytes": 3e6, "least_bytes": 2e6}
    row |= {"flops": 5e9, "v5e": 4.0, "v6e": 2.0, "ops": {"gather": 1, "sort": 0}}
    ours = row | {"layer": "LocalAttention", "by": "kernel", "moved_bytes": 2e6, "v5e": 1.0}
    assert tpu_roofline.table_of([row, ours]).splitlines()[2:] == [
        "| dense | operations | forward | 3 | 1.5 | 5 | 4.00 | 2.00 | 1.00 | 1 | 0 |",
        "| LocalAttention | kernel | forward | 2 | 1.0 | 5 | 1.00 | 2.00 | 0.25 | 1 | 0 |",
    ]


def test_copies_of_assigned_variables_are_left_out_of_a_program():
    text = "  %1 = mhlo.copy %0 : tensor<2xf32>\n  %2 = mhlo.copy %1 : tensor<2xf32>\n  %12 = stablehlo.add %1, %2 : t"
    assert tpu_tensorflow.without_copies(text) == "  %12 = stablehlo.add %0, %0 : t"


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
