"""The table layer x head option of docs/patterns.md says what the code does."""

import pytest

from tests.conftest import ROOT


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_table_of_head_options_is_what_the_code_does():
    pytest.importorskip("keras_hub")
    from tests import head_table

    page = (ROOT / "docs" / "patterns.md").read_text(encoding="utf-8")
    assert f"<!-- heads -->\n{head_table.table()}\n<!-- /heads -->" in page
