"""Adaptive attention spans of layers: loss, constraint, and the window that follows the spans."""

import time

import keras
import numpy as np
import pytest

from tests.draws import first
from tf_sparse_attention.layers import AllAttention, LocalAttention
from tf_sparse_attention.models import Model

MAKERS = {
    "all_not_itself": lambda **options: AllAttention(2, 4, window=32, num_persistent=3, mask_self=True, **options),
    "local": lambda **options: LocalAttention(2, 4, window=32, **options),
    "all": lambda **options: AllAttention(2, 4, window=32, num_persistent=3, **options),
}
every_kind = pytest.mark.parametrize("make", first(list(MAKERS.values()), 1))


def built(make, fractions=(0.1, 0.3), **options):
    layer = make(adaptive_span={"ramp": 4, "loss": 0.5, **options}, seed=0)
    layer.build((None, None, 6))
    layer.span.fraction.assign(fractions)
    return layer


def draw(batch=2, length=50):
    return np.random.default_rng(0).standard_normal((batch, length, 6)).astype("float32")


@every_kind
def test_spans_add_a_loss_only_in_training(make):
    layer = built(make)
    layer(draw(), use_causal_mask=True, training=True)
    (loss,) = layer.losses
    assert float(loss) == pytest.approx(0.5 * 32 * 0.2)
    layer(draw(), use_causal_mask=True)
    assert not layer.losses


@every_kind
def test_the_window_shrinks_and_grows_with_the_spans_and_changes_nothing(make):
    layer, x = built(make), draw()
    whole = np.asarray(layer(x, use_causal_mask=True))
    layer.span.shrink_window()
    assert layer.span.computed_window == 14  # 0.3 32 + 4 positions, in steps of 2
    np.testing.assert_allclose(layer(x, use_causal_mask=True), whole, rtol=0, atol=1e-6)
    layer.span.shrink_window(margin=5)
    assert layer.span.computed_window == 20
    layer.span.fraction.assign([0.1, 1.0])
    layer.span.shrink_window()
    assert layer.span.computed_window == 32


@every_kind
def test_keys_beyond_the_span_are_not_seen(make):
    layer, x = built(make), draw()
    seen = np.asarray(layer.attention_pattern(x, use_causal_mask=True))[0, :, -1]
    nearest = 1 if getattr(layer, "mask_self", False) else 0
    # z L + R positions from the nearest key on, those of weight 0 left out: 3.2 + 4 and 9.6 + 4.
    for head, count in zip(seen, (8, 14), strict=True):
        np.testing.assert_array_equal(np.flatnonzero(head[::-1]), np.arange(nearest, nearest + count))
    np.testing.assert_array_equal(layer.span.spans(), [8, 14])


def make_model(layer, size=6):
    inputs = keras.Input((None, size))
    model = Model(inputs, layer(inputs, use_causal_mask=True))
    model.compile(keras.optimizers.SGD(100.0), "mse", jit_compile=False)
    return model


@every_kind
def test_training_moves_spans_and_keeps_them_between_0_and_1(make):
    layer = built(make)
    model = make_model(layer)
    before = np.asarray(layer.span.fraction)
    model.fit(draw(), draw(), verbose=0)
    after = np.asarray(layer.span.fraction)
    assert np.all(after != before) and np.all((after >= 0) & (after <= 1))
    np.testing.assert_array_equal(layer.span.fraction.constraint(np.array([-0.5, 0.3, 1.5])), [0, 0.3, 1])


def test_a_model_fits_its_windows_between_phases():
    layer, x = built(MAKERS["local"]), draw()
    model = make_model(layer)
    whole = model.predict(x, verbose=0)
    assert model.shrink_windows() == 14
    np.testing.assert_allclose(model.predict(x, verbose=0), whole, rtol=0, atol=1e-6)
    model.fit(x, x, verbose=0)
    assert make_model(LocalAttention(2, 4, window=3)).shrink_windows() is None
    with pytest.raises(ValueError, match=r"`margin` must be .* Received: margin=-1"):
        model.shrink_windows(margin=-1)


def test_programs_of_other_models_around_the_layer_follow_its_window():
    layer, x = built(MAKERS["local"]), draw()
    model, other = make_model(layer), make_model(layer)
    model.shrink_windows()
    losses = [program(x, x, verbose=0) for program in (other.evaluate, model.evaluate)]
    outputs = other.predict(x, verbose=0)
    layer.span.fraction.assign([1.0, 1.0])
    model.shrink_windows()
    whole = np.asarray(layer(x, use_causal_mask=True))
    assert np.abs(whole - outputs).max() > 0.01
    np.testing.assert_allclose(other.predict(x, verbose=0), whole, rtol=0, atol=1e-6)
    expected = np.mean((whole - x) ** 2)
    assert other.evaluate(x, x, verbose=0) == pytest.approx(expected, rel=1e-5) and losses[0] == losses[1]
    other.computed_windows = [14]
    assert layer.span.computed_window == 14


@every_kind
def test_a_model_is_saved_and_loaded_with_its_spans(make, tmp_path):
    model, x = make_model(built(make)), draw()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=0, atol=1e-6)
    assert loaded.shrink_windows() == 14


def test_true_is_the_defaults():
    layer = LocalAttention(2, 4, window=32, adaptive_span=True)
    assert layer.adaptive_span == {"ramp": 32, "loss": 1e-7, "initial": 0.0}
    assert LocalAttention.from_config(layer.get_config()).adaptive_span == layer.adaptive_span


@pytest.mark.large
def test_short_spans_save_time():
    layer = LocalAttention(8, 64, window=2048, adaptive_span={"ramp": 32})
    x = np.random.default_rng(0).standard_normal((1, 8192, 64)).astype("float32")
    model = make_model(layer, 64)
    layer.span.fraction.assign(np.full(8, 0.05))
    seconds = {}
    for name in ("whole", "fitted"):
        model.predict(x, verbose=0)
        start = time.process_time()
        model.predict(x, verbose=0)
        seconds[name] = time.process_time() - start
        model.shrink_windows()
    assert seconds["fitted"] < 0.4 * seconds["whole"], seconds
