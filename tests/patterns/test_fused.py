"""Kernels on JAX against plain operations, and the calls that use them."""

import json
import shutil

import pytest

from tests.draws import first

KERNELS = ("mosaic", "triton")
# Names of `fused_jax.OTHERS`, without float16, which Triton supports, and without the layer that is not causal.
OTHERS = ("alibi", "list", "table", "small groups", "cluster in blocks", "chunks", "separate")
# Number of forward kernels of each of `fused_jax.LAYERS`. None: several, depending on the length.
ONE = ("window", "rotary", "blocks", "window of successors", "window of queries", "nearest", "successors", "dense")
ONE += ("span", "span from nothing", "keys of their own", "best of clusters", "image", "near of cluster", "grouped")
ONE += ("grouped successors", "grouped clusters", "grouped and selected", "capped nearest")
TWO = ("strided", "merged strides", "window and cluster", "persistent", "window and separate", "side by side")
TWO += ("grouped and persistent", "selected")
RUNS = dict.fromkeys(ONE, 1) | dict.fromkeys(TWO, 2)
RUNS |= {"hashed in rounds": 3, "hashed, each once": 3, "fixed": None}


def by_every_kernel(test):
    """Mark a test for the full run, with each kernel."""
    return pytest.mark.full(pytest.mark.parametrize("kernel", KERNELS)(test))


def evaluate(run, expression, **environment):
    """Return the value of an expression of functions of `fused_jax` and `fused_gpu`, in a process with JAX."""
    code = f"import json\nfrom tests.patterns import fused_gpu, fused_jax\nprint(json.dumps({expression}))"
    return json.loads(run(code, **environment).splitlines()[-1])


def compared(run_jax, *cases):
    """Return the results of `fused_jax.compare` for several cases."""
    return evaluate(run_jax, f"[fused_jax.compare(*each) for each in {cases}]")


def check(found, ran=1):
    """Assert the number of kernels of each case, and that outputs and gradients equal those of plain operations."""
    for kernels, output, gradient in found:
        assert kernels == ran or (ran is None and kernels > 1)
        assert output < 3e-6
        assert gradient < 3e-6


@pytest.mark.parametrize("kernel", first(KERNELS, 1))
def test_a_kernel_on_jax_attends_to_the_pairs_of_a_mask_function(run_jax, kernel):
    assert evaluate(run_jax, f"fused_jax.compare_dense(20, {kernel!r})") < 2e-6


@by_every_kernel
@pytest.mark.parametrize("name", RUNS)
def test_every_layer_by_a_kernel_on_jax(run_jax, name, kernel):
    cases = [(name, seed, length, True, kernel) for seed, length in enumerate((300, 600, 1030, 257))]
    check(compared(run_jax, *cases, (name, 5, 300, True, kernel)), ran=RUNS[name])


@by_every_kernel
def test_masks_without_a_pair_or_without_a_condition_by_a_kernel_on_jax(run_jax, kernel):
    check(compared(run_jax, ("alone", 0, 300, False, kernel), ("no condition", 0, 512, False, kernel)))


@by_every_kernel
@pytest.mark.parametrize("name", ["union", "union of queries"])
def test_unions_by_one_kernel_on_jax(run_jax, name, kernel):
    cases = [(name, *more, kernel) for more in ((0, 1700, True), (1, 1690, True), (1, 2100, False))]
    check(compared(run_jax, *cases))
    # Plain operations compute first tokens of documents, and windows without the tokens that these show.
    check(compared(run_jax, (name, 2, 1700, True, kernel)), ran=int(name == "union"))


@by_every_kernel
def test_exports_of_jax_with_kernels_run_on_a_cpu(run_jax, kernel, tmp_path):
    assert evaluate(run_jax, f"fused_jax.exported({kernel!r}, {str(tmp_path)!r})") < 1e-5


@by_every_kernel
def test_a_kernel_on_jax_without_a_causal_mask(run_jax, kernel):
    names = ("window", "blocks", "window of queries", "span", "keys of their own", "best of clusters", "image")
    check(compared(run_jax, *((name, seed, 300, False, kernel) for seed in range(4) for name in names)))


@by_every_kernel
def test_plain_operations_on_jax_compute_layers_that_no_kernel_supports(run_jax, kernel):
    cases = [(name, 0, 300, True, kernel) for name in OTHERS] + [("window", 0, 255, True, kernel)]
    cases += [("global", 1, 300, False, kernel)] + [("float16", 0, 300, True, kernel)] * (kernel == "mosaic")
    assert compared(run_jax, *cases) == [[0, 0, 0]] * len(cases)


@pytest.mark.full
def test_plain_operations_on_jax_compute_calls_that_no_kernel_supports(run_jax):
    assert evaluate(run_jax, "fused_jax.count_others()") == [1, 0, 0, 0, 2, 0, 0, 0, 0]


@by_every_kernel
@pytest.mark.parametrize("name", ["window", *ONE[3:5], "successors", "span", "persistent"])
def test_gaps_of_masked_keys_by_a_kernel_on_jax(run_jax, name, kernel):
    check(compared(run_jax, (name, 4, 300, True, kernel), (name, 5, 300, True, kernel)), RUNS[name])


@pytest.mark.full
def test_every_layer_of_jax_compiles_for_a_gpu(run_jax):
    found = evaluate(run_jax, f"{{name: fused_gpu.lower(name) for name in {[*RUNS, 'union']}}}")
    assert found.pop("fixed") % 3 == 0
    assert found == {name: 3 * RUNS.get(name, 1) for name in found}  # forward, and two of the gradient


@pytest.mark.full
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs a GPU of NVIDIA, with JAX for it")
@pytest.mark.parametrize("name", [*RUNS, "union"])
def test_every_layer_by_a_kernel_on_a_gpu_of_jax(run_python, name):
    cases = [(name, seed, 1001, dtype) for seed, dtype in ((0, "bfloat16"), (3, "float16"), (5, "bfloat16"))]
    if name == "union":
        cases = [(name, 0, 1700, "bfloat16")]
    expression = f"[fused_gpu.compare(*each) for each in {cases}]"
    for found in evaluate(run_python, expression, KERAS_BACKEND="jax", JAX_PLATFORMS="cuda"):
        assert found["ran"] == RUNS.get(name, 1) or name == "fixed"
        assert found["repeats"]
        for kernel, plain in zip(found["kernel"], found["plain"], strict=True):
            assert kernel < 1.2 * plain


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
def test_each_device_of_jax_runs_a_kernel_on_its_rows_and_heads(run_python):
    printed = run_python(DEVICES, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    check(json.loads(printed.splitlines()[-1]))
