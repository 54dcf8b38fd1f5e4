"""Whole models of the published code: converted, they give its logits, losses and gradients.

The encoder of the one that has one reads vectors, whose zeros are padding.
"""

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.convert.t2t.cases import write_checkpoint
from tests.goldens import goldens_of, read_case
from tf_sparse_attention.convert.t2t.layout import HEADS
from tf_sparse_attention.models.rebuilding import weights_by_path
from tf_sparse_attention.patterns.best_of_cluster import MemberSelector

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore:.*is not causal")]
CASES = ("pg19like_skip2", "seq2seq", "allrouting_timing", "prenorm_n_da_relu")

goldens = goldens_of("routing_transformer/mini_lm.npz")


@pytest.fixture(params=CASES)
def case(request, goldens, tmp_path):
    """A case with its model, written as a checkpoint and converted: arrays, plan, model."""
    settings, arrays = read_case(goldens, request.param)
    write_checkpoint(
        tmp_path / "model.ckpt-0",
        {name.removeprefix("var/"): array for name, array in arrays.items() if name.startswith("var/")},
    )
    given = {name: value for name, value in settings.items() if not name.startswith("margin_")}
    given["num_decoder_layers"] = given.pop("layers")
    given["num_encoder_layers"] = given["num_decoder_layers"] if settings["encdec"] else 0
    return arrays, tsa.convert.plan_t2t_checkpoint(tmp_path, given), tsa.convert.from_t2t_checkpoint(tmp_path, given)


def inputs_of(arrays):
    ids = np.pad(arrays["targets"], [(0, 0), (1, 0)])[:, :-1]
    if "inputs" not in arrays:
        return ids
    vectors = arrays["inputs"]
    source = {"encoder_features": vectors, "encoder_padding_mask": (vectors != 0).any(axis=-1)}
    return {"decoder_token_ids": ids, **source}


def last_vectors_of(model, inputs):
    if not isinstance(inputs, dict):
        return model.backbone(inputs)
    return model.backbone({"token_ids": inputs["decoder_token_ids"], **model.encode(inputs)})


def test_vectors_members_of_clusters_logits_losses_and_gradients_are_published(case, monkeypatch):
    import tensorflow as tf

    (arrays, plan, model), found, select = case, [], MemberSelector.select

    def note_members(*given):
        found.append(select(*given))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(MemberSelector, "select", note_members)
        logits = model(inputs_of(arrays))
    np.testing.assert_allclose(logits, arrays["logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(last_vectors_of(model, inputs_of(arrays)), arrays["decoder_output"], atol=5e-5, rtol=0)
    assert len(found) == len({name.split("/")[0] for name in arrays if name.startswith("probe")})
    for number, members in enumerate(found):
        for side, (positions, valid) in zip("qk", members.members, strict=True):
            np.testing.assert_array_equal(positions, arrays[f"probe{number}/idx_{side}"][..., 2])
            assert valid is None
    with tf.GradientTape() as tape:
        logits = model(inputs_of(arrays), training=True)
        loss, extra = tsa.models.language_model_loss()(arrays["targets"], logits), sum(model.losses)
        total = loss + extra
    np.testing.assert_allclose(loss, arrays["loss"], rtol=1e-5)
    np.testing.assert_allclose(extra, arrays["extra_loss"], rtol=1e-4)
    weights = {path: weight for path, weight in weights_by_path(model).items() if weight.trainable}
    ours = dict(zip(weights, tape.gradient(total, [weight.value for weight in weights.values()]), strict=True))
    theirs = published_gradients(plan, {path: np.asarray(tf.convert_to_tensor(x)) for path, x in ours.items()}, arrays)
    scope = plan.layout.scope
    compared = {name.removeprefix("grad/var/") for name in arrays if name.startswith("grad/var/")}
    for name in compared:
        published = arrays[f"grad/var/{name}"]
        atol = 1e-5 + 1e-3 * np.abs(published).max()
        gradient = theirs.get(name.removeprefix(scope), np.zeros_like(published))
        np.testing.assert_allclose(gradient, published, rtol=1e-3, atol=atol, err_msg=name)
    assert {scope + name for name in theirs} <= compared


def published_gradients(plan, gradients, arrays):
    """Return gradients by the published variables, given those by the weights that were cut out and folded."""
    total, shapes, scope = {}, plan.layout.shapes, plan.layout.scope
    for row in plan.rows:
        if row.target not in gradients:
            continue
        gradient, (source, *shared) = gradients[row.target], row.sources
        parts = total.setdefault(source, np.zeros(shapes[source]))
        heads = slice(0, None) if "to " not in row.change else range_of(row.change)
        if shared:
            # o D O: the gradient of the folded matrix D O, taken to each factor.
            matrix, kernel = (arrays[f"var/{scope}{name}"] for name in (shared[0], source))
            parts[heads] += np.einsum("vw,nvd->nwd", matrix, gradient).reshape(parts[heads].shape)
            kernel = kernel[heads].reshape(gradient.shape)
            total.setdefault(shared[0], np.zeros(shapes[shared[0]]))
            total[shared[0]] += np.einsum("nwd,nvd->vw", kernel, gradient)
        elif row.change.startswith("distances"):
            np.add.at(parts, row.compute(np.arange(len(parts))), gradient)
        elif len(gradient.shape) == 3:
            scale = plan.layout.key_dim**-0.5 if "times" in row.change else 1.0
            parts[:, heads] += scale * gradient.reshape(len(gradient), -1)
        else:
            parts += gradient
    assert any(HEADS in name for name in total)
    return total


def range_of(change):
    first, last = change.split(",")[0].split()[1::2]
    return slice(int(first), int(last) + 1)
