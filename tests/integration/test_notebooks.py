"""Every notebook runs from top to bottom, at a tiny size."""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "colabs"
TINY = {"STEPS": 2, "LENGTH": 32, "BATCH_SIZE": 2, "WIDTH": 16}


def made_tiny(notebook):
    """Replaces the numbers of the cell tagged "parameters"; each must be there."""
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    names = [line.split(" = ")[0] for line in cell.source.splitlines()]
    cell.source = "\n".join(f"{name} = {TINY[name]}" for name in names)
    return notebook


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
# Jupyter's client warns of its own settings and loops, which differ by version.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_the_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = made_tiny(nbformat.read(path, as_version=4))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_is_kept_without_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
