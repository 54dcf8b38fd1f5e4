"""Settings that a task ignores raise an error, in configurations and evaluations."""

import pytest

from tests.trainers.test_configs import ALL, load
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import overrides
from tf_sparse_attention.trainers.shared.evaluation import with_overrides
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.settings import COMMON, check_read


def test_no_configuration_has_a_setting_that_its_task_ignores():
    for name, arguments in ALL:
        config = load(name, arguments)
        check_read(config, config.task, registry.find_task_class(config.task).settings)


def test_a_task_names_settings_that_exist_and_each_is_read_by_some_task():
    defaults, read = base.get_config().to_dict(), {section: set(names) for section, names in COMMON.items()}
    for task in registry.NAMES:
        for section, names in registry.find_task_class(task).settings.items():
            assert set(names) <= set(defaults[section]) - set(COMMON.get(section, ())), (task, section)
            read[section] = read.get(section, set()) | set(names)
    for section in ("data", "model", "train", "generate"):
        assert read[section] == set(defaults[section])


@pytest.mark.parametrize(
    ("task", "section", "name", "value", "default"),
    [
        ("language_model", "data", "use_flips", True, "False"),
        ("language_model", "train", "label_smoothing", 0.1, r"0\.0"),
        ("masked", "model", "memory_length", 8, "0"),
        ("translate", "model", "causal", False, "True"),
        ("answer", "train", "evaluation_windows", 0, "64"),
        ("image", "generate", "prompt", "a", "''"),
        ("audio", "data", "image_shape", (8, 8, 3), r"\(\)"),
        ("speech", "data", "mask_rate", 0.1, r"0\.0"),
        ("classify", "model", "tie_embeddings", True, "False"),
    ],
)
def test_a_setting_that_a_task_ignores_is_an_error_that_says_what_to_do(task, section, name, value, default):
    config = base.get_config()
    config.task, config[section][name] = task, value
    message = rf"`config\.{section}\.{name}` must be unset for task={task}, which ignores it\. Received: {name}=.*\. "
    with pytest.raises(ValueError, match=rf"{message}The default is {default}; see trainers/configs/base\.py\."):
        registry.make_task(config)


def test_an_evaluation_is_not_given_what_its_task_ignores():
    config, wanted = base.get_config(), overrides.overridable_settings()
    wanted.data.mask_rate = 0.0  # the default
    wanted.train.num_beams = 4
    with pytest.raises(ValueError, match=r"`config\.train\.num_beams` must be unset for task=language_model, which"):
        with_overrides(config, wanted)
    config.task = "speech"
    assert with_overrides(config, wanted).train.num_beams == 4
