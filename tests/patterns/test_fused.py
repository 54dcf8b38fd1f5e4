"""Attention by a kernel on JAX: what plain operations give, and where it serves."""

import json

import pytest

CODE = (
    "import json\nfrom tests.patterns.fused_jax import compare\nprint(json.dumps([compare(*each) for each in {cases}]))"
)
NAMES = (
    "window",
    "rotary",
    "blocks",
    "window of successors",
    "window of queries",
    "nearest",
    "successors",
    "dense",
    "dilated",
    "strided",
    "side by side",
)


def compared(run_jax, *cases):
    """Returns for each of some arguments of `fused_jax.compare` what it returns."""
    return json.loads(run_jax(CODE.format(cases=cases)).splitlines()[-1])


def check(found, ran=1):
    """Asserts that so many kernels ran each time, and that outputs and gradients are those of plain operations."""
    for kernels, output, gradient in found:
        assert kernels == ran
        assert output < 3e-6
        assert gradient < 3e-6


def test_a_kernel_on_jax_attends_to_the_slots_that_a_rule_allows(run_jax):
    code = "from tests.patterns.fused_jax import compare_slots\nprint(max(map(compare_slots, (20, 2))))"
    assert float(run_jax(code)) < 2e-6


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_by_a_kernel_on_jax(run_jax, name):
    cases = [(name, seed, length) for seed, length in enumerate((300, 600, 1030, 257))]
    check(compared(run_jax, *cases), ran=1 + (name in ("side by side", "strided")))


@pytest.mark.full
def test_rules_without_a_pair_or_without_a_condition_by_a_kernel_on_jax(run_jax):
    check(compared(run_jax, ("alone", 0, 300, False), ("no condition", 0, 512, False)))


@pytest.mark.full
@pytest.mark.parametrize("name", ["union", "union of queries"])
def test_several_parts_by_one_run_of_a_kernel_on_jax(run_jax, name):
    cases = [(name, *more) for more in ((0, 1700, True), (1, 1690, True), (1, 2100, False))]
    check(compared(run_jax, *cases))


@pytest.mark.full
def test_a_kernel_on_jax_without_a_causal_mask(run_jax):
    cases = [(name, seed, 300, False) for seed in range(4) for name in ("window", "blocks", "window of queries")]
    check(compared(run_jax, *cases))


@pytest.mark.full
def test_what_no_kernel_computes_on_jax_is_left_to_plain_operations(run_jax):
    cases = [("strided in one softmax",), ("alibi",), ("separate",), ("window", 0, 255), ("global", 1, 300, False)]
    cases += [
        ("float16",),
        ("list",),
        ("table",),
        ("near of cluster",),
        ("cluster in blocks",),
    ]  # patterns of one's own
    assert compared(run_jax, *cases) == [[0, 0, 0]] * len(cases)


@pytest.mark.full
def test_calls_that_ask_for_more_are_left_to_plain_operations_on_jax(run_jax):
    printed = run_jax("from tests.patterns.fused_jax import count_others\nprint(count_others())")
    assert json.loads(printed.splitlines()[-1]) == [1, 0, 0, 0, 0, 0]


@pytest.mark.full
@pytest.mark.parametrize("name", ["window", "window of successors", "window of queries", "successors"])
def test_keys_that_are_hidden_between_others_by_a_kernel_on_jax(run_jax, name):
    for ran, output, gradient in compared(run_jax, (name, 4, 300), (name, 5, 300)):
        assert ran == 1
        assert output < 3e-6
        assert gradient < 3e-6


@pytest.mark.full
def test_a_causal_window_alone_is_left_to_cudnn_on_jax(run_jax):
    code = "import json\nfrom tests.patterns.fused_jax import compare_bands\nprint(json.dumps(compare_bands()))"
    apart, ran = json.loads(run_jax(code).splitlines()[-1])
    assert ran == [49]
    assert apart < 0.02  # one step of bfloat16


DEVICES = """
import json
import jax
jax.config.update("jax_num_cpu_devices", 4)
import keras
import tf_sparse_attention as tsa
from tests.patterns.fused_jax import compare

found = []
for sizes in ((2, 2), (2, 1), (1, 2)):
    devices = keras.distribution.list_devices()[: sizes[0] * sizes[1]]
    mesh = keras.distribution.DeviceMesh(sizes, ("batch", "model"), devices)
    parts = tsa.distribution.ModelParallel(layout_map=tsa.distribution.layout_map(mesh), auto_shard_dataset=False)
    keras.distribution.set_distribution(parts)
    found += [compare("window", 3, 300), compare("nearest", 3, 300)]
print(json.dumps(found))
"""


@pytest.mark.full
def test_devices_of_jax_run_a_kernel_each_on_its_rows_and_heads(run_python):
    printed = run_python(DEVICES, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    check(json.loads(printed.splitlines()[-1]))
