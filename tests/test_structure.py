"""The names that the packages export, imports on JAX, and the calls that CONTRIBUTING.md describes.

`make lint` checks which package may import which, and which may import backends.
"""

import ast
import re
import sys
from types import ModuleType

import keras
import pytest

import tf_sparse_attention as tsa
from tests.pages import LIBRARY, ROOT

SOURCES = {
    path.relative_to(ROOT / LIBRARY).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / LIBRARY).rglob("*.py"))
}
# Packages whose modules import TensorFlow and optional packages inside functions.
WITH_OPTIONAL_PACKAGES = ("analysis", "convert", "data", "export", "audit.py", "remote_files.py")
# Modules that are imported only when they are used.
IMPORTED_ON_USE = {"convert/gguf/tokenizer.py": {"keras_hub", "tokenizers"}}


def foreign_imports(path, source):
    """Return the imports of a module that need more than Keras and NumPy, and those of the whole library.

    `make lint` checks which modules of the other packages import TensorFlow and JAX. They do so inside functions.
    """
    part, tree = path.split("/")[0], ast.parse(source)
    known, found = {"keras", "numpy", LIBRARY} | sys.stdlib_module_names, []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [f"{node.module}."] if isinstance(node, ast.ImportFrom) else []
        allowed = known | ({"tensorflow"} if part == "export" or node not in tree.body else set())
        allowed |= IMPORTED_ON_USE.get(path, set())
        allowed |= {"jax"} if node not in tree.body else set()
        is_free = part in WITH_OPTIONAL_PACKAGES and node not in tree.body
        found += [name for name in names if name == LIBRARY or not (is_free or name.split(".")[0] in allowed)]
    return found


@pytest.mark.full
def test_only_commands_need_more_than_keras_and_numpy_when_they_are_imported():
    sources = {
        path: source for path, source in SOURCES.items() if path.split("/")[0] not in ("trainers", "__init__.py")
    }
    del sources["audit.py"]
    assert len(sources) > 150
    assert not {path: names for path, source in sources.items() if (names := foreign_imports(path, source))}
    source = "import math\nimport tensorflow\nimport scipy.special\ndef f():\n    import jax\n    import matplotlib"
    assert foreign_imports("ops/masks.py", source) == ["tensorflow", "scipy.special", "matplotlib"]
    assert foreign_imports("export/portable.py", source) == ["scipy.special"]
    assert foreign_imports("models/model.py", f"import {LIBRARY} as tsa") == [LIBRARY]


def imports_in_error_handlers(source):
    """Return the lines of imports that run while `source` handles an error, also in functions that are called there."""
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    def found_in(node, called):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                yield inner.lineno
            name = ast.unparse(inner.func) if isinstance(inner, ast.Call) else None
            if name in functions and name not in called:
                yield from found_in(functions[name], called | {name})

    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    final = [node for block in ast.walk(tree) if isinstance(block, ast.Try) for node in block.finalbody]
    return sorted({line for node in [*handlers, *final] for line in found_in(node, frozenset())})


@pytest.mark.full
def test_nothing_is_imported_while_an_error_is_handled():
    assert not {path: lines for path, source in SOURCES.items() if (lines := imports_in_error_handlers(source))}
    assert imports_in_error_handlers("try:\n    f()\nexcept ValueError:\n    import tensorflow") == [4]
    source = "try:\n    f()\nfinally:\n    tell()\ndef tell():\n    name()\ndef name():\n    import tensorflow"
    assert imports_in_error_handlers(source) == [8]


def test_every_package_is_reachable_and_exports_the_public_names_it_imports(subtests):
    internal = {"kernels", "trainers"}
    packages = {path.parent.name for path in (ROOT / LIBRARY).glob("*/__init__.py")} - internal
    assert packages <= {*dir(tsa)} and tsa.ops.__name__ == f"{LIBRARY}.ops"
    for name in sorted(packages - {"ops"}):  # its modules are imported one by one
        with subtests.test(name):
            package = getattr(tsa, name)
            assert package.__name__ == f"{LIBRARY}.{name}"
            assert dir(package) == sorted(package.__all__)
            assert not [public for public in package.__all__ if isinstance(getattr(package, public), ModuleType)]


def test_an_unknown_name_of_the_library_is_an_error():
    with pytest.raises(AttributeError, match="has no attribute 'attentoin'"):
        _ = tsa.attentoin


def test_importing_the_library_on_jax_leaves_tensorflow_out_and_registers_its_classes(run_python, tmp_path):
    part = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 4}
    tsa.models.Backbone(9, 1, 4, [part]).save(tmp_path / "model.keras")
    code = (
        "import sys, keras\n"
        "from tf_sparse_attention import *\n"
        "print(keras.backend.backend(), layers.__name__, 'tensorflow' in sys.modules)\n"
        f"print(keras.models.load_model({str(tmp_path / 'model.keras')!r}).name)"
    )
    found = run_python(code, KERAS_BACKEND="jax").split()
    assert found == ["jax", "tf_sparse_attention.layers", "False", "backbone"]


def functions_passed(run):
    """Return the functions of the library that a call runs, pairs of the file relative to the library and the name."""
    folder, passed = f"{ROOT / LIBRARY}/", set()

    def notice(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            passed.add((frame.f_code.co_filename.removeprefix(folder), frame.f_code.co_qualname))

    sys.setprofile(notice)
    try:
        run()
    finally:
        sys.setprofile(None)
    return passed


@pytest.mark.full
def test_calls_flow_through_the_files_that_contributing_names():
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## How a call flows")[1].split("\n## ")[0]
    forward, step = section.split("\nNew tokens")
    x = keras.random.normal((2, 300, 32), seed=0)
    routing = tsa.layers.RoutingAttention(4, 16, num_clusters=4, cluster_size=64)
    window = tsa.layers.SparseAttention(4, 16, tsa.patterns.Window(32) | tsa.patterns.First(4))
    for layer in (routing, window):
        layer.build(x.shape)
    cache = window.extend(x, window.init_cache(2, 400))[1]
    for text, run in (
        (forward.split("1. ", 1)[1], lambda: routing(x, use_causal_mask=True)),
        (step, lambda: window.extend(x[:, :1], cache)),
    ):
        passed = functions_passed(run)
        files = set(re.findall(r"`([\w/]+\.py)`", text))
        functions = set(re.findall(r"^\d\. `([\w/]+\.py)`, `([\w.]+)`", text, re.MULTILINE))
        assert len(files) >= 5 and len(functions) >= 3
        assert not files - {file for file, _ in passed}
        assert not functions - passed
