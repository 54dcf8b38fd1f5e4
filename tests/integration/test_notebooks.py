"""Every notebook runs from top to bottom, at a tiny size, and its first cell finds or installs the library."""

import pathlib
import subprocess
import sys

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

from tf_sparse_attention.convert.t2t.miniature import CHECKPOINT, VOCABULARY, write_miniature

pytestmark = pytest.mark.pages
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "colabs"
SIZES = {"STEPS": 2, "LENGTH": 32, "BATCH_SIZE": 2, "LAYERS": 1, "WIDTH": 16}
TINY = {
    "1_sparse_attention_in_keras": {**SIZES, "LENGTH": 129},  # longer than its window, as its audit asks
    "4_published_checkpoint": {"LENGTH": 96, "MAX_LENGTH": 120},
    "2_generate_and_look": {**SIZES, "MODEL": None, "MAX_LENGTH": 30},
    "3_dense_model_made_sparse": {"PRESET": None, "LENGTH": 32, "WINDOW": 8, "STEPS": 2, "MAX_LENGTH": 24},
    "5_images": {**SIZES, "TFDS": None, "SIZE": 8},
    "6_speech": {**SIZES, "TFDS": None, "SPLITS": ("train", "test"), "RECORDINGS": 8, "LENGTH": 400},
    "7_translation": {
        **SIZES,
        "TFDS": None,
        "FIELDS": ("english", "invented"),
        "DOCUMENTS": 40,
        "VOCABULARY": 100,
        "LENGTH": 64,
    },
    "8_train_on_tpu": {**SIZES, "FOLDER": None, "LENGTH": 600, "STEPS": 4, "SAVE_EVERY": 2, "STEPS_PER_EXECUTION": 1},
    "9_train_on_tpu_with_tpustrategy": {
        **SIZES,
        "FOLDER": None,
        "LENGTH": 600,
        "BATCH_SIZE": 8,
        "STEPS": 4,
        "SAVE_EVERY": 2,
        "REPLICAS": 8,
    },
}
# What the programs of a TPU are: of one backend alone, which the runtime has already.
ALONE = {"8_train_on_tpu": "jax", "9_train_on_tpu_with_tpustrategy": "tensorflow"}
CASES = [
    pytest.param(path, backend, marks=[pytest.mark.full] if backend == "jax" and path.stem not in ALONE else [])
    for path in sorted(FOLDER.glob("*.ipynb"))
    for backend in ("tensorflow", "jax")
    if ALONE.get(path.stem, backend) == backend
]


@pytest.fixture
def tiny(tmp_path):
    """Function that returns the tiny parameters of a notebook, paths of a checkpoint and its vocabulary included."""

    def parameters(name):
        values = dict(TINY[name])
        if name == "4_published_checkpoint":
            folder = write_miniature(tmp_path / "miniature")
            values |= {"CHECKPOINT": str(folder / CHECKPOINT), "HPARAMS": None, "VOCABULARY": str(folder / VOCABULARY)}
        return values

    return parameters


def made_tiny(notebook, values):
    """Replaces the values of the cell tagged "parameters"; each must be there."""
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    names = [line.split(" = ")[0] for line in cell.source.splitlines()]
    cell.source = "\n".join(f"{name} = {values[name]!r}" for name in names)
    return notebook


def printed(notebook):
    """All that the cells wrote to standard output and standard error."""
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


@pytest.mark.parametrize(("path", "backend"), CASES, ids=lambda value: getattr(value, "stem", value))
# Jupyter's client warns of its own settings and loops, which differ by version.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_the_notebook_runs(path, backend, monkeypatch, tiny):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = made_tiny(nbformat.read(path, as_version=4), tiny(path.stem))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    assert "UserWarning" not in printed(notebook)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_is_kept_without_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


# Stands for IPython and pip: "installing" puts the library, without content, on the path, as site-packages is.
FAKE_PIP = """
import pathlib, sys

class Shell:
    def run_line_magic(self, name, arguments):
        print(name, arguments)
        package = pathlib.Path("site-packages", "tf_sparse_attention")
        package.mkdir()
        for part in ("__init__", "data", "layers"):
            (package / f"{part}.py").touch()

def get_ipython():
    return Shell()

sys.path.append(str(pathlib.Path("site-packages").resolve()))
"""


@pytest.fixture
def beside_a_clone(tmp_path):
    """Function that runs the first cell of a notebook beside a clone, where other libraries are there but empty.

    The interpreter sees no installed package (-S) and no setting of the environment but the path (-E).
    """
    (tmp_path / "tf_sparse_attention").symlink_to(FOLDER.parent, target_is_directory=True)
    (tmp_path / "site-packages" / "matplotlib").mkdir(parents=True)
    for name in ("keras", "numpy", "matplotlib/__init__", "matplotlib/pyplot"):
        (tmp_path / "site-packages" / f"{name}.py").touch()

    def run(notebook):
        cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
        code = FAKE_PIP + TransformerManager().transform_cell(cell.source) + "print(tsa.__file__)"
        process = subprocess.run(
            [sys.executable, "-S", "-E", "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        return process.stdout.splitlines()

    return run


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_first_cell_installs_from_a_clone_beside_it_and_only_once(path, beside_a_clone, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    imported = str(tmp_path / "site-packages" / "tf_sparse_attention" / "__init__.py")
    extras = "tools,plot" if path.stem in ALONE else "train,plot"
    assert beside_a_clone(notebook) == [f'pip install --quiet "./tf_sparse_attention[{extras}]"', imported]
    assert beside_a_clone(notebook) == [imported]
