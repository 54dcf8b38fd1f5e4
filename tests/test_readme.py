"""The Python of the README runs from top to bottom, with smaller numbers where it would take minutes."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.pages
PAGE = Path(__file__).parents[1] / "README.md"
SMALLER = {
    "keras.Input((None, 512))": "keras.Input((None, 32))",
    "(None, None, 512)": "(None, None, 32)",
    "vocabulary_size=32768)": "vocabulary_size=300, num_layers=2, skip_first=1, hidden_dim=32, embedding_dim=32)",
    "sequence_length=512": "sequence_length=64",
    "steps_per_epoch=1000": "steps_per_epoch=1",
    "tsa.data.open_source()": "tsa.data.open_source(path=FOLDER, data_dir=FOLDER / 'prepared')",
    "Backbone(258, 4, 128,": "Backbone(258, 1, 16,",
}


def test_the_python_of_the_page_runs(tmp_path):
    for number in range(3):  # a file for each split
        (tmp_path / f"{number}.txt").write_text(f"Text number {number}. " * 300, encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    for long, short in SMALLER.items():
        assert long in text
        text = text.replace(long, short)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    names = {"FOLDER": tmp_path}
    for block in blocks:
        exec(block, names)  # the page is the repository's own
