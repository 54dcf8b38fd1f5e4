"""Attention layers depend on no later tokens and no padding, unless they declare it."""

import numpy as np
import pytest
from keras import ops

from tests.cases import CASES, every_layer
from tests.contracts import SIZE, assert_close, built, gradients, normal, to_numpy
from tf_sparse_attention.analysis import CausalityError, assert_causal, causality_report
from tf_sparse_attention.layers.attention.attention_checks import can_be_causal

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning"),
    pytest.mark.filterwarnings("ignore:`sequence_length` should be at least:UserWarning"),  # for an image
]
AUDIT = {"sequence_length": 24, "hidden_dim": SIZE, "num_cuts": 4}


def causal_selection(layer):
    return layer.pattern is None or layer.pattern.causal_selection


def with_scores(layer):
    """A function of a sequence that returns, for each position, the output and its row of attention weights."""

    def call(x, training=False):
        output, weights = layer(x, use_causal_mask=True, return_attention_scores=True, training=training)
        return [output, ops.transpose(weights, (0, 2, 1, 3))]

    return call


@every_layer(by_default=("global_window_relative", "improved_clustered"), can_be_causal=False)
def test_a_layer_that_cannot_mask_later_tokens_refuses_a_causal_call(case):
    layer = built(case)
    assert not can_be_causal(layer)
    with pytest.raises(ValueError, match="`use_causal_mask` must be False"):
        layer(normal(2, 13, SIZE), use_causal_mask=True)


# By default groups of tokens and members of clusters. Decoding equals the full pass for all kinds, which only causal
# layers do.
@every_layer(by_default=("lsh", "top_k_separate"), can_be_causal=True)
def test_no_output_or_score_depends_on_later_tokens_unless_declared(case):
    layer = built(case)
    assert can_be_causal(layer)
    if layer.pattern.causal_selection:
        assert_causal(with_scores(layer), **AUDIT)
    else:
        with pytest.raises(CausalityError):
            assert_causal(with_scores(layer), **AUDIT, gradients=False)


def test_only_the_published_selections_declare_that_they_are_not_causal():
    declared = {name for name, case in CASES.items() if not causal_selection(case.make())}
    ahead = ("top_k_", "lsh_chunks", "strided_clusters", "hash_buckets")
    assert declared == {"top_k", *(name for name in CASES if name.startswith(ahead))}


@every_layer(by_default=("local_window",), can_be_causal=True)
def test_later_tokens_get_no_gradient_with_dropout(case):
    layer = built(case, dropout=0.3)
    report = causality_report(with_scores(layer), training=True, **AUDIT)
    assert report.max_gradient == 0


@every_layer(by_default=("lsh",), can_be_causal=True)
def test_later_tokens_of_the_same_clusters_change_no_dropout(case):
    if not causal_selection(case.make()):
        pytest.skip("looks ahead, as it declares")
    x = normal(2, 24, SIZE)
    # Doubled, and without biases, a token stays in its cluster, so that every weight keeps its place and its dropout.
    later = np.concatenate([x[:, :15], 2 * x[:, 15:]], axis=1)
    outputs = []
    for inputs in (x, later):
        layer = built(case, dropout=0.5, use_bias=False, seed=3)
        outputs.append(to_numpy(layer(inputs, use_causal_mask=True, training=True)))
    assert_close(outputs[1][:, :15], outputs[0][:, :15])
    assert np.abs(outputs[1] - outputs[0]).max() > 0.1


@every_layer(by_default=("nearest",))
def test_no_gradient_reaches_padding(case):
    layer, x = built(case, dropout=0.3), normal(2, 13, SIZE)
    mask = np.arange(13) < np.array([[13], [8]])
    x[~mask] = np.nan
    of_x, *of_weights = gradients(layer, case, x, training=True, query_mask=mask)
    assert all(np.isfinite(gradient).all() for gradient in of_weights)
    # Dropout may leave out every weight that a token has a part in, but not those of many tokens.
    assert np.all(of_x[1, 8:] == 0) and np.mean(np.any(of_x[mask] != 0, axis=-1)) > 0.8
