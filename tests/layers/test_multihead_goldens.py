"""Mixed attention equals the multi-head attention of the published code, projections and state included.

The published kernels are cut into those of our layers while gradients are taken, so that these are by the published
variables: routed heads come first, the scale d^-1/2 of their queries goes into the kernel, and the matrix that all
heads go through into the output projection.
"""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.goldens import goldens_of, read_case
from tests.patterns.small_cases import attend_pattern
from tests.programs import differentiate
from tf_sparse_attention.layers import LocalAttention, RoutingAttention
from tf_sparse_attention.patterns import Stride

CASES = (
    "encdec_local2_cluster2",
    "local1_cluster1_cstrided1_strided1_masked",
    "local2_cluster2_full_qk",
    "local2_cluster2_masked_shareqk_rel",
    "local2_cluster2_masked_shareqk_rel_train",
    "local4_masked_len30",
)
NAMES, HEADS = "var/mha/", "attention_nd/"
SIZE = 8  # channels of a head
# Kinds of heads in the published order: the setting with their number, and the scope of their variables.
KINDS = {
    "top_k": ("sparsity_cluster_num_heads", HEADS + "cluster_attention/cluster_attention/"),
    "strided": ("sparsity_cluster_strided_num_heads", HEADS + "cluster_strided_attention/cluster_strided_attention/"),
    "strides": ("sparsity_strided_num_heads", ""),
    "local": ("local_num_heads", HEADS + "local_nd/"),
}

goldens = goldens_of("routing_transformer/multihead.npz")
pytestmark = pytest.mark.filterwarnings("ignore:.*is not causal")


class Case:
    """A layer for each kind of heads of a case, and the published numbers by name."""

    def __init__(self, goldens, name):
        self.settings, self.arrays = read_case(goldens, name)
        self.inputs = {
            key: array for key, array in self.arrays.items() if key in ("x", "memory") or key.startswith(NAMES)
        }
        self.parts, first = [], 0
        for kind, (setting, _) in KINDS.items():
            count = self.settings.get(setting, 0)
            if count:
                self.parts.append((kind, range(first, first + count), self.make_layer(kind, count)))
            first += count

    def make_layer(self, kind, count):
        """Return the built layer of a part; None for the published strides, which are no layer by themselves."""
        settings, common = self.settings, {"num_heads": count, "key_dim": SIZE, "use_bias": False}
        if settings.get("local_relative" if kind == "local" else "sparsity_cluster_relative"):
            common |= {"position": "relative", "max_distance": settings["max_relative_position"]}
        if kind == "strides":
            return None
        if kind == "local":
            layer = LocalAttention(**common, **self.blocks())
        else:
            layer = RoutingAttention(
                **common,
                num_clusters=settings["sparsity_cluster_size"],
                cluster_size=settings["sparsity_cluster_attention_window"],
                selection=kind,
                share_qk=settings["share_qk"],
                # Strided clusters weigh their commitment by 1e-4 whatever was asked for.
                commitment_loss=settings["beta"] if kind == "top_k" else 1e-4,
                ema_decay=settings["decay"],
                reproduce_reference=True,
                revive_after=0,
            )
        layer.build((2, None, 24))
        return layer

    def blocks(self):
        (block,), (flange,) = self.settings["query_shape"], self.settings["memory_flange"]
        if self.settings["mem"] is None:
            return {"block_size": block, "num_blocks_before": flange // block}
        (other,) = self.settings["memory_query_shape"]
        return {"block_size": block, "num_blocks_before": flange // other, "key_block_size": other}

    def run(self, x):
        """Return the output and the commitment loss, given inputs and variables by name."""
        variables = {name.removeprefix(NAMES): value for name, value in x.items()}
        output, loss = 0.0, 0.0
        for kind, heads, layer in self.parts:
            weights = self.weights(kind, heads, variables)
            if layer is None:
                output = output + self.strides(weights, x["x"])
                continue
            # In training for the loss alone: nothing is dropped.
            options = {"training": True, "use_causal_mask": self.settings["masked"], "return_losses": True}
            options |= {"value": x["memory"]} if "memory" in x else {}
            paths = [variable.path.split("/") for variable in layer.trainable_variables]
            trainable = [weights[parts[-2] if parts[-1] == "kernel" else parts[-1]] for parts in paths]
            result, rest, losses = layer.stateless_call(trainable, self.state(kind, layer), x["x"], **options)
            output, loss = output + result, loss + sum(losses)
            self.after = dict(zip((v.name for v in layer.non_trainable_variables), rest, strict=True))
        return output, loss

    def weights(self, kind, heads, variables):
        """Return the weights of some heads, by our names."""
        columns = slice(heads[0] * SIZE, (heads[-1] + 1) * SIZE)

        def of_heads(name):
            return ops.reshape(variables[f"{name}/kernel"][:, columns], (-1, len(heads), SIZE))

        output = ops.reshape(variables["output_transform/kernel"][columns], (len(heads), SIZE, -1))
        output = ops.einsum("vw,nwd->nvd", variables[f"{HEADS}dense/kernel"], output)
        query = of_heads("q") * (SIZE**-0.5 if kind in ("top_k", "strided") else 1.0)
        weights = {"query": query, "key": of_heads("k"), "value": of_heads("v"), "attention_output": output}
        for side in ("key", "value"):
            table = f"{KINDS[kind][1]}relative_positions_{side}s/embeddings"
            if table in variables:
                weights[f"relative_{side}"] = variables[table]
        return weights

    def state(self, kind, layer):
        """Return the values of the state of a layer: the published centroids and their averages."""
        published = {"centroids": "means", "sums": "ema_means", "counts": "ema_count"}
        arrays = {ours: self.arrays.get(f"{NAMES}{KINDS[kind][1]}{name}") for ours, name in published.items()}
        variables = layer.non_trainable_variables
        return [
            variable.value if arrays.get(variable.name) is None else arrays[variable.name] for variable in variables
        ]

    def strides(self, weights, x):
        query, key, value = (ops.einsum("btd,dnh->bnth", x, weights[side]) for side in ("query", "key", "value"))
        stride = Stride(self.settings["query_shape"][0])
        attended = attend_pattern(stride, query * SIZE**-0.5, key, value, causal=True)
        return ops.einsum("bnth,nhd->btd", attended.output, weights["attention_output"])


@pytest.fixture(params=first(CASES, 1))
def case(request, goldens):
    return Case(goldens, request.param)


def test_outputs_and_their_gradients_are_published(case):
    (output, _), gradients = differentiate(case.run, case.inputs, case.arrays["cotangent"])
    np.testing.assert_allclose(output, case.arrays["out"], atol=2e-5)
    compared = compare(gradients, case.arrays, "grad/")
    assert {"x", f"{NAMES}q/kernel", f"{NAMES}output_transform/kernel"} <= compared


def test_the_commitment_and_its_gradients_are_published(case):
    if not any(kind in ("top_k", "strided") for kind, *_ in case.parts):
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
    case.parts = case.parts[:1]
    case.run({name: ops.convert_to_tensor(value) for name, value in case.inputs.items()})
    scope = KINDS["top_k"][1]
    published = case.arrays[f"after/mha/{scope}ema_means"]
    np.testing.assert_allclose(case.after["sums"], published, rtol=1e-5, atol=1e-6)
    # The published counts mix up the heads; each head sees all tokens.
    total = 0.999 * case.arrays[f"{NAMES}{scope}ema_count"].sum(axis=1) + 0.001 * 2 * 32
    np.testing.assert_allclose(np.sum(case.after["counts"], axis=1), total, rtol=1e-5)
