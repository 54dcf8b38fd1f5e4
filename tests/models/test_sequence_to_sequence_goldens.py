"""An encoder and a decoder of the published code, put together from our layers: logits, losses, members, gradients.

Padding is told by inputs of zeros and hidden from all attention to what is encoded, though clusters choose among it;
the encoder sees later positions, so its distances are shifted; norms come after additions.
"""

import keras
import numpy as np
import pytest
from keras import ops

from tests.goldens import goldens_of, read_case
from tests.layers.published_heads import OF_KIND, PublishedHeads
from tests.programs import differentiate
from tf_sparse_attention.layers import FeedForward
from tf_sparse_attention.models import language_model_loss
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.members import best_members

SCOPE = "body/"
NUM_HEADS = 4
WITHIN, ACROSS = "self_attention/", "enc_dec_attention/"  # attention to the same sequence and to the encoded one

goldens = goldens_of("routing_transformer/mini_lm.npz")
pytestmark = pytest.mark.filterwarnings("ignore:.*is not causal")


class Published:
    """The published model, computed by our layers from variables by the published names."""

    def __init__(self, goldens):
        self.settings, self.arrays = read_case(goldens, "seq2seq")
        self.members = []  # of queries and keys, one pair for each routed attention of a run
        self.variables = {
            name.removeprefix(f"var/{SCOPE}"): array for name, array in self.arrays.items() if name.startswith("var/")
        }

    def run(self, variables):
        """Returns the sum of both losses, which published gradients are of, the logits, last vectors and losses."""
        self.members = []
        memory, commitment, exists = self.encoded(variables)
        x, extra = self.decoded(variables, memory, exists)
        hidden = dense(variables, "final_dense_1", x)
        logits = dense(variables, "final_dense_2", hidden)
        loss = language_model_loss()(self.arrays["targets"], logits)
        return loss + commitment + extra, logits, x, loss, commitment + extra

    def encoded(self, variables):
        x, total = ops.convert_to_tensor(self.arrays["inputs"]), 0.0
        exists = ops.any(x != 0, axis=-1)
        for number in range(self.settings["layers"]):
            layer = within(variables, f"encoder_layer_{number}/self_attention/")
            attended, loss = self.attention(within(layer, WITHIN), number, x, visible=exists)
            x = self.normalized(layer, "layer_postprocess", x + attended)
            x = self.normalized(layer, "layer_postprocess_1", x + self.feed_forward(within(layer, "ffn/"), x))
            total = total + loss
        return x, total, exists

    def decoded(self, variables, memory, exists):
        ids = np.pad(self.arrays["targets"], [(0, 0), (1, 0)])[:, :-1]
        x = dense(variables, "emb_dense", ops.take(variables["embeddings/embedding"], ids, axis=0))
        total = 0.0
        for number in range(self.settings["layers"]):
            layer = within(variables, f"decoder_layer_{number}/self_attention/")
            attended, loss = self.attention(within(layer, WITHIN), number, x, masked=True)
            x = self.normalized(layer, "layer_postprocess", x + attended)
            across, further = self.attention(within(layer, ACROSS), number, x, memory, visible=exists)
            x = self.normalized(layer, "layer_postprocess_1", x + across)
            x = self.normalized(layer, "layer_postprocess_2", x + self.feed_forward(within(layer, "ffn/"), x))
            total = total + loss + further
        return x, total

    def attention(self, variables, number, x, memory=None, masked=False, visible=None):
        """Returns the output of one multi-head attention and its commitment loss."""
        across, size = memory is not None, x.shape[-1] // NUM_HEADS
        routes = number >= self.settings["sparsity_skip_first"]
        settings = self.settings | {"masked": masked, "share_qk": masked and self.settings["share_qk"]}
        settings |= {} if routes else {"sparsity_cluster_num_heads": 0, "local_num_heads": NUM_HEADS}
        settings |= {"local_relative": False, "sparsity_cluster_relative": False} if across else {}
        shift = 0 if masked else settings["memory_flange"][0]
        heads = PublishedHeads(settings, variables, size, x.shape, across=across, shift=shift)
        if routes:
            self.members.append(self.members_of(heads, variables, x, x if memory is None else memory))
        return heads.run(variables, x, memory, visible)

    def members_of(self, heads, variables, query, key):
        _, routed, layer = heads.parts[0]
        names = ("q", "q" if layer.share_qk else "k")
        columns = slice(0, len(routed) * heads.size)
        members = []
        for name, x in zip(names, (query, key), strict=True):
            x = (x @ variables[f"{name}/kernel"][:, columns]) * heads.size**-0.5
            x = ops.transpose(ops.reshape(x, (*x.shape[:2], len(routed), heads.size)), (0, 2, 1, 3))
            scores = kmeans.scores(kmeans.normalize(x), variables[f"{OF_KIND['top_k']}means"])
            members.append(best_members(scores, layer.cluster_size).positions)
        return members

    def normalized(self, variables, name, x):
        norm = keras.layers.LayerNormalization(epsilon=self.settings["norm_epsilon"])
        return called(norm, x, *(variables[f"{name}/layer_norm/layer_norm_{part}"] for part in ("scale", "bias")))

    def feed_forward(self, variables, x):
        layer = FeedForward(self.settings["filter_size"], "geglu")
        return called(layer, x, *(variables[f"weight{number}/kernel"] for number in (1, 2, 3)))


def called(layer, x, *weights):
    """Returns the result of a new layer with the given weights."""
    layer.build(x.shape)
    return layer.stateless_call(weights, [], x)[0]


def within(variables, scope):
    """Returns the variables of a scope, by their names inside it."""
    return {name.removeprefix(scope): value for name, value in variables.items() if name.startswith(scope)}


def dense(variables, name, x):
    return x @ variables[f"{name}/kernel"] + variables[f"{name}/bias"]


@pytest.fixture(scope="module")
def model(goldens):
    return Published(goldens)


@pytest.fixture(scope="module")
def results(model):
    """What a run gives, with the gradients of the sum of both losses."""
    return differentiate(model.run, model.variables, np.ones((), "float32"))


def test_logits_and_last_vectors_are_published(model, results):
    (_, logits, last, *_), _ = results
    np.testing.assert_allclose(logits, model.arrays["logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(last, model.arrays["decoder_output"], atol=5e-5, rtol=0)


def test_clusters_have_the_published_members(model, results):
    assert len(model.members) == 3
    for number, members in enumerate(model.members):
        for side, found in zip("qk", members, strict=True):
            np.testing.assert_array_equal(found, model.arrays[f"probe{number}/idx_{side}"][..., 2])


def test_losses_and_all_gradients_are_published(model, results):
    (*_, loss, extra), gradients = results
    np.testing.assert_allclose(loss, model.arrays["loss"], rtol=1e-5)
    np.testing.assert_allclose(extra, model.arrays["extra_loss"], rtol=1e-4)
    prefix = f"grad/var/{SCOPE}"
    compared = {name.removeprefix(prefix) for name in model.arrays if name.startswith(prefix)}
    for name, gradient in gradients.items():
        published = model.arrays.get(prefix + name, np.zeros(gradient.shape))
        atol = 1e-5 + 1e-3 * np.abs(published).max()
        np.testing.assert_allclose(gradient, published, rtol=1e-3, atol=atol, err_msg=name)
    assert compared <= set(gradients)
