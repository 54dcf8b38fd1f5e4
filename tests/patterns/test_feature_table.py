"""The tables of features and of head options in docs/patterns.md are up to date."""

import re

import keras
import pytest

from docs.tables import features
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "patterns.md"
pytestmark = pytest.mark.full


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the table is that of the home backend")
def test_the_table_of_features_is_up_to_date():
    written = re.search(r"<!-- features -->\n(.*)\n<!-- /features -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert written == features.table((ROOT / "docs" / "portable.md").read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore")
def test_the_table_of_head_options_is_up_to_date():
    pytest.importorskip("keras_hub")
    from docs.tables import heads

    assert f"<!-- heads -->\n{heads.table()}\n<!-- /heads -->" in PAGE.read_text(encoding="utf-8")
