"""Copies on JAX, where two variables that share an array lose it as soon as one of them is trained."""

import pytest

COMPARE_ARRAYS = """
import keras, tf_sparse_attention as tsa
from tests.convert.swap.swap_models import local, transformer
from tf_sparse_attention.analysis.causality.precision import copy_in_precision
from tf_sparse_attention.convert import replace_attention, with_causal_routing

def shared(*models):
    arrays = [{weight.value.unsafe_buffer_pointer() for weight in model.weights} for model in models]
    return len(set.intersection(*arrays))

dense = transformer(num_layers=1)
print(shared(dense, replace_attention(dense, local(4), print_fn=None)))
part = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 2, "cluster_size": 4}
model = tsa.models.LanguageModel(tsa.models.Backbone(20, 1, 8, [{**part, "selection": "top_k"}]))
print(shared(model, with_causal_routing(model)))
attention = keras.layers.MultiHeadAttention(2, 4)
attention.build((None, None, 8), (None, None, 8))
layer = tsa.layers.LocalAttention(2, 4, window=3)
layer.copy_projections(attention)
longformer = tsa.layers.GlobalLocalAttention(2, 4, window=3, own_projections=True)
longformer.copy_projections(attention)
routing = tsa.layers.RoutingAttention(2, 4, num_clusters=2, cluster_size=4)
routing.build((None, None, 8))
routing.start_from_data(keras.random.normal((1, 8, 8)))
for one in (longformer, routing):
    own = [weight.value.unsafe_buffer_pointer() for weight in one.weights]
    print(len(own) - len(set(own)))
print(shared(attention, layer), shared(attention, longformer))
print(shared(layer, copy_in_precision(layer, "float32", lambda copy: copy.build((None, None, 8)))))
"""


@pytest.mark.full
def test_no_copy_shares_an_array_with_its_original_on_jax(run_jax):
    assert set(run_jax(COMPARE_ARRAYS).split()) == {"0"}
