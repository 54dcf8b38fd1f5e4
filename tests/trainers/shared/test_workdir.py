"""Files of a work folder that are not what was written there."""

import pytest

from trainers.configs import base
from trainers.shared import workdir


@pytest.mark.parametrize(
    ("content", "found"),
    [("{", "Expecting"), ("[1]", "a list"), ('{"seed": 0}', "no section"), ("", "Exp")],
)
def test_a_broken_configuration_is_named(content, found, tmp_path):
    workdir.save_config(tmp_path, base.get_config())
    assert workdir.load_config(tmp_path).seed == 0
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"`workdir` must hold a config.json .*config.json, with {found}"):
        workdir.load_config(tmp_path)


def test_a_model_that_was_cut_off_is_named(tmp_path):
    (tmp_path / "model.keras").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match=r"`workdir` must be a file .* Received: .*model.keras, which is 16 bytes"):
        workdir.load_model(tmp_path)
