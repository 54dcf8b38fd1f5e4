"""Numbers of the published implementations, read case by case."""

import json


def read_case(goldens, name):
    """Returns the settings of a case and its arrays by name, from a file whose arrays are called "CASE/ARRAY"."""
    settings = json.loads(str(goldens["meta_json"]))[name]
    prefix = f"{name}/"
    return settings, {key.removeprefix(prefix): goldens[key] for key in goldens.files if key.startswith(prefix)}
