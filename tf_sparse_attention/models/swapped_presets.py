"""The names of models whose attention was replaced in presets of KerasHub."""

import json
import pathlib

from tf_sparse_attention.atomic_files import atomic_file

PACKAGE = "tf_sparse_attention"
COMMON_NAME = "SwappedModel"  # by which all such models are saved: it loads each, and says nothing of its class
CONFIG_FILES = ("config.json", "task.json")  # of the backbone and of the task


def name_of(class_name: str) -> str:
    """Returns the registered name of a class, in the words of Keras."""
    return f"{PACKAGE}>{class_name}"


def name_classes(preset: str | pathlib.Path) -> None:
    """Gives the models in the folder of a preset the names of their own classes, by which KerasHub looks for them."""
    for path in (pathlib.Path(preset) / name for name in CONFIG_FILES):
        if not path.is_file():
            continue
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["registered_name"] != name_of(COMMON_NAME):
            continue
        config["registered_name"] = name_of(config["class_name"])
        with atomic_file(path) as new:
            new.write_text(json.dumps(config, indent=4), encoding="utf-8")
