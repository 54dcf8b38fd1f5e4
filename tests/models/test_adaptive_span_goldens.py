"""Whole language models that read three segments one after the other equal the published implementation.

The published cache is not masked while it is empty, its zero vectors take part; one table of positions serves all
layers, whose gradients are added here; and where spans leave little to see it keeps shorter caches, which changes
nothing but the weight of a constant of 1e-8.
"""

import keras
import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.goldens import goldens_of, read_case
from tests.programs import differentiate
from tf_sparse_attention.models import Backbone, LanguageModel

# The published name of a weight of ours, by its path or name, and what becomes of it.
PUBLISHED = {
    "query/kernel": ("layers.{}.attn.proj_query.weight", "to heads"),
    "key/kernel": ("layers.{}.attn.proj_key.weight", "to heads"),
    "value/kernel": ("layers.{}.attn.proj_val.weight", "to heads"),
    "attention_output/kernel": ("layers.{}.attn.proj_out.weight", "from heads"),
    "relative_key": ("key_pe", "positions"),
    "fraction": ("layers.{}.attn.attn.adaptive_span._mask.current_val", "vector"),
    "key": ("layers.{}.attn.attn.persistent_memory.key", "swap"),
    "value": ("layers.{}.attn.attn.persistent_memory.val", None),
    "inner/kernel": ("layers.{}.ff.fc1.weight", "transpose"),
    "inner/bias": ("layers.{}.ff.fc1.bias", None),
    "output/kernel": ("layers.{}.ff.fc2.weight", "transpose"),
    "output/bias": ("layers.{}.ff.fc2.bias", None),
    "attention_norm/gamma": ("layers.{}.norm1.weight", None),
    "attention_norm/beta": ("layers.{}.norm1.bias", None),
    "feed_forward_norm/gamma": ("layers.{}.norm2.weight", None),
    "feed_forward_norm/beta": ("layers.{}.norm2.bias", None),
    "to_vocabulary/kernel": ("out_emb.weight", "transpose"),
    "to_vocabulary/bias": ("out_emb.bias", None),
    "gate_kernel": ("out_emb.cluster_proj.weight", "gate kernel"),
    "gate_bias": ("out_emb.cluster_proj.bias", "gate bias"),
}
CASES = ["lm_all_adaptio_tied_span_pers", "lm_plain", "lm_span_trim", "lm_adaptio_tied", "lm_span_pers"]

goldens = goldens_of("torch_peers/all_attention.npz")


class Case:
    """The numbers of a case and our model with its weights."""

    def __init__(self, goldens, name):
        self.settings, self.arrays = read_case(goldens, name)
        self.published = {key.removeprefix("var/"): x for key, x in self.arrays.items() if key.startswith("var/")}
        self.model = self.make_model()
        self.names = {weight.path: self.source(weight) for weight in self.model.trainable_variables}
        for weight in self.model.trainable_variables:
            weight.assign(self.ours(self.names[weight.path], self.published))

    def make_model(self):
        given = self.settings
        attention = {
            "layer": "AllAttention",
            "num_heads": given["heads"],
            "key_dim": given["hidden"] // given["heads"],
            "window": given["L"],
            "num_persistent": given["pers_mem"],
            "mask_self": True,
            "position": "relative",
            "use_bias": False,
            "adaptive_span": {"ramp": given["ramp"], "loss": given["adapt_span_loss"]} if given["span"] else None,
        }
        clusters = {"cutoffs": given["cutoffs"], "div_value": given["div_val"]}
        options = {"intermediate_dim": None if given["pers_mem"] else given["inner"], "activation": "relu"}
        options |= {"norm": {"placement": "post", "epsilon": 1e-5}, "memory_length": given["L"]}
        options |= {"embedding": clusters if given["adapt_io"] else None}
        backbone = Backbone(given["vocab"], given["layers"], given["hidden"], [attention], **options)
        return LanguageModel(backbone, tie_embeddings=given["tied"])

    def source(self, weight):
        """Return the name of the published weight that is one of ours, and what becomes of it."""
        path = weight.path.split("/")
        owner, name, index = path[-2], path[-1], path[-1].rpartition("_")[2]
        if owner == "embedding":
            is_table = "embeddings" in name
            published = f"emb_layers.{index}.weight" if is_table else f"emb_projs.{index}"
            published = published if self.settings["adapt_io"] else "weight"
            return f"in_emb.{published}", None if is_table else "transpose"
        if owner == "to_vocabulary" and index.isdigit():
            return f"out_emb.out_layers.{index}.bias", None
        layer = next((part.removeprefix("block_") for part in path if part.startswith("block_")), "")
        published, change = PUBLISHED.get(f"{owner}/{name}") or PUBLISHED[name]
        return published.format(layer), change

    def ours(self, source, arrays):
        """Return a published weight, or its gradient, in the shape of ours."""
        name, change = source
        x = arrays[name]
        size, heads = self.settings["hidden"], self.settings["heads"]
        if change == "positions":  # ours has a row for each distance from -M to M
            return np.pad(x[0].T, [(0, self.settings["L"] + 1), (0, 0)])
        changes = {
            None: lambda: x,
            "transpose": lambda: x.T,
            "to heads": lambda: x.T.reshape(size, heads, -1),
            "from heads": lambda: x.T.reshape(heads, -1, size),
            "swap": lambda: np.swapaxes(x, 1, 2),
            "vector": lambda: x.reshape(-1),
            "gate kernel": lambda: x[::-1].T,  # the published gate has its columns the other way round
            "gate bias": lambda: x[::-1],
        }
        return changes[change]()

    def read(self, weights):
        """Return log-probabilities (or nats), the memory after each segment, and the loss of each, all tensors."""
        variables = self.model.trainable_variables
        given = [(variable, weights[variable.path]) for variable in variables]
        with keras.StatelessScope(given, collect_losses=True) as scope:
            memory, of_spans = self.model.init_memory(self.settings["B"], masked=False), ops.zeros(())
            outputs, memories, losses = [], [], []
            for x, y in zip(self.arrays["x"], self.arrays["y"], strict=True):
                vectors, memory = self.model.backbone.forward_with_memory(x, memory, training=True)
                nats = self.model.nats(vectors, y)
                logits = nats if self.settings["adapt_io"] else self.model.logits(vectors)
                outputs.append(logits if self.settings["adapt_io"] else ops.log_softmax(logits))
                losses.append(ops.mean(nats))
                memories.append(memory)
                of_spans = sum(scope.losses, of_spans)  # each segment is a call, which begins the list anew
        return ops.stack(outputs), ops.stack(losses), memories, of_spans

    def values(self):
        return {weight.path: weight.numpy() for weight in self.model.trainable_variables}

    def assert_gradients(self, gradients, kind):
        """Compare gradients by published weight; those of a table that several layers use are added."""
        added = {}
        for path, (name, _) in self.names.items():
            added[name] = added.get(name, 0) + np.asarray(gradients[path])
        for name, change in self.names.values():
            # Where spans lie on a corner of their ramp the published gradient is kept as PyTorch had it at the time.
            key = next(key for key in (f"{kind}_closed/{name}", f"{kind}/{name}") if key in self.arrays)
            expected = self.ours((name, change), {name: self.arrays[key]})
            rows = slice(self.settings["L"] if change == "positions" else None)
            np.testing.assert_allclose(
                added[name][rows], expected[rows], rtol=1e-3, atol=2e-5, err_msg=f"{kind} of {name}"
            )


@pytest.fixture(scope="module", autouse=True)
def double_precision():
    """In float32 a unit of a relu that is near zero is open or closed by how a processor rounds."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


@pytest.fixture(params=first(CASES, 1), scope="module")
def case(request, goldens, double_precision):
    return Case(goldens, request.param)


def test_outputs_losses_memories_and_gradients_equal_the_published_ones(case):
    read = []

    def loss(weights):
        read.append(case.read(weights))
        _, losses, _, of_spans = read[0]
        return [ops.sum(losses) + of_spans]

    total, gradients = differentiate(loss, case.values(), np.float64(1))
    case.assert_gradients(gradients, "grad_loss")
    ((outputs, losses, memories, _),) = read
    np.testing.assert_allclose(outputs, case.arrays["out"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(losses, case.arrays["losses"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(total[0], case.arrays["total_loss"], rtol=0, atol=2e-5)
    for kind, memory in (("cache_seg1", memories[0]), ("cache_end", memories[-1])):
        for layer in range(case.settings["layers"]):
            expected = case.arrays[f"{kind}/l{layer}"]
            kept = memory[f"block_{layer}"][:, -expected.shape[1] :]
            np.testing.assert_allclose(kept, expected, rtol=0, atol=2e-5)


@pytest.mark.full
def test_gradients_of_the_outputs_equal_the_published_ones(case):
    cotangent = np.float64(case.arrays["cotangent"])
    _, gradients = differentiate(lambda weights: [case.read(weights)[0]], case.values(), cotangent)
    case.assert_gradients(gradients, "grad")
