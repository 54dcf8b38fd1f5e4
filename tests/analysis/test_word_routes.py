"""What words look at, compared with the weights that the layers return."""

import keras
import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.analysis import word_routes
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.ops import kmeans

LOCAL = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 6}
ROUTING = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 8, "num_clusters": 3, "cluster_size": 9}
TEXT = "a bé  def main(|):\n é a"
WORDS = ["a", "bé", "def", "main(|):", "é", "a"]
TOKENIZER = ByteTokenizer()


def make_model(attention=(LOCAL, ROUTING)):
    keras.utils.set_random_seed(1)
    return LanguageModel(Backbone(258, 2, 16, list(attention), intermediate_dim=32, seed=1))


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def found(model):
    return word_routes(model, TOKENIZER, TEXT, top_k=6)


def spans():
    """The places of each word's bytes among the inputs, of which the first is the start."""
    text, places, begin = TEXT.encode(), [], 0
    for word in WORDS:
        begin = text.index(word.encode(), begin)
        places.append(np.arange(begin, begin + len(word.encode())) + 1)
        begin = places[-1][-1]
    return places


def weights_of(model, layer):
    """The weights (N, T, T) of the routed part of a block, and the vectors it reads."""
    ids = np.array([[0, *TOKENIZER.tokenize(TEXT)]], "int32")
    x = model.backbone.embed(ids)
    for block in model.backbone.blocks[:layer]:
        x = block(x)
    block = model.backbone.blocks[layer]
    routing = block.attention.parts[1]
    x = block._attention_norm(x)
    return ops.convert_to_numpy(routing(x, use_causal_mask=True, return_attention_scores=True)[1])[0], routing, x


@pytest.mark.parametrize("layer", [0, 1])
def test_shares_are_sums_of_the_layers_own_weights(model, found, layer):
    weights, routing, x = weights_of(model, layer)
    clusters = ops.convert_to_numpy(kmeans.nearest(kmeans.normalize(routing.project(x)[0]), routing.centroids))[0]
    routes = [route for route in found.routes if route.layer == layer]
    assert len(routes) == 2 * len(WORDS)
    for route in routes:
        head, own = route.head - 1, spans()[route.word]  # head 0 is local
        assert route.cluster == clusters[head, own[-1]]
        wanted = {
            other: weights[head][np.ix_(own, places)].sum() / len(own)
            for other, places in enumerate(spans())
            if other != route.word
        }
        seen = dict(route.seen)
        np.testing.assert_allclose([seen.get(other, 0) for other in wanted], list(wanted.values()), atol=2e-4)
        assert all(other < route.word for other in seen)  # it is causal
        assert list(seen.values()) == sorted(seen.values(), reverse=True)


def test_words_and_the_table(found):
    assert found.words == WORDS
    assert len(str(found).splitlines()) == 2 + 4 * len(WORDS) and "main(\\|):" in str(found)
    assert len(word_routes(make_model(), TOKENIZER, "x y z", top_k=1).routes[-1].seen) <= 1


def test_the_picture_shows_every_word(found):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = found.draw(layer=1, head=2, line_length=12)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == WORDS
    assert len({text.get_position()[1] for text in axes.texts}) > 1
    pyplot.close(figure)
    with pytest.raises(ValueError, match="`layer`"):
        found.draw(layer=0, head=0)


def test_what_has_no_routes_is_refused(model):
    with pytest.raises(ValueError, match="`text`"):
        word_routes(model, TOKENIZER, " \n")
    with pytest.raises(ValueError, match="`model`"):
        word_routes(make_model([LOCAL]), TOKENIZER, "some words")
