"""The pages: their Python runs, their commands and links lead somewhere, and the API reference is complete."""

import importlib
import re

import pytest

import tf_sparse_attention as tsa
from tests.convert import gguf_files
from tests.pages import DOCS, PAGES, ROOT, api_entries, blocks, broken_links, commands, flags_of, name_of, public_names
from tf_sparse_attention.trainers.configs import base

pytestmark = [
    pytest.mark.pages,
    pytest.mark.filterwarnings("ignore:`sequence_length` should be at least:UserWarning"),  # lengths are tiny here
]

GGUF = {'"SmolLM2-135M-Instruct.Q4_1.gguf"': 'FOLDER / "llama.gguf"'}
README = ROOT / "README.md"
TEXTS = {name_of(page): page.read_text(encoding="utf-8") for page in PAGES}
# Pages whose Python is run, or compared with what it makes, by tests of their own.
OWN_TESTS = {
    "docs/adding_a_pattern.md": "tests/integration/test_adding_a_pattern.py",
    "docs/portable.md": "tests/export/test_portable.py",
    "docs/serving.md": "tests/export/test_serving_page.py",
}
WITH_PYTHON = [name for name, text in TEXTS.items() if blocks(text, "python") and name not in OWN_TESTS]
# Smaller numbers where the page's own would take minutes; each must occur on its page.
LAYER = {"keras.Input((None, 512))": "keras.Input((None, 32))"}
SMALLER = {
    "README.md": {**LAYER, **GGUF},
    "docs/pretrained.md": GGUF,
    "docs/start.md": {**LAYER, "(None, None, 512)": "(None, None, 32)"},
    "docs/decoding.md": {
        "Backbone(258, 4, 128,": "Backbone(258, 1, 16,",
        '"conversation.npz"': 'FOLDER / "conversation.npz"',
    },
    "docs/models.md": {
        "vocabulary_size=32768": "vocabulary_size=300, hidden_dim=32, embedding={'dim': 32}",
        "embedding={'dim': 32})": "embedding={'dim': 32}, num_layers=2, attention={'num_local_layers': 1})",
        "sequence_length=2048": "sequence_length=64",
        "sequence_length=512": "sequence_length=64",
        "steps_per_epoch=1000": "steps_per_epoch=1",
        "tsa.data.open_source()": "tsa.data.open_source(path=FOLDER, data_dir=FOLDER / 'prepared')",
        "Backbone(258, 4, 128,": "Backbone(258, 2, 16,",
        "num_local_layers=3": "num_local_layers=1",
    },
}


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_the_python_of_a_page_runs(name, tmp_path):
    for number in range(3):  # a file for each split
        (tmp_path / f"{number}.txt").write_text(f"Text number {number}. " * 300, encoding="utf-8")
    text = TEXTS[name]
    for long, short in SMALLER.get(name, {}).items():
        assert long in text
        text = text.replace(long, short)
    if ".gguf" in text:
        tensors = gguf_files.tensors_of("llama", gguf_files.make_backbone("llama"))
        gguf_files.write_file(tmp_path / "llama.gguf", "llama", tensors)
    names = {"FOLDER": tmp_path}
    for block in blocks(text, "python"):
        exec(block, names)  # the page is the repository's own


@pytest.mark.parametrize(("name", "test"), OWN_TESTS.items())
def test_a_page_that_is_left_out_is_read_by_its_own_test(name, test):
    assert name.removeprefix("docs/") in (ROOT / test).read_text(encoding="utf-8")


def test_the_audit_of_the_readme_is_long_enough_to_find_a_leak():
    code = next(block for block in blocks(TEXTS["README.md"], "python") if "assert_causal" in block)
    for true, changed in {**LAYER, "use_successor_values=True": "selection='top_k'"}.items():
        assert true in code
        code = code.replace(true, changed)
    with pytest.warns(UserWarning, match="is not causal"), pytest.raises(tsa.analysis.CausalityError):
        exec(code, {})


def test_the_figures_of_the_readme_are_those_of_the_results():
    figures = TEXTS["README.md"].partition("## Figures\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .*`.* \|$", figures, re.MULTILINE)
    assert len(rows) >= 3 and all(row in TEXTS["docs/results.md"].splitlines() for row in rows)


@pytest.mark.parametrize("name", TEXTS)
def test_relative_links_lead_to_files_and_headings(name):
    assert not broken_links(ROOT / name, TEXTS[name])


@pytest.mark.parametrize("name", TEXTS)
def test_programs_and_targets_that_a_page_names_exist(name):
    code = "\n".join([*blocks(TEXTS[name]), *re.findall(r"`([^`\n]*)`", TEXTS[name])])
    for module in re.findall(r"python -m ([\w.]+)", code):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file() or module == "pytest", module
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (?:[A-Z_]+=\S* )*([a-z-]+)", code, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("name", TEXTS)
def test_flags_of_programs_that_a_page_names_exist(name):
    settings = {f"config.{section}.{key}" for section, keys in base.get_config().to_dict().items()
                if isinstance(keys, dict) for key in keys}  # fmt: skip
    overridable = {f"config.{section}.{key}" for section, keys in base.OVERRIDABLE.items() for key in keys}
    for program, flags in commands(TEXTS[name]):
        known = flags_of(program) | (overridable if program == "evaluate" else {"config", *settings})
        assert {flag.removeprefix("no") if flag[2:] in known else flag for flag in flags} <= known, (program, flags)


def test_every_page_of_docs_is_in_the_navigation_of_the_site():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": (\S+\.md)\b", site.partition("\nnav:\n")[2].partition("\n\n")[0])
    outside = {"index.md", "contributing.md", "changelog.md"}
    assert {*listed} == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | outside
    assert len(listed) == len({*listed})


@pytest.mark.parametrize("package", public_names())
def test_the_api_reference_has_every_public_name_of_a_package(package):
    entries = api_entries((DOCS / "api" / f"{package}.md").read_text(encoding="utf-8"))
    assert sorted(entries) == sorted(public_names()[package].values())


def test_the_packages_are_those_of_the_library():
    known = {"layers", "models", "generation", "optimizers", "data", "analysis", "convert", "export"}
    assert known <= {*public_names()}
    assert {page.stem for page in (DOCS / "api").glob("*.md")} == {*public_names()}


COVERAGE = TEXTS["docs/coverage.md"]
HEADING = "| system | preset | flags | the paper | run here | what differs |"
PRESETS = {**tsa.models.PRESETS, **tsa.models.TRANSLATION_PRESETS}
# Preset and flags of each row of the tables of docs/coverage.md.
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | ")[1:3])
    for table in COVERAGE.split("\n\n")
    if table.startswith(HEADING)
    for line in table.splitlines()[2:]
]
TRAINED = [row for row in ROWS if row[1].startswith("`--config=")]


def quoted(cell):
    return re.findall(r"`([^`]*)`", cell)


def test_every_preset_is_in_a_table_of_the_coverage_with_a_configuration():
    assert COVERAGE.count(HEADING) == len(re.findall("^## ", COVERAGE, re.MULTILINE)) == 5
    assert {name for preset, _ in ROWS for name in quoted(preset)} == set(PRESETS)
    assert {preset for preset, _ in ROWS if not quoted(preset)} == {"none"}
    assert {row for row in ROWS if row not in TRAINED} == {("none", "none")}


@pytest.mark.parametrize(("preset", "flags"), TRAINED)
def test_the_flags_of_a_row_of_the_coverage_name_a_configuration_with_its_settings_and_preset(preset, flags):
    name, _, variant = re.match(r"`--config=([\w:]+)", flags)[1].partition(":")
    module = importlib.import_module(f"tf_sparse_attention.trainers.configs.{name}")
    config = module.get_config(*([variant] if variant else [])).lock()
    for section, setting in re.findall(r"--config\.(\w+)\.(\w+)=", flags):
        assert setting in config[section], f"{section}.{setting}"
    for name in quoted(preset):
        assert config.model.preset == name
        assert config.data.sequence_length == PRESETS[name]["sequence_length"]
