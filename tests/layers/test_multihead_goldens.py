"""Mixed attention equals the multi-head attention of the published code, projections and state included."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.goldens import goldens_of, names_of_cases, read_case
from tests.layers.published_heads import OF_KIND, PublishedHeads
from tests.programs import differentiate

CASES = (
    "encdec_local2_cluster2",
    "local1_cluster1_cstrided1_strided1_masked",
    "local2_cluster2_full_qk",
    "local2_cluster2_masked_shareqk_rel",
    "local2_cluster2_masked_shareqk_rel_train",
    "local4_masked_len30",
)
NAMES = "var/mha/"
SIZE = 8  # channels of a head

goldens = goldens_of("routing_transformer/multihead.npz")
pytestmark = pytest.mark.filterwarnings("ignore:.*is not causal")


class Case:
    """One case: the heads of ours, and the published numbers by name."""

    def __init__(self, goldens, name):
        settings, self.arrays = read_case(goldens, name)
        self.inputs = {key: array for key, array in self.arrays.items() if key in ("x", "memory") or NAMES in key[:8]}
        state = {key.removeprefix(NAMES): array for key, array in self.inputs.items()}
        self.heads = PublishedHeads(settings, state, SIZE, (2, None, 24), across=settings["mem"] is not None)

    def run(self, x):
        """Return the output and the commitment loss, given inputs and variables by name."""
        variables = {name.removeprefix(NAMES): value for name, value in x.items()}
        return self.heads.run(variables, x["x"], x.get("memory"))


@pytest.fixture(params=first(CASES, 1))
def case(request, goldens):
    return Case(goldens, request.param)


def test_all_cases_are_compared(goldens):
    assert names_of_cases(goldens) == sorted(CASES)


def test_outputs_and_their_gradients_are_published(case):
    (output, _), gradients = differentiate(case.run, case.inputs, case.arrays["cotangent"])
    np.testing.assert_allclose(output, case.arrays["out"], atol=2e-5)
    compared = compare(gradients, case.arrays, "grad/")
    assert {"x", f"{NAMES}q/kernel", f"{NAMES}output_transform/kernel"} <= compared


def test_the_commitment_and_its_gradients_are_published(case):
    if not any(kind in ("top_k", "strided") for kind, *_ in case.heads.parts):
        assert case.arrays["loss"] == 0
        return
    (loss, _), gradients = differentiate(lambda x: case.run(x)[::-1], case.inputs, np.ones((), "float32"))
    np.testing.assert_allclose(loss, case.arrays["loss"], rtol=1e-5)
    compare(gradients, case.arrays, "grad_loss/")


def compare(gradients, arrays, prefix):
    """Compare gradients with the published ones, zero where there are none; return the names of those."""
    names = {key.removeprefix(prefix) for key in arrays if key.startswith(prefix)}
    for name, gradient in gradients.items():
        published = arrays.get(prefix + name, np.zeros(gradient.shape))
        np.testing.assert_allclose(gradient, published, atol=2e-4, err_msg=name)
    assert names <= set(gradients)
    return names


@pytest.mark.full
def test_training_moves_the_sums_as_published(goldens):
    case = Case(goldens, "local2_cluster2_masked_shareqk_rel_train")
    case.heads.parts = case.heads.parts[:1]
    case.run({name: ops.convert_to_tensor(value) for name, value in case.inputs.items()})
    published = f"after/mha/{OF_KIND['top_k']}ema_means"
    np.testing.assert_allclose(case.heads.after["sums"], case.arrays[published], rtol=1e-5, atol=1e-6)
    # The published counts mix up the heads; each head sees all tokens.
    total = 0.999 * case.arrays[f"{NAMES}{OF_KIND['top_k']}ema_count"].sum(axis=1) + 0.001 * 2 * 32
    np.testing.assert_allclose(np.sum(case.heads.after["counts"], axis=1), total, rtol=1e-5)
