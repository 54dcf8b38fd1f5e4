"""Every notebook runs from top to bottom, at a tiny size, and its first cell finds or installs the library."""

import pathlib
import re
import subprocess
import sys
import tomllib

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

pytestmark = pytest.mark.pages
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "colabs"
SIZES = {"STEPS": 2, "LENGTH": 32, "BATCH_SIZE": 2, "LAYERS": 1, "WIDTH": 16}
ON_TPU = {**SIZES, "FOLDER": None, "LENGTH": 600, "STEPS": 4, "SAVE_EVERY": 2}
TINY = {
    "1_sparse_attention_in_keras": {**SIZES, "LENGTH": 129},  # longer than its window, as its audit asks
    "4_published_checkpoint": {
        **{"CHECKPOINT": "missing.zip", "HPARAMS": "pg19_routing_published", "VOCABULARY": "missing.subwords"},
        **{"LENGTH": 96, "MAX_LENGTH": 120},
    },
    "2_generate_and_look": {**SIZES, "MODEL": None, "MAX_LENGTH": 30},
    "3_dense_model_made_sparse": {"PRESET": "gpt2_base_en", "LENGTH": 32, "WINDOW": 8, "STEPS": 2, "MAX_LENGTH": 24},
    "5_images": {**SIZES, "TFDS": None, "SIZE": 8},
    "6_speech": {**SIZES, "TFDS": None, "SPLITS": ("train", "test"), "RECORDINGS": 8, "LENGTH": 400},
    "7_translation": {
        **SIZES,
        **{"TFDS": None, "FIELDS": ("english", "invented"), "DOCUMENTS": 40, "VOCABULARY": 100, "LENGTH": 64},
    },
    "8_train_on_tpu": {**ON_TPU, "STEPS_PER_EXECUTION": 1},
    "9_train_on_tpu_with_tpustrategy": {**ON_TPU, "BATCH_SIZE": 8, "REPLICAS": 8},
    "10_decoder_made_sparse_and_healed": {
        **{"PRESET": "qwen3_0.6b_en", "LENGTH": 32, "BATCH_SIZE": 2, "BLOCK_SIZE": 4, "NUM_BLOCKS": 2},
        **{"TRAIN_STEPS": 2, "STEPS": 2, "MAX_LENGTH": 40},
    },
    "11_pretrained_model_made_sparse": {"PACKAGE": None, "KEYS": 64, "TOKENS": 80, "MAX_LENGTH": 12},
}
# For what has to be downloaded.
WITH_STAND_IN = ("3_dense_model_made_sparse", "4_published_checkpoint", "11_pretrained_model_made_sparse")
# What the programs of a TPU are: of one backend alone, which the runtime has already.
ALONE = {"8_train_on_tpu": "jax", "9_train_on_tpu_with_tpustrategy": "tensorflow"}
DEFAULT = {("1_sparse_attention_in_keras", "tensorflow"), ("8_train_on_tpu", "jax")}
CASES = [
    pytest.param(path, backend, marks=[] if (path.stem, backend) in DEFAULT else [pytest.mark.full])
    for path in sorted(FOLDER.glob("*.ipynb"))
    for backend in ("tensorflow", "jax")
    if ALONE.get(path.stem, backend) == backend
]


def made_tiny(notebook, values):
    """Replace the values of the cell tagged "parameters"; each must be there."""
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    names = [line.split(" = ")[0] for line in cell.source.splitlines()]
    cell.source = "\n".join(f"{name} = {values[name]!r}" for name in names)
    return notebook


@pytest.mark.parametrize(("path", "backend"), CASES, ids=lambda value: getattr(value, "stem", value))
# Jupyter's client warns of its own settings and loops, which differ by version.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_the_notebook_runs(path, backend, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setenv("MPLBACKEND", "agg")
    # Without a network, and what came over it before.
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path))
    notebook = made_tiny(nbformat.read(path, as_version=4), TINY[path.stem])
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "UserWarning" not in printed
    assert ("of random weights" in printed) == (path.stem in WITH_STAND_IN)


# Stands for IPython, git and pip: "cloning" makes a folder, and "installing" puts the library, without content, on the
# path, as site-packages is.
FAKE_SHELL = """
import pathlib, sys

class Shell:
    def run_line_magic(self, name, arguments):
        print(name, arguments.format(**globals()))
        package = pathlib.Path("site-packages", "tf_sparse_attention")
        package.mkdir()
        (package / "__init__.py").touch()

    def system(self, command):
        print(command.format(**globals()))
        pathlib.Path("tf_sparse_attention").mkdir()

def get_ipython():
    return Shell()

sys.path.append(str(pathlib.Path("site-packages").resolve()))
"""


def run_first_cell(folder, backend):
    """Run the first cell of the notebooks where there is nothing but a backend, and return the lines that it prints.

    The interpreter sees no installed package (-S) and no setting of the environment but the path (-E).
    """
    (folder / "site-packages").mkdir(exist_ok=True)
    if backend is not None:
        (folder / "site-packages" / f"{backend}.py").touch()
    code = FAKE_SHELL + TransformerManager().transform_cell(_first_cell(sorted(FOLDER.glob("*.ipynb"))[0]))
    code += "import tf_sparse_attention; print(tf_sparse_attention.__file__)"
    process = subprocess.run([sys.executable, "-S", "-E", "-B", "-c", code], cwd=folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def _first_cell(path):
    return next(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")


def test_all_notebooks_have_the_same_first_cell_and_no_outputs():
    assert len({_first_cell(path) for path in FOLDER.glob("*.ipynb")}) == 1
    for path in FOLDER.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path.name


@pytest.mark.parametrize("cloned", [False, True], ids=["fresh", "with a clone"])
def test_the_first_cell_clones_and_installs_only_what_is_missing(tmp_path, cloned):
    address = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    clone = [] if cloned else [f"git clone --quiet --depth=1 {address} tf_sparse_attention"]
    for backend, extras in ((None, "train,plot"), ("tensorflow", "tools,plot"), ("jax", "tools,plot")):
        folder = tmp_path / str(backend)
        folder.mkdir()
        if cloned:
            (folder / "tf_sparse_attention").symlink_to(FOLDER.parent, target_is_directory=True)
        imported = str(folder / "site-packages" / "tf_sparse_attention" / "__init__.py")
        install = f'pip install --quiet "./tf_sparse_attention[{extras}]"'
        assert run_first_cell(folder, backend) == [*clone, install, imported]
        assert run_first_cell(folder, backend) == [imported]


def test_the_first_cell_installs_no_second_backend():
    extras = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.match(r"[\w-]+", line)[0] for name in ("tools", "plot") for line in extras[name]}
    assert names.isdisjoint({"tensorflow", "tensorflow-text", "jax", "libtpu", "torch", "tf_sparse_attention"})
