"""The table of features in docs/patterns.md is up to date."""

import re

import keras
import pytest

from tests.conftest import ROOT
from tests.feature_table import table


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the table is that of the home backend")
def test_the_table_of_features_is_up_to_date():
    page = (ROOT / "docs" / "patterns.md").read_text(encoding="utf-8")
    written = re.search(r"<!-- features -->\n(.*)\n<!-- /features -->", page, re.DOTALL)[1]
    assert written == table((ROOT / "docs" / "portable.md").read_text(encoding="utf-8"))
