"""A speech recognizer: what it reads and writes, padding, saving, half precision, and its loss and error rates."""

import keras
import numpy as np
import pytest

from tests.contracts import assert_close, to_numpy
from tests.draws import first
from tf_sparse_attention.generation import ctc_greedy
from tf_sparse_attention.models import Backbone, CTCLoss, ErrorRate, PhoneErrorRate, SpeechRecognizer, WordErrorRate

V, F = 7, 5
HEADS = {"num_heads": 2, "key_dim": 8}
LOCAL = [{"layer": "LocalAttention", "window": 4, "position": "rotary", **HEADS}]
CLUSTERED = [{"layer": "ClusteredAttention", "num_clusters": 3, "top_k": 4, **HEADS}]
LENGTHS = np.array([37, 20, 5, 0])
FEATURES = np.random.default_rng(0).normal(size=(4, 37, F)).astype("float32")
MASK = np.arange(37) < LENGTHS[:, None]
INPUTS = {"features": FEATURES, "padding_mask": MASK}
LABELS = np.array([[1, 2, 2, 3], [4, 0, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]])


def make(subsampling=4, attention=LOCAL, dtype=None, embedding=None, **arguments):
    keras.utils.set_random_seed(2)
    options = {"intermediate_dim": 24, "embedding": {"dim": F if subsampling == 1 else 12, **(embedding or {})}}
    encoder = Backbone(None, 1, 16, attention, causal=False, seed=2, dtype=dtype, **options)
    return SpeechRecognizer(encoder, V, num_features=F, subsampling=subsampling, dtype=dtype, **arguments)


@pytest.mark.parametrize("subsampling", [1, 2, 4])
def test_each_frame_has_the_log_probabilities_of_its_labels(subsampling):
    model = make(subsampling)
    log_probs = to_numpy(model(FEATURES))
    assert log_probs.shape == (4, -(-37 // subsampling), V + 1) == model.compute_output_shape(FEATURES.shape)
    assert_close(np.exp(log_probs).sum(axis=-1), np.ones(log_probs.shape[:2]), 1e-5)


@pytest.mark.parametrize(("subsampling", "attention"), first([(2, CLUSTERED), (4, LOCAL), (1, CLUSTERED)], 1))
def test_padding_changes_nothing_and_is_blank(subsampling, attention):
    model = make(subsampling, attention, feature_mean=np.full(F, 0.3), feature_std=np.full(F, 2.0))
    whole = to_numpy(model(INPUTS))
    longer = np.pad(FEATURES, [(0, 0), (0, 11), (0, 0)], constant_values=7)
    found = model({"features": np.where(longer == 7, 3, longer), "padding_mask": np.pad(MASK, [(0, 0), (0, 11)])})
    assert_close(to_numpy(found)[:, : whole.shape[1]], whole, 1e-5)
    for row, length in enumerate(LENGTHS[:3]):
        count = -(-length // subsampling)
        assert_close(to_numpy(model(FEATURES[row : row + 1, :length]))[0], whole[row, :count], 1e-4)
        assert (whole[row, count:, 0] == 0).all() and (whole[row, count:, 1:] < -1e4).all()


def test_features_are_normalised_first():
    mean, std = np.arange(F), 1 + np.arange(F)
    plain, normalising = make(), make(feature_mean=mean, feature_std=std)
    assert_close(normalising(FEATURES * std + mean), to_numpy(plain(FEATURES)), 1e-5)


def test_the_loss_is_the_mean_over_labels_of_rows_that_have_fewer_than_one_each():
    log_probs = to_numpy(make()(FEATURES))
    one = float(CTCLoss()(LABELS[1:2], log_probs[1:2]))
    none = [float(CTCLoss()(LABELS[3:], log_probs[row : row + 1])) for row in (0, 2, 3)]
    labels = LABELS[[3, 1, 3, 3]]
    assert abs(float(CTCLoss()(labels, log_probs)) - (one + sum(none))) < 1e-4
    assert abs(float(CTCLoss()(labels, log_probs, np.array([0, 1, 0, 0]))) - one) < 1e-4
    assert abs(float(CTCLoss()(LABELS, log_probs, np.array([0, 1, 0, 0]))) - one) < 1e-4


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs a graph of TensorFlow")
def test_a_row_whose_labels_have_no_place_makes_the_loss_infinite_and_no_gradient_wrong():
    import tensorflow as tf

    labels = np.array([[1, 2, 2, 3], [4, 4, 4, 0], [5, 0, 0, 0], [0, 0, 0, 0]])  # 5 frames for the second, of 5

    @tf.function(autograph=False)
    def loss_and_gradient(log_probs, labels, weights):
        with tf.GradientTape() as tape:
            tape.watch(log_probs)
            loss = CTCLoss()(labels, log_probs, weights)
        return loss, tape.gradient(loss, log_probs)

    model = make()
    log_probs, fewer = (
        model({"features": FEATURES, "padding_mask": np.arange(37) < LENGTHS[:, None] - n}) for n in (0, 4)
    )
    weights, others = np.ones(4, "float32"), np.array([1, 0, 1, 1], "float32")
    assert np.isfinite(loss_and_gradient(log_probs, labels, weights)[0])
    loss, gradient = loss_and_gradient(fewer, labels, weights)
    without, expected = loss_and_gradient(fewer, labels, others)
    assert loss == np.inf and np.isfinite(without) and not gradient[1].numpy().any()
    assert_close(gradient * 8 / 5, to_numpy(expected), 1e-6)  # the mean over 8 labels, and over 5
    with pytest.raises(ValueError, match=r"need 5 frames, and 4 frames in row 1\."):
        CTCLoss()(labels, fewer)


def test_it_is_saved_and_loaded(tmp_path):
    model = make(2, CLUSTERED, feature_mean=np.zeros(F), feature_std=np.ones(F), embedding={"sinusoidal": True})
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(INPUTS), model(INPUTS))
    assert loaded.get_config() == model.get_config()


def test_attention_is_replaced_and_the_weights_stay():
    dense = [{"layer": "DenseAttention", **HEADS}]
    model = make(2, dense, feature_mean=np.full(F, 0.3))
    exact = [{"layer": "ClusteredAttention", "num_clusters": 30, "top_k": 19, **HEADS}]  # all of 19 frames
    assert_close(to_numpy(model.with_attention(exact)(FEATURES)), to_numpy(model(FEATURES)), 1e-4)
    clustered = model.with_attention(CLUSTERED)
    assert np.abs(to_numpy(clustered(FEATURES)) - to_numpy(model(FEATURES))).max() > 1e-3
    assert_close(to_numpy(clustered.with_attention(dense)(FEATURES)), to_numpy(model(FEATURES)), 0)
    with pytest.raises(ValueError, match="`attention`"):
        model.with_attention([{"layer": "LSHAttention", "num_buckets": 4, "bucket_size": 4, **HEADS}])


@pytest.mark.full
def test_half_precision_stays_finite_and_is_close():
    inputs = INPUTS | {"features": FEATURES * 30 + 200}
    arguments = {"feature_mean": np.full(F, 200), "feature_std": np.full(F, 30)}
    half, full = make(dtype="mixed_bfloat16", **arguments), make(**arguments)
    found = half(inputs)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    assert_close(to_numpy(found), to_numpy(full(inputs)), 0.2)
    assert np.isfinite(float(CTCLoss()(LABELS, found)))


def test_error_rates_stream_over_batches():
    metric, words = ErrorRate(), WordErrorRate(separator=1)
    assert float(metric.result()) == 0
    for references, hypotheses in [([[2, 3, 1, 4]], [[2, 3, 1, 5]]), ([[2, 1, 2], [4, 0, 0]], [[2, 1, 1], [0, 0, 0]])]:
        for each in (metric, words):
            each.update_state(np.array(references), np.array(hypotheses))
    assert float(metric.result()) == pytest.approx(3 / 8) and float(words.result()) == pytest.approx(3 / 5)
    metric.update_state(np.array([[1, 2]]), np.array([[3, 3]]), sample_weight=np.array([0.0]))
    assert float(metric.result()) == pytest.approx(3 / 8)
    assert WordErrorRate.from_config(words.get_config()).separator == 1
    frames = np.log(np.eye(4)[[[0, 2, 2, 0, 3]]] * 0.9 + 0.02)
    assert np.asarray(ctc_greedy(frames))[0, :2].tolist() == [2, 3]
    rate = PhoneErrorRate()
    rate.update_state(np.array([[2, 1]]), frames)
    assert float(rate.result()) == 0.5 and rate.name == "phone_error_rate"


def test_what_does_not_fit_is_refused(subtests):
    model = make()

    def recognizer(**changes):
        return lambda: SpeechRecognizer(**{"encoder": model.encoder, "vocabulary_size": V, "subsampling": 2, **changes})

    def loss(labels):
        return lambda: CTCLoss()(np.array(labels), np.zeros((1, 4, 3)))

    def rate(references, hypotheses):
        return lambda: ErrorRate().update_state(np.array(references), np.array(hypotheses))

    for message, run in [
        ("`encoder`", recognizer(encoder=Backbone(9, 1, 8, LOCAL, causal=False))),
        ("`encoder`", recognizer(encoder=Backbone(None, 1, 8, LOCAL))),
        ("`num_features` must be the number of features", recognizer(subsampling=1, num_features=3)),
        ("`factor` must be one of", recognizer(subsampling=3)),
        ("`vocabulary_size` must be", recognizer(vocabulary_size=0)),
        (r"`feature_mean` must be 12 finite .* Received: 1\.", recognizer(feature_mean=[1.0])),
        (r"`feature_std` must be positive .* a value of 0\.0\.", recognizer(feature_std=np.zeros(12))),
        ("`inputs`", lambda: model({"token_ids": FEATURES})),
        ("`features`", lambda: model(FEATURES[..., :3])),
        ("`features`", lambda: model.transcribe([FEATURES[0, :0]])),
        ("`y_true`", loss([[1, 1, 1]])),
        (r"`y_true` must be ids from 1 to 2, .* Received: 3\.", loss([[3, 0]])),
        ("`y_true` must have padding", loss([[1, 0, 2]])),
        ("`y_pred` must have padding", rate([[1, 2]], [[1, 0, 2]])),
        (r"`y_true` must be ids from 1 on, .* Received: -1\.", rate([[1, -1]], [[1, 2]])),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            run()
