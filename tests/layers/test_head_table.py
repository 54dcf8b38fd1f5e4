"""The table of head options in docs/patterns.md is up to date."""

import pytest

from tests.conftest import ROOT


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_table_of_head_options_is_up_to_date():
    pytest.importorskip("keras_hub")
    from tests import head_table

    page = (ROOT / "docs" / "patterns.md").read_text(encoding="utf-8")
    assert f"<!-- heads -->\n{head_table.table()}\n<!-- /heads -->" in page
