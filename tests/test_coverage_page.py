"""docs/coverage.md: all presets stand in its tables, its commands name what there is, its figures stand elsewhere."""

import importlib
import re

import pytest

import tf_sparse_attention as tsa
from tests.pages import DOCS

pytestmark = pytest.mark.pages

TEXT = (DOCS / "coverage.md").read_text(encoding="utf-8")
HEADING = "| system | preset | flags | the paper | run here | what differs |"
PRESETS = {**tsa.models.PRESETS, **tsa.models.TRANSLATION_PRESETS}


def rows():
    """Return the system, preset and flags of each row."""
    tables = [block for block in TEXT.split("\n\n") if block.startswith(HEADING)]
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.strip("|").split(" | ")][:3] for line in lines]


ROWS = rows()
TRAINED = [row for row in ROWS if row[2].startswith("`--config=")]


def names(cell):
    return re.findall(r"`([^`]*)`", cell)


def test_every_preset_of_the_library_stands_in_a_table_with_a_configuration_and_no_other():
    assert TEXT.count(HEADING) == len(re.findall("^## ", TEXT, re.MULTILINE)) == 5
    assert {name for _, preset, _ in ROWS for name in names(preset)} == set(PRESETS)
    assert {preset for _, preset, _ in ROWS if not names(preset)} == {"none"}
    assert {(bool(names(row[1])), row[2]) for row in ROWS if row not in TRAINED} == {(False, "none")}


@pytest.mark.parametrize(("system", "preset", "flags"), TRAINED, ids=[row[0] for row in TRAINED])
def test_the_flags_of_a_row_name_a_configuration_with_its_settings_and_preset(system, preset, flags):
    name, _, variant = re.match(r"`--config=([\w:]+)", flags)[1].partition(":")
    module = importlib.import_module(f"tf_sparse_attention.trainers.configs.{name}")
    config = module.get_config(*([variant] if variant else [])).lock()
    for section, setting in re.findall(r"--config\.(\w+)\.(\w+)=", flags):
        assert setting in config[section], f"{section}.{setting}"
    for name in names(preset):
        assert config.model.preset == name
        assert config.data.sequence_length == PRESETS[name]["sequence_length"]
