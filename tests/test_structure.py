"""The order of the code: who may import whom and what, and what `__init__` files hold.

Files are read with `ast`, so that imports inside functions count and nothing is executed.
"""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import tf_sparse_attention as tsa

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "tf_sparse_attention"

# A part imports itself and parts of a smaller number; parts of one number do not know each other.
RANKS = {
    "version": 0,
    "ops": 1,
    "data": 1,
    "layers": 2,
    "generation": 2,
    "optimizers": 2,
    "models": 3,
    "analysis": 4,
    "convert": 4,
    "export": 4,
    "trainers": 5,
}
# These run unchanged on every backend: they stand on Keras, NumPy and the standard library alone.
PORTABLE_PARTS = {"ops", "layers", "generation", "optimizers", "models"}
TENSORFLOW_PARTS = {"data", "convert", "export", "trainers"}
# Files of other parts that may import a backend, inside functions and nowhere else.
DEFERRED_BACKEND_FILES = {"tf_sparse_attention/layers/replicas.py"}
BACKENDS = {"tensorflow", "tensorflow_text", "tensorflow_datasets", "jax", "jaxlib", "torch"}


class Import(NamedTuple):
    """An imported name with its dotted path, and whether it is imported only when a function runs."""

    name: str
    line: int
    deferred: bool

    @property
    def root(self):
        return self.name.split(".")[0]


def imports_of(source):
    """Returns every import in `source`; the name of a relative one begins with a dot."""
    found = []

    def visit(node, deferred):
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, deferred) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.extend(Import(f"{module}.{alias.name}", node.lineno, deferred) for alias in node.names)
        deferred = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            visit(child, deferred)

    visit(ast.parse(source), False)
    return found


def part_of(name):
    """Returns the part of the project that a dotted name lies in: `tf_sparse_attention.ops.masks` lies in `ops`."""
    first, *rest = name.split(".")
    return rest[0] if first == LIBRARY and rest else first


def imports_that_point_up(source, part):
    """Returns the imports in `source`, a file of `part`, of parts that do not stand below it, and relative ones."""
    ours = {LIBRARY, "trainers", "tests", "benchmarks"}
    return [
        imported
        for imported in imports_of(source)
        if imported.root in ours | {""}
        and part_of(imported.name) != part
        and RANKS.get(part_of(imported.name), len(RANKS)) >= RANKS[part]
    ]


def backend_imports(source, part, deferred_allowed):
    """Returns the imports of backends in `source` that a file of `part` may not have."""
    allowed = {name for name in BACKENDS if name.startswith("tensorflow")} if part in TENSORFLOW_PARTS else set()
    return [
        imported
        for imported in imports_of(source)
        if imported.root in BACKENDS - allowed and not (deferred_allowed and imported.deferred)
    ]


def unportable_imports(source):
    """Returns the imports in `source` that are none of Keras, NumPy, the standard library, this library, a backend."""
    known = {"keras", "numpy", LIBRARY} | BACKENDS | sys.stdlib_module_names
    return [imported for imported in imports_of(source) if imported.root not in known]


def uses_of_keras_internals(source):
    """Returns the lines of `source` that import `keras.src` or reach into it."""
    imported = [item.line for item in imports_of(source) if f"{item.name}.".startswith("keras.src.")]
    reached = [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "keras.src"
    ]
    return imported + reached


def assertions(source):
    """Returns the lines of `source` with an `assert` statement."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]


def more_than_exports(source):
    """Returns the lines of statements that are not a docstring, an import of this library, or `__all__`."""

    def only_exports(index, node):
        if isinstance(node, ast.Expr):
            return index == 0 and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.ImportFrom):
            return f"{node.module}.".startswith(f"{LIBRARY}.")
        return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"

    return [node.lineno for index, node in enumerate(ast.parse(source).body) if not only_exports(index, node)]


def sources(*folders):
    """Returns {path from the root: source} of the Python files below `folders`, missing folders left out."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def ordered_sources():
    """Returns (path, part, source) of every file the order of imports binds: all but the library's front door."""
    files = sources(LIBRARY, "trainers")
    front_door = files.pop(f"{LIBRARY}/__init__.py")
    assert front_door
    return [(path, part_of(path.removesuffix(".py").replace("/", ".")), source) for path, source in files.items()]


def offences(found):
    """Returns a readable list of what `found`, {path: offending lines or imports}, holds."""
    return [f"{path}: {item}" for path, items in found.items() for item in items]


def test_every_file_of_the_library_belongs_to_a_known_part():
    assert {part for _, part, _ in ordered_sources()} <= set(RANKS)


def test_imports_point_down():
    assert not offences({path: imports_that_point_up(source, part) for path, part, source in ordered_sources()})


def test_backends_are_imported_only_where_they_may_be():
    assert not offences(
        {
            path: backend_imports(source, part, deferred_allowed=path in DEFERRED_BACKEND_FILES)
            for path, part, source in ordered_sources()
        }
    )


def test_portable_parts_stand_on_keras_and_numpy_alone():
    assert not offences(
        {path: unportable_imports(source) for path, part, source in ordered_sources() if part in PORTABLE_PARTS}
    )


def test_no_file_reaches_into_keras_internals():
    everything = sources(LIBRARY, "trainers", "tests", "benchmarks", "docs")
    assert not offences({path: uses_of_keras_internals(source) for path, source in everything.items()})


def test_assert_is_for_tests():
    assert not offences({path: assertions(source) for path, source in sources(LIBRARY, "trainers").items()})


def test_init_files_only_re_export():
    inits = {path: source for path, source in sources(LIBRARY).items() if path.endswith("/__init__.py")}
    assert not offences({path: more_than_exports(source) for path, source in inits.items()})


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("from tf_sparse_attention.layers import local_attention", "ops"),
        ("from tf_sparse_attention import layers", "ops"),
        ("import tf_sparse_attention.models.backbone", "layers"),
        ("from tf_sparse_attention.optimizers.schedules import constant", "layers"),
        ("def f():\n    from trainers import strategy", "export"),
        ("import tf_sparse_attention as tsa", "analysis"),
        ("from . import masks", "ops"),
        ("import tests.contracts", "layers"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_found(source, part):
    assert len(imports_that_point_up(source, part)) == 1


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("from tf_sparse_attention.ops.masks import causal_mask", "layers"),
        ("from tf_sparse_attention.ops import masks", "ops"),
        ("import tf_sparse_attention.models", "trainers"),
        ("import keras\nfrom keras import ops", "ops"),
    ],
)
def test_an_import_that_points_down_is_allowed(source, part):
    assert not imports_that_point_up(source, part)


@pytest.mark.parametrize(
    ("source", "part", "deferred_allowed", "count"),
    [
        ("import tensorflow as tf", "layers", True, 1),
        ("def f():\n    import tensorflow as tf", "layers", True, 0),
        ("def f():\n    import tensorflow as tf", "layers", False, 1),
        ("from tensorflow import data", "data", False, 0),
        ("import jax", "data", False, 1),
        ("import tensorflow_text", "models", False, 1),
    ],
)
def test_a_backend_is_found_where_it_does_not_belong(source, part, deferred_allowed, count):
    assert len(backend_imports(source, part, deferred_allowed)) == count


def test_a_foreign_package_is_found():
    assert [item.name for item in unportable_imports("import math\nimport keras\nimport scipy.special")] == [
        "scipy.special"
    ]


@pytest.mark.parametrize("source", ["from keras.src import ops", "from keras import src", "x = keras.src.ops.sum"])
def test_a_use_of_keras_internals_is_found(source):
    assert uses_of_keras_internals(source) == [1]


def test_an_init_file_that_defines_something_is_found():
    exports = '"""Doc."""\nfrom tf_sparse_attention.ops.masks import causal_mask\n__all__ = ["causal_mask"]\n'
    assert more_than_exports(exports) == []
    assert more_than_exports(exports + "import keras\nx = 1\ndef f(): pass") == [4, 5, 6]


def test_an_assertion_is_found():
    assert assertions("x = 1\nif x:\n    assert x") == [3]


def test_importing_the_library_on_jax_leaves_tensorflow_out(run_python):
    code = (
        "import sys, keras, tf_sparse_attention as tsa\n"
        "print(keras.backend.backend(), [getattr(tsa, name).__name__ for name in tsa.__all__ if name[0] != '_'])\n"
        "print('tensorflow' in sys.modules)"
    )
    backend, imported = run_python(code, KERAS_BACKEND="jax").splitlines()
    assert backend.startswith("jax ['tf_sparse_attention.analysis'")
    assert imported == "False"


def test_the_front_door_says_no_to_an_unknown_name():
    with pytest.raises(AttributeError, match="has no attribute 'attentoin'"):
        _ = tsa.attentoin
