"""Kernels on JAX against plain operations, and the calls that use them."""

import json
import shutil

import pytest

from tests.draws import first

CODE = (
    "import json\nfrom tests.patterns.fused_jax import compare\nprint(json.dumps([compare(*each) for each in {cases}]))"
)
KERNELS = ("mosaic", "triton")
# Names of `fused_jax.OTHERS`, without float16, which Triton supports, and without the layer that is not causal.
OTHERS = ("alibi", "list", "table", "small groups", "cluster in blocks", "chunks", "separate")
# Number of forward kernels of each of `fused_jax.LAYERS`. None: several, depending on the length.
RUNS = {
    "window": 1,
    "rotary": 1,
    "blocks": 1,
    "window of successors": 1,
    "window of queries": 1,
    "nearest": 1,
    "successors": 1,
    "dense": 1,
    "strided": 2,
    "merged strides": 2,
    "hashed in rounds": 3,
    "hashed, each once": 3,
    "window and cluster": 2,
    "span": 1,
    "span from nothing": 1,
    "persistent": 2,
    "keys of their own": 1,
    "window and separate": 2,
    "best of clusters": 1,
    "image": 1,
    "near of cluster": 1,
    "fixed": None,
    "grouped": 1,
    "grouped successors": 1,
    "grouped and persistent": 2,
    "grouped clusters": 1,
    "selected": 2,
    "grouped and selected": 1,
    "capped nearest": 1,
    "side by side": 2,
}


def compared(run_jax, *cases):
    """Return the results of `fused_jax.compare` for several cases."""
    return json.loads(run_jax(CODE.format(cases=cases)).splitlines()[-1])


def check(found, ran=1):
    """Assert the number of kernels of each case, and that outputs and gradients equal those of plain operations."""
    for kernels, output, gradient in found:
        assert kernels == ran or (ran is None and kernels > 1)
        assert output < 3e-6
        assert gradient < 3e-6


@pytest.mark.parametrize("kernel", first(KERNELS, 1))
def test_a_kernel_on_jax_attends_to_the_pairs_of_a_mask_function(run_jax, kernel):
    code = (
        "from tests.patterns.fused_jax import compare_dense\nprint([compare_dense(window, {!r}) for window in (20,)])"
    )
    assert max(json.loads(run_jax(code.format(kernel)))) < 2e-6


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", RUNS)
def test_every_layer_by_a_kernel_on_jax(run_jax, name, kernel):
    cases = [(name, seed, length, True, kernel) for seed, length in enumerate((300, 600, 1030, 257))]
    check(compared(run_jax, *cases, (name, 5, 300, True, kernel)), ran=RUNS[name])


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
def test_masks_without_a_pair_or_without_a_condition_by_a_kernel_on_jax(run_jax, kernel):
    check(compared(run_jax, ("alone", 0, 300, False, kernel), ("no condition", 0, 512, False, kernel)))


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["union", "union of queries"])
def test_unions_by_one_kernel_on_jax(run_jax, name, kernel):
    cases = [(name, *more, kernel) for more in ((0, 1700, True), (1, 1690, True), (1, 2100, False))]
    check(compared(run_jax, *cases))
    # Plain operations compute first tokens of documents, and windows without the tokens that these show.
    check(compared(run_jax, (name, 2, 1700, True, kernel)), ran=int(name == "union"))


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
def test_exports_of_jax_with_kernels_run_on_a_cpu(run_jax, kernel, tmp_path):
    code = f"from tests.patterns.fused_jax import exported\nprint(exported({kernel!r}, {str(tmp_path)!r}))"
    assert float(run_jax(code).splitlines()[-1]) < 1e-5


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_on_jax_without_a_causal_mask(run_jax, kernel):
    names = ("window", "blocks", "window of queries", "span", "keys of their own", "best of clusters", "image")
    check(compared(run_jax, *((name, seed, 300, False, kernel) for seed in range(4) for name in names)))


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
def test_plain_operations_on_jax_compute_layers_that_no_kernel_supports(run_jax, kernel):
    cases = [(name, 0, 300, True, kernel) for name in OTHERS] + [("window", 0, 255, True, kernel)]
    cases += [("global", 1, 300, False, kernel)] + [("float16", 0, 300, True, kernel)] * (kernel == "mosaic")
    assert compared(run_jax, *cases) == [[0, 0, 0]] * len(cases)


@pytest.mark.full
def test_plain_operations_on_jax_compute_calls_that_no_kernel_supports(run_jax):
    printed = run_jax("from tests.patterns.fused_jax import count_others\nprint(count_others())")
    assert json.loads(printed.splitlines()[-1]) == [1, 0, 0, 0, 2, 0, 0, 0, 0]


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "name", ["window", "window of successors", "window of queries", "successors", "span", "persistent"]
)
def test_gaps_of_masked_keys_by_a_kernel_on_jax(run_jax, name, kernel):
    check(compared(run_jax, (name, 4, 300, True, kernel), (name, 5, 300, True, kernel)), RUNS[name])


@pytest.mark.full
def test_every_layer_of_jax_compiles_for_a_gpu(run_jax):
    names = [*RUNS, "union"]
    code = f"import json\nfrom tests.patterns.fused_gpu import lower\nprint(json.dumps([lower(x) for x in {names}]))"
    found = dict(zip(names, json.loads(run_jax(code).splitlines()[-1]), strict=True))
    assert found.pop("fixed") % 3 == 0
    assert found == {name: 3 * RUNS.get(name, 1) for name in found}  # forward, and two of the gradient


@pytest.mark.full
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs a GPU of NVIDIA, with JAX for it")
@pytest.mark.parametrize("name", [*RUNS, "union"])
def test_every_layer_by_a_kernel_on_a_gpu_of_jax(run_python, name):
    cases = [(name, seed, 1001, dtype) for seed, dtype in ((0, "bfloat16"), (3, "float16"), (5, "bfloat16"))]
    if name == "union":
        cases = [(name, 0, 1700, "bfloat16")]
    code = (
        f"import json\nfrom tests.patterns.fused_gpu import compare\nprint(json.dumps([compare(*x) for x in {cases}]))"
    )
    for found in json.loads(run_python(code, KERAS_BACKEND="jax", JAX_PLATFORMS="cuda").splitlines()[-1]):
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
