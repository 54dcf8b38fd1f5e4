"""The table of KerasHub's families in docs/converting.md: it is complete, and what it says is what is found."""

import re

import keras
import numpy as np
import pytest

pytest.importorskip("keras_hub")

from docs.tables import families as family_table
from docs.tables.hub_models import LENGTH, MODELS, families, hub, inputs_of, model_of
from tests.draws import first
from tests.pages import text_between
from tf_sparse_attention.convert import arguments_of, replace_attention
from tf_sparse_attention.layers import LocalAttention


def table_on_the_page():
    return text_between(family_table.PAGE, family_table.MARKS)


def test_every_family_of_kerashub_has_a_model_and_a_place_in_the_table():
    found = families()
    assert {label.split(" (")[0] for label in MODELS} == set(found)
    cells = "".join(line.split("|")[1] for line in table_on_the_page().splitlines()[2:])
    words = set(re.findall(r"\w+", cells))
    assert {name for names in found.values() for name in names} - words == set()


LABELS = ["CLIP", "VGG", "PaliGemma", "Bart", "Gemma3 (with a vision encoder)", "Moonshine", "PARSeq", "SigLIP"]
LABELS += ["Whisper", "ESM", "RoformerV2", "Gemma3 (both ways, EmbeddingGemma)", "T5Gemma", "Gemma4 (shared keys)"]


# By default a family whose layers have other names in each copy. In the full run also families without attention, with
# their own classes, attention to images and to other sequences, overridden attention, and keys without a bias.
@pytest.mark.parametrize("label", first(LABELS, 1))
def test_an_entry_says_what_becomes_of_its_attention(label):
    found = family_table.outcome(label)
    row = next(
        line
        for line in table_on_the_page().splitlines()
        if re.search(rf"(?<!\w){re.escape(label)}(?!\w)", line.split("|")[1])
    )
    assert [cell.strip() for cell in row.split("|")[2:-1]] == family_table.cells(found)


@pytest.mark.large
@pytest.mark.filterwarnings("ignore")
def test_the_table_of_families_is_what_is_found():
    assert table_on_the_page() == family_table.table()


# The text of T5Gemma and Moonshine is written with KerasHub's caches, which have the full length.
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:`compile:UserWarning")
@pytest.mark.parametrize("label", ["ESM", "RoformerV2", "Gemma3 (both ways, EmbeddingGemma)", "T5Gemma", "Moonshine"])
def test_sparse_encoders_are_saved_and_write_the_dense_text(label, tmp_path):
    dense = model_of(label)
    names = {"T5Gemma": "T5GemmaSeq2SeqLM", "Moonshine": "MoonshineAudioToText"}
    if label in names:
        dense = hub(names[label], backbone=dense, preprocessor=None)
    sparse = replace_attention(dense, lambda x: LocalAttention(**arguments_of(x, window=4 * LENGTH)), print_fn=None)
    sparse.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert family_table.difference(dense, sparse) < 1e-5
    assert family_table.difference(sparse, loaded) == 0
    if label in names:
        prompt = inputs_of(dense)
        prompt["decoder_padding_mask"] = (np.arange(LENGTH) < np.array([[4], [6]])).astype("int32")
        texts = []
        for model in (dense, sparse):
            model.compile(sampler="greedy", run_eagerly=True)
            texts.append(keras.ops.convert_to_numpy(model.generate(prompt, stop_token_ids=None)["decoder_token_ids"]))
        np.testing.assert_array_equal(*texts)
