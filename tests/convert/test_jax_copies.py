"""Copies on JAX, where two variables that share an array lose it as soon as one of them is trained."""

import pytest

TRAIN_THE_COPY = """
import keras, numpy as np
from tests.convert.swap.swap_models import ids, local, transformer
from tf_sparse_attention.convert import heal, replace_attention

dense = transformer()
sparse = replace_attention(dense, local(4), print_fn=None)
healing = heal(dense, sparse, [ids(seed=seed) for seed in range(9)], verbose=False)
sparse.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
sparse.fit(ids(), ids(), verbose=0)
print(np.isfinite(np.asarray(dense(ids()))).all() and healing.steps == 8)
"""

COMPARE_ARRAYS = """
import keras, tf_sparse_attention as tsa
from tests.convert.swap.swap_models import Classifier, ids, local, transformer
from tf_sparse_attention.analysis.causality.precision import copy_in_precision
from tf_sparse_attention.convert import replace_attention, with_causal_routing

def shared(*models):
    arrays = [{weight.value.unsafe_buffer_pointer() for weight in model.weights} for model in models]
    return len(set.intersection(*arrays))

for dense in (transformer(), Classifier()):
    dense(ids())
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
def test_a_model_outlives_the_training_of_its_sparse_copy_on_jax(run_jax):
    assert run_jax(TRAIN_THE_COPY).strip() == "True"


def test_no_copy_shares_an_array_with_its_original_on_jax(run_jax):
    assert set(run_jax(COMPARE_ARRAYS).split()) == {"0"}
