"""docs/serving.md: requests have the shown responses, and the Python and the command lines run."""

import base64
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

pytestmark = pytest.mark.pages
PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
EXCHANGES = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
REQUESTS = {request["signature_name"]: request["inputs"] for request in EXCHANGES[::2]}
RESPONSES = dict(zip(REQUESTS, (response["outputs"] for response in EXCHANGES[1::2]), strict=True))
DTYPES = {"max_length": tf.int32, "seed": tf.int32, "temperature": tf.float32, "top_p": tf.float32}
COMMANDS = [shlex.split(line) for line in re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()]


def as_json(name, value):
    """Return an output as TensorFlow Serving writes it: text as text, and base64 where the name ends in _bytes."""
    rows = value.numpy().tolist()
    if value.dtype != tf.string:
        return rows
    return [{"b64": base64.b64encode(row).decode()} if name.endswith("_bytes") else row.decode("utf-8") for row in rows]


def kinds(value):
    """Return the nested types of an answer, the length of its rows left out where they are vectors or texts."""
    if isinstance(value, list):
        return [kinds(value[0]), len(value)] if not isinstance(value[0], list) else [kinds(value[0][0]), "rows"]
    return {key: kinds(entry) for key, entry in value.items()} if isinstance(value, dict) else type(value).__name__


@pytest.mark.parametrize("name", ["score", "generate", "embed"])
def test_the_requests_of_the_page_are_answered_as_it_shows(served, name):
    inputs = {key: tf.constant(value, DTYPES.get(key, tf.string)) for key, value in REQUESTS[name].items()}
    outputs = {key: as_json(key, value) for key, value in served[name](**inputs).items()}
    assert json.loads(json.dumps(outputs)) == outputs
    assert kinds(outputs) == kinds(RESPONSES[name])


def test_the_table_of_the_page_names_all_inputs_and_outputs(served):
    for name, function in served.items():
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
        names = {*function.structured_input_signature[1], *function.structured_outputs}
        assert names == set(re.findall(r"`(\w+)`", row)) - {name}


def test_the_python_of_the_page_runs(exported):
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=exported.parent, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "(1, 16)"


@pytest.mark.parametrize("command", [COMMANDS[1], *(pytest.param(c, marks=pytest.mark.full) for c in COMMANDS[2:])])
def test_the_command_lines_of_the_page_run(exported, command):
    program, *arguments = command
    path = Path(sys.executable).with_name(program)
    result = subprocess.run([path, *arguments], cwd=exported.parent, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    name = arguments[arguments.index("--signature_def") + 1]
    assert {line.split()[-1].rstrip(":") for line in result.stdout.splitlines() if "output key" in line} == set(
        RESPONSES[name]
    )
