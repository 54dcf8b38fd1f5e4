"""Random language models of random layers: calls, training, files, decoding and exports agree."""

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from keras import ops

import tf_sparse_attention as tsa
from tests.draws import draws
from tests.layers.decoded import KINDS

LENGTH = 24
TOKENIZER = tsa.data.ByteTokenizer()
CLOSE = 2e-4  # of logits up to 10, in another program or another order of sums


@st.composite
def settings(draw):
    """Draw the arguments of a backbone whose layers have caches."""
    num_layers = draw(st.integers(1, 2))
    blocks = [
        draw(st.lists(st.one_of([kind() for kind in KINDS.values()]), min_size=1, max_size=2))
        for _ in range(num_layers)
    ]
    return {
        "num_layers": num_layers,
        "attention": [[{"layer": layer.__name__, **arguments} for layer, arguments in block] for block in blocks],
        "norm": draw(st.sampled_from(["pre", "post"])),
        "embedding": draw(st.sampled_from([None, {"dim": 6}])),
        "activation": draw(st.sampled_from(["relu", "geglu"])),
        "dropout": draw(st.sampled_from([0.0, 0.1])),
    }


def compiled_model(tie_embeddings, **arguments):
    """Return a compiled language model of the bytes of texts."""
    backbone = tsa.models.Backbone(TOKENIZER.vocabulary_size, hidden_dim=16, intermediate_dim=24, seed=0, **arguments)
    model = tsa.models.LanguageModel(backbone, tie_embeddings)
    model.compile(keras.optimizers.Adam(0.01), tsa.models.language_model_loss())
    return model


def shifted(targets):
    return np.pad(targets[:, :-1], [(0, 0), (1, 0)])


@pytest.mark.full
def test_calls_training_files_decoding_and_exports_agree(tmp_path_factory):
    @draws(1, 3)
    @hypothesis.given(settings(), st.booleans())
    def check(arguments, tie_embeddings):
        keras.utils.set_random_seed(0)
        model = compiled_model(tie_embeddings, **arguments)
        targets = np.random.default_rng(0).integers(3, 200, (4, LENGTH)).astype("int32")
        model.fit(shifted(targets), targets, batch_size=2, verbose=0)
        logits = ops.convert_to_numpy(model(shifted(targets), training=False))
        assert np.isfinite(logits).all()
        np.testing.assert_allclose(model.predict(shifted(targets), verbose=0), logits, atol=CLOSE)

        folder = tmp_path_factory.mktemp("model")
        model.save(folder / "model.keras")
        loaded = keras.models.load_model(folder / "model.keras")
        np.testing.assert_array_equal(loaded(shifted(targets), training=False), logits)

        cache = model.init_cache(4, LENGTH)
        for index in range(LENGTH):
            step, cache = model.extend(shifted(targets)[:, index, None], cache, index=index)
            np.testing.assert_allclose(ops.convert_to_numpy(step)[:, 0], logits[:, index], atol=CLOSE)

        path = tsa.export.export_language_model(model, folder / "served", TOKENIZER, sequence_length=LENGTH)
        texts = TOKENIZER.detokenize_bytes(targets[0]), TOKENIZER.detokenize_bytes(targets[1])
        nats = tf.saved_model.load(path).signatures["score"](text=tf.constant(texts))["nats"]
        log_probs = tf.nn.log_softmax(logits[:2])
        expected = -tf.reduce_sum(tf.gather(log_probs, targets[:2], batch_dims=2), axis=1)
        np.testing.assert_allclose(nats, expected, rtol=1e-4)

    check()
