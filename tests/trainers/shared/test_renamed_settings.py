"""Old names of settings are accepted from files, flags and work folders."""

import json

import pytest
from absl import flags

from trainers.configs import base
from trainers.shared import overrides, resume, workdir
from trainers.shared.renamed_settings import apply_renamed_settings


def test_an_old_setting_of_a_configuration_counts_under_its_new_name():
    config = base.get_config()
    config.data.packed = False
    config.train.fit_windows_every = 7
    with pytest.warns(DeprecationWarning) as warnings:
        apply_renamed_settings(config)
    assert [str(warning.message).split(";")[0] for warning in warnings] == [
        "`config.data.packed` is now `config.data.use_packing`",
        "`config.train.fit_windows_every` is now `config.train.shrink_windows_every`",
    ]
    assert config.data.use_packing is False
    assert config.train.shrink_windows_every == 7
    assert "packed" not in config.data


def test_new_settings_are_left_alone():
    config = base.get_config()
    config.data.use_packing = False
    apply_renamed_settings(config)
    assert config.data.use_packing is False
    assert config.train.shrink_windows_margin == 64


def old_configuration():
    """Returns a configuration as earlier versions wrote it."""
    saved = base.get_config().to_dict()
    saved["data"]["packed"] = False
    saved["train"].update(fit_windows_every=5, fit_windows_margin=3)
    for section, names in base.RENAMED.items():
        for new in names.values():
            del saved[section][new]
    return saved


def test_the_configuration_in_an_old_work_folder_is_read(tmp_path):
    (tmp_path / workdir.CONFIG).write_text(json.dumps(old_configuration()))
    config = workdir.load_config(tmp_path)
    assert config.data.use_packing is False
    assert (config.train.shrink_windows_every, config.train.shrink_windows_margin) == (5, 3)
    assert "packed" not in config.data


def test_a_run_of_an_earlier_version_is_resumed_with_the_same_packing_alone():
    saved, config = {"config": old_configuration(), "fingerprint": "text"}, base.get_config()
    config.data.use_packing = False
    resume.check_compatible(saved, resume.describe(config, "text"))
    config.data.use_packing = True
    with pytest.raises(ValueError, match=r"`config.data.use_packing` .* Received: True, in the checkpoint False"):
        resume.check_compatible(saved, resume.describe(config, "text"))


def test_the_old_flag_of_an_evaluation_is_accepted():
    values = flags.FlagValues()
    read = overrides.define_flags(values)
    values(["evaluate", "--noconfig.data.packed"])
    with pytest.warns(DeprecationWarning, match=r"`config.data.packed` is now `config.data.use_packing`"):
        assert read().data.use_packing is False
