"""docs/coverage.md: all presets stand in its tables, its commands name what there is, its figures stand elsewhere."""

import importlib
import pathlib
import re
from typing import NamedTuple

import pytest

import tf_sparse_attention as tsa
from tests.pages import DOCS
from tf_sparse_attention.trainers.shared import command_line

pytestmark = pytest.mark.pages

TEXT = (DOCS / "coverage.md").read_text(encoding="utf-8")
HEADING = "| system | preset | flags | the paper | run here | what differs |"
PRESETS = {**tsa.models.PRESETS, **tsa.models.TRANSLATION_PRESETS}


class Row(NamedTuple):
    system: str
    preset: str
    flags: str
    paper: str
    here: str
    differs: str


def rows():
    tables = [block for block in TEXT.split("\n\n") if block.startswith(HEADING)]
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [Row(*(cell.strip() for cell in line.strip("|").split(" | "))) for line in lines]


ROWS = rows()
TRAINED = [row for row in ROWS if row.flags.startswith("`--config=")]


def names(cell):
    return re.findall(r"`([^`]*)`", cell)


def configuration_of(row):
    """Return the configuration that the flags of a row name, as `ml_collections.config_flags` would."""
    name, _, variant = re.match(r"`--config=([\w:]+)", row.flags)[1].partition(":")
    path = pathlib.Path(command_line.find_config(name))
    assert path.is_file()
    return importlib.import_module(f"tf_sparse_attention.trainers.configs.{path.stem}").get_config(
        *([variant] if variant else [])
    )


def test_every_preset_of_the_library_stands_in_a_table_with_a_configuration_and_no_other():
    assert TEXT.count(HEADING) == len(re.findall("^## ", TEXT, re.MULTILINE)) == 5
    assert {name for row in ROWS for name in names(row.preset)} == set(PRESETS)
    assert not [row.system for row in ROWS if names(row.preset) and row not in TRAINED]
    assert {row.preset for row in ROWS if not names(row.preset)} == {"none"}
    assert {row.flags for row in ROWS if row not in TRAINED} == {"none"}


@pytest.mark.parametrize("row", TRAINED, ids=lambda row: row.system)
def test_the_flags_of_a_row_name_a_configuration_with_its_settings_and_preset(row):
    config = configuration_of(row).lock()
    for section, name in re.findall(r"--config\.(\w+)\.(\w+)=", row.flags):
        assert name in config[section], f"{section}.{name}"
    for preset in names(row.preset):
        assert config.model.preset == preset
        assert config.data.sequence_length == PRESETS[preset]["sequence_length"]
