"""Adaptive attention spans of layers: loss, constraint, and the window that follows the spans."""

import keras
import numpy as np
import pytest

from tests.contracts import assert_close, normal, to_numpy
from tests.draws import first
from tf_sparse_attention.layers import AllAttention, LocalAttention
from tf_sparse_attention.models import Model

MAKERS = {
    "all_not_itself": lambda **options: AllAttention(2, 4, window=32, num_persistent=3, mask_self=True, **options),
    "local": lambda **options: LocalAttention(2, 4, window=32, **options),
    "all": lambda **options: AllAttention(2, 4, window=32, num_persistent=3, **options),
}
X = normal(2, 50, 6)
every_kind = pytest.mark.parametrize("kind", first(list(MAKERS), 1))


def built(kind, fractions=(0.1, 0.3), **options):
    layer = MAKERS[kind](adaptive_span={"ramp": 4, "loss": 0.5, **options}, seed=0)
    layer.build(X.shape)
    layer.span.fraction.assign(fractions)
    return layer


@every_kind
def test_spans_add_a_loss_only_in_training(kind):
    layer = built(kind)
    layer(X, use_causal_mask=True, training=True)
    (loss,) = layer.losses
    assert float(loss) == pytest.approx(0.5 * 32 * 0.2)
    layer(X, use_causal_mask=True)
    assert not layer.losses


@every_kind
def test_the_window_shrinks_and_grows_with_the_spans_and_changes_nothing(kind):
    layer = built(kind)
    whole = to_numpy(layer(X, use_causal_mask=True))
    layer.span.shrink_window()
    assert layer.span.computed_window == 14  # 0.3 32 + 4 positions, in steps of 2
    assert_close(layer(X, use_causal_mask=True), whole)
    layer.span.shrink_window(margin=5)
    assert layer.span.computed_window == 20
    layer.span.fraction.assign([0.1, 1.0])
    layer.span.shrink_window()
    assert layer.span.computed_window == 32


def make_model(layer):
    inputs = keras.Input((None, 6))
    model = Model(inputs, layer(inputs, use_causal_mask=True))
    model.compile(keras.optimizers.SGD(100.0), "mse", jit_compile=False)
    return model


@every_kind
def test_training_moves_spans_and_keeps_them_between_0_and_1(kind):
    layer = built(kind)
    model = make_model(layer)
    before = to_numpy(layer.span.fraction)
    model.fit(X, X, verbose=0)
    after = to_numpy(layer.span.fraction)
    assert np.all(after != before) and np.all((after >= 0) & (after <= 1))
    np.testing.assert_array_equal(layer.span.fraction.constraint(np.array([-0.5, 0.3, 1.5])), [0, 0.3, 1])


@pytest.mark.full
def test_programs_of_other_models_around_the_layer_follow_its_window_and_files_keep_it(tmp_path):
    layer = built("local")
    model, other = make_model(layer), make_model(layer)
    whole = other.predict(X, verbose=0)
    assert model.shrink_windows() == 14
    assert_close(other.predict(X, verbose=0), whole)
    model.save(tmp_path / "model.keras")
    layer.span.fraction.assign([1.0, 1.0])
    model.shrink_windows()
    wider = to_numpy(layer(X, use_causal_mask=True))
    assert np.abs(wider - whole).max() > 0.01
    assert_close(other.predict(X, verbose=0), wider)
    assert keras.saving.load_model(tmp_path / "model.keras").shrink_windows() == 14
    other.computed_windows = [14]
    assert layer.span.computed_window == 14
    assert make_model(LocalAttention(2, 4, window=3)).shrink_windows() is None
    with pytest.raises(ValueError, match=r"`margin` must be .* Received: margin=-1"):
        model.shrink_windows(margin=-1)


def test_true_is_the_defaults():
    layer = LocalAttention(2, 4, window=32, adaptive_span=True)
    assert layer.adaptive_span == {"ramp": 32, "loss": 1e-7, "initial": 0.0}
    assert LocalAttention.from_config(layer.get_config()).adaptive_span == layer.adaptive_span
