"""Names and shapes of a checkpoint tell the model, and whatever does not fit is an error that lists it."""

import csv
import re

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.convert.t2t.cases import SCOPE, assert_same_backbone, shapes_of
from tf_sparse_attention.convert.t2t.plan import make_plan
from tf_sparse_attention.convert.t2t.reading import read_layout
from tf_sparse_attention.models.presets import preset_arguments

MAPS = {
    "name_map.tsv": ("pg19_local_cluster8k", 863, 380_330_184 + 2065 * 98_302),
    "name_map_published_hparams.tsv": ("pg19_routing_published", 894, 287_716_510 + 2065 * 98_302),
    "name_map_pg19_local8k.tsv": ("pg19_local8k", 930, 414_515_184 + 2065 * 98_302),
}


def read_names(path, vocabulary_size):
    """Return shapes and kinds of the variables of a list, by name."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    shapes = {}
    for row in rows:
        sizes = row["shape"].strip("[]").replace("V", str(vocabulary_size))
        shapes[row["name"]] = tuple(int(size) for size in sizes.split(",") if size)
    return shapes, {row["name"]: row["kind"] for row in rows}


@pytest.mark.parametrize("name", MAPS)
def test_a_plan_of_the_full_size_maps_every_variable_to_the_model_of_the_preset(name, references):
    preset, count, num_weights = MAPS[name]
    shapes, kinds = read_names(references / "t2t_checkpoints" / name, 98_302)
    assert len(shapes) == count
    plan = tsa.convert.plan_t2t_checkpoint(shapes, hparams=preset)
    read = {plan.layout.scope + source for row in plan.rows for source in row.sources}
    assert read == {name for name, kind in kinds.items() if kind in ("weight", "centroids", "ema_state")}
    weights = [shapes[name] for name, kind in kinds.items() if kind in ("weight", "centroids")]
    assert sum(np.prod(shape) for shape in weights) == num_weights
    assert sum(plan.other_variables.values()) == count - len(read)
    lines = plan.table().splitlines()
    assert len(lines) == 1 + len(plan.rows) + len(plan.unused) + len(plan.other_variables)
    assert "98302" in lines[1]
    arguments, published = plan.backbone_arguments(), preset_arguments(preset, reproduce_reference=True)
    assert_same_backbone(arguments, published)
    assert arguments["norm"]["placement"] == published["norm"]


def test_variables_of_other_models_are_errors_that_list_them(small_checkpoint, subtests):
    shapes = shapes_of(small_checkpoint)
    layer = f"{SCOPE}decoder_layer_1/self_attention/"
    wrong = shapes | {
        f"{SCOPE}decoder_layer_0/surprise": (3,),
        f"{layer}layer_postprocess/layer_norm/layer_norm_bias": (13,),
    }
    del wrong[f"{layer}self_attention/v/kernel"], wrong[f"{layer}ffn/weight2/kernel"]
    with pytest.raises(ValueError, match="exactly the variables of one Routing Transformer") as error:
        read_layout(wrong)
    for part in ("self_attention/v/kernel", "ffn/weight2/kernel", "surprise", "(13,), not (12,)"):
        assert part in str(error.value)

    def without(part):
        return {name: shape for name, shape in shapes.items() if part not in name}

    moved = {"layer_1/": "layer_2/", "layer_2/": "layer_1/"}
    swapped = {re.sub("layer_[12]/", lambda match: moved[match[0]], name): shape for name, shape in shapes.items()}
    for message, given in [
        (r"missing: decoder_layer_1/.*decoder_layer_1/self_attention/self_attention/v", without("decoder_layer_1/")),
        ("a checkpoint of a Routing Transformer", without("embeddings/embedding")),
        ("a checkpoint of a Routing Transformer", without("emb_dense/kernel")),
        ("a checkpoint of a Routing Transformer", without("layer")),
        (
            r"relative_positions_keys/embeddings of rank > 0. Received: shape \(\)",
            {name: () if "relative_positions_keys" in name else shape for name, shape in shapes.items()},
        ),
        (r"variables of other models.*resnet/conv/kernel", shapes | {"resnet/conv/kernel": (3, 3)}),
        (r"in all layers after the first.*layers \(1,\) of 3", swapped),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            make_plan(given, small_checkpoint.settings)
    for scope in ("other/", ""):
        assert read_layout({name.replace(SCOPE, scope): shape for name, shape in shapes.items()}).scope == scope
