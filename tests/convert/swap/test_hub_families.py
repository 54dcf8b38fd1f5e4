"""The table of KerasHub's families in docs/converting.md: it is complete, and what it says is what is found."""

import re

import pytest

pytest.importorskip("keras_hub")

from docs.tables import families as family_table
from docs.tables.hub_models import MODELS, families
from tests.draws import first
from tests.pages import text_between


def table_on_the_page():
    return text_between(family_table.PAGE, family_table.MARKS)


def test_every_family_of_kerashub_has_a_model_and_a_place_in_the_table():
    found = families()
    assert {label.split(" (")[0] for label in MODELS} == set(found)
    cells = "".join(line.split("|")[1] for line in table_on_the_page().splitlines()[2:])
    words = set(re.findall(r"\w+", cells))
    assert {name for names in found.values() for name in names} - words == set()


LABELS = ["CLIP", "PaliGemma", "VGG", "Bart", "Gemma3 (with a vision encoder)", "Moonshine", "PARSeq", "SigLIP"]
LABELS += ["Whisper"]


# By default a family whose layers have other names in each copy, one with classes of its own, one without attention. In
# the full run also attention to images and to other sequences, overridden attention, and keys without a bias.
@pytest.mark.parametrize("label", first(LABELS, 3))
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
