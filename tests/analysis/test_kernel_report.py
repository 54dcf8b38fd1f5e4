"""Which attention kernels compute, and the reasons for plain operations."""

import json

import keras
import pytest

from tf_sparse_attention.analysis import kernel_report
from tf_sparse_attention.layers import LocalAttention, MixedAttention, RoutingAttention
from tf_sparse_attention.models import Backbone, LanguageModel

HEADS = {"num_heads": 2, "key_dim": 16}
PART = {"layer": "LocalAttention", "window": 64, **HEADS}
JAX = """
import json, keras
from tf_sparse_attention import layers, patterns
from tf_sparse_attention.analysis import kernel_report
from tf_sparse_attention.models import Backbone, LanguageModel

def report(target, shape=(1, 512, 32), **arguments):
    rows = kernel_report(target, shape, **arguments).rows
    print(json.dumps([[row.kind, row.part, row.kernel, row.reason] for row in rows]))

heads = {"num_heads": 2, "key_dim": 16}
causal = {"use_causal_mask": True}
"""


def reported(run_jax, *calls):
    """Return for each call of `report` its rows: class of the layer, part, kernel and reason."""
    printed = run_jax(JAX + "\n".join(f"report({call})" for call in calls)).splitlines()
    return [json.loads(line) for line in printed if line.startswith("[[")]


def test_without_jax_every_reason_is_the_backend():
    if keras.backend.backend() == "jax":
        pytest.skip("has kernels")
    model = LanguageModel(Backbone(258, 2, 32, [PART], intermediate_dim=64, name="text"))
    report = kernel_report(model, (1, 512), device="tpu")
    assert [row.layer for row in report.rows] == [f"text/block_{i}/attention/local_0" for i in range(2)]
    assert {row.kernel for row in report.rows} == {None}
    assert all("the JAX backend" in row.reason for row in report.rows)
    assert "| text/block_0/attention/local_0 | LocalAttention | Window | plain operations | " in str(report)


def test_parts_have_a_row_each_and_nothing_of_a_built_layer_changes():
    layer = MixedAttention(
        [LocalAttention(window=64, **HEADS), RoutingAttention(num_clusters=4, cluster_size=64, **HEADS)]
    )
    layer.build((None, None, 32))
    before = layer.get_weights()
    rows = kernel_report(layer, (1, 512, 32), training=True, use_causal_mask=True).rows
    assert [row.kind for row in rows] == ["LocalAttention", "RoutingAttention"]
    assert all((a == b).all() for a, b in zip(before, layer.get_weights(), strict=True))
    assert "compute_attention" not in vars(layer.parts[0])


def test_wrong_arguments_are_refused(subtests):
    cases = [
        (keras.layers.Dense(3), {}, "`target`"),
        ("model", {}, "`target`"),
        (LocalAttention(window=4, **HEADS), {"device": "cpu"}, "`device`"),
    ]
    for target, arguments, message in cases:
        with subtests.test(str(target)), pytest.raises(ValueError, match=message):
            kernel_report(target, (1, 8, 4), **arguments)


@pytest.mark.full
def test_jax_on_a_cpu_has_no_kernel(run_jax):
    (rows,) = reported(run_jax, "layers.LocalAttention(window=64, **heads), **causal")
    assert rows == [["LocalAttention", "Window", None, "there is no TPU or GPU; the device is cpu"]]


@pytest.mark.full
def test_kernels_of_a_tpu_on_jax_with_reasons(run_jax):
    local = "layers.LocalAttention(window=64, {} **heads), **causal, device='tpu'"
    union = "layers.SparseAttention(pattern=patterns.Window(64) | patterns.First(4), **heads), (1, 2048, 32)"
    part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 16, "window": 64}
    model = f"LanguageModel(Backbone(258, 2, 32, [{part}], intermediate_dim=64))"
    calls = {
        local.format(""): [("Window", "")],
        local.format("dropout=0.1,"): [("Window", "")],
        local.format("dropout=0.1,") + ", training=True": [("Window", "attention dropout")],
        local.format("") + ", return_attention_scores=True": [("Window", "`return_attention_scores`")],
        local.format("") + ", shape=(1, 128, 32)": [("Window", "128 positions; kernels start at 256")],
        local.format("") + ", attention_mask=keras.ops.ones((1, 512, 512), 'bool')": [("Window", "`attention_mask`")],
        "layers.DenseAttention(position='alibi', **heads), device='tpu'": [("Stride", 'position="alibi"')],
        "layers.RoutingAttention(num_clusters=4, cluster_size=64, **heads), **causal, device='tpu'": [("Nearest", "")],
        "layers.MixedAttention([layers.LocalAttention(window=64, **heads), layers.DenseAttention(position='alibi', "
        "**heads)]), device='tpu'": [("Window", ""), ("Stride", 'position="alibi"')],
        "layers.AllAttention(num_persistent=70, window=50, **heads), **causal, device='tpu'": [
            ("Window", ""),
            ("persistent vectors", ""),
        ],
        f"{union}, **causal, device='tpu'": [("Window, First", "")],
        f"{union}, **causal, device='tpu', segment_ids=keras.ops.ones((1, 2048), 'int32')": [
            ("Window", ""),
            ("First", "queries or keys; kernels start at 64"),
        ],
        f"{model}, (1, 512), device='tpu'": [("Window", "")] * 2,
        "layers.ClusteredAttention(num_clusters=4, **heads), device='tpu'": [("all", "no kernel")],
        "layers.RoutingAttention(num_clusters=4, cluster_size=20, share_qk=False, **heads), device='tpu'": [
            ("Nearest", "queries or keys; kernels start at 64")
        ],
        local.format("") + ", shape=(1, 262145, 32)": [("Window", "262,145 positions; kernels end at 262,144")],
        local.format("dtype='float16',"): [("Window", "not float16")],
    }
    for call, rows in zip(calls, reported(run_jax, *calls), strict=True):
        assert [part for _, part, *_ in rows] == [part for part, _ in calls[call]], call
        for (*_, kernel, found), (_, reason) in zip(rows, calls[call], strict=True):
            assert kernel == (None if reason else "mosaic"), call
            assert reason in found if reason else found == "", call


def test_kernels_of_a_gpu_on_jax_need_half_precision(run_jax):
    local = "layers.LocalAttention(window=64, dtype={!r}, **heads), **causal, device='gpu'"
    half, full = reported(run_jax, local.format("mixed_bfloat16"), local.format("float32"))
    assert half == [["LocalAttention", "Window", "triton", ""]]
    assert full == [["LocalAttention", "Window", None, "kernels of GPUs need bfloat16 or float16, not float32"]]
    wide = "layers.LocalAttention(2, 256, window=64, dtype='bfloat16'), **causal, device='gpu'"
    disabled = "keras.config.disable_flash_attention() or " + local.format("bfloat16")
    large = local.format("bfloat16") + ", shape=(2**14, 2**12, 32)"
    (of_wide,), (of_large,), (of_disabled,) = reported(run_jax, wide, large, disabled)
    assert "256 channels" in of_wide[-1]
    assert "2,147,483,647 elements" in of_large[-1]
    assert "flash attention is disabled" in of_disabled[-1]
