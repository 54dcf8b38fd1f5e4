"""The order of the code: who may import whom and what, and what `__init__` files hold."""

import re
import sys
from types import ModuleType

import keras
import pytest

import tf_sparse_attention as tsa
from tests import golden_table
from tests import source_rules as rules


def offences(found):
    """Return a readable list of what `found`, {path: offending lines or imports}, holds."""
    return [f"{path}: {item}" for path, items in found.items() for item in items]


def test_imports_point_down():
    assert not offences(
        {path: rules.imports_that_point_up(source, part) for path, part, source in rules.ordered_sources()}
    )


def test_backends_are_imported_only_where_they_may_be():
    assert not offences(
        {
            path: rules.backend_imports(source, part, deferred_allowed=path in rules.DEFERRED_BACKEND_FILES)
            for path, part, source in rules.ordered_sources()
        }
    )


def test_optional_packages_are_imported_on_use_and_not_at_all_by_the_portable_parts():
    assert not offences(
        {
            path: rules.foreign_imports(
                source, part not in rules.PORTABLE_PARTS or path in rules.DEFERRED_BACKEND_FILES
            )
            for path, part, source in rules.ordered_sources()
            if part != "trainers"
        }
    )


def test_no_file_reaches_into_keras_internals():
    everything = rules.sources(rules.LIBRARY, "tests", "benchmarks", "docs")
    assert not offences({path: rules.uses_of_keras_internals(source) for path, source in everything.items()})


def test_nothing_is_imported_while_an_error_is_handled():
    everything = rules.sources(rules.LIBRARY)
    assert not offences({path: rules.imports_in_error_handlers(source) for path, source in everything.items()})


def test_public_functions_carry_types():
    assert not offences({path: rules.not_annotated(source) for path, source in rules.sources(rules.LIBRARY).items()})


def test_init_files_only_re_export_and_list_what_they_import():
    inits = {path: source for path, source in rules.sources(rules.LIBRARY).items() if path.endswith("/__init__.py")}
    # The first one has its own tests at the end of this file. That of the commands sets how much TensorFlow logs.
    del inits[f"{rules.LIBRARY}/__init__.py"], inits[f"{rules.LIBRARY}/trainers/__init__.py"]
    assert not offences({path: rules.more_than_exports(source) for path, source in inits.items()})
    assert not offences({path: rules.exports_that_differ(source) for path, source in inits.items()})


def test_completion_offers_public_names_alone(subtests):
    for name in (name for name in dir(tsa) if name not in ("__version__", "ops")):
        part = getattr(tsa, name)
        with subtests.test(name):
            assert dir(part) == sorted(part.__all__)
            assert not [public for public in dir(part) if isinstance(getattr(part, public), ModuleType)]


IN_FUNCTION = "def f():\n    import tensorflow as tf"
IN_HANDLER = "try:\n    f()\nexcept ValueError:\n    import tensorflow"
IN_FINALLY = "try:\n    f()\nfinally:\n    tell()\ndef tell():\n    name()\ndef name():\n    import tensorflow"
BY_NAME = "from importlib import import_module\nimport_module(f'tf_sparse_attention.trainers.tasks.{name}')"
FOREIGN = "import math\nimport keras\nimport scipy.special\ndef plot():\n    import matplotlib"
EXPORTS = '"""Doc."""\nfrom tf_sparse_attention.ops.masks import causal_mask\n__all__ = ["causal_mask"]\n'
PRIVATE = "def f(x: int) -> None: pass\ndef _g(x): pass\nclass _C:\n    def f(self): pass"
FUNCTIONS = "def f(x) -> None: pass\ndef g(x: int): pass\ndef h(*, x: int = 0, **y) -> None: pass"
METHODS = "class C:\n    def __init__(self): pass\n    def f(self) -> int: pass\n    @staticmethod\n"
METHODS += "    def g(x) -> int: pass\n    @classmethod\n    def h(cls) -> int: pass"


@pytest.mark.parametrize(
    ("rule", "count", "source", "more"),
    [
        (rules.imports_that_point_up, 1, "from tf_sparse_attention import layers", ["ops"]),
        (rules.imports_that_point_up, 1, "from tf_sparse_attention.optimizers.schedules import constant", ["layers"]),
        (rules.imports_that_point_up, 1, "def f():\n    from tf_sparse_attention.trainers import strategy", ["export"]),
        (rules.imports_that_point_up, 1, "import tf_sparse_attention as tsa", ["analysis"]),
        (rules.imports_that_point_up, 1, "from . import masks", ["ops"]),
        (rules.imports_that_point_up, 1, "import tests.contracts", ["layers"]),
        (rules.imports_that_point_up, 1, "runpy.run_module('tf_sparse_attention.trainers.convert')", ["convert"]),
        (rules.imports_that_point_up, 1, BY_NAME, ["export"]),
        (rules.imports_that_point_up, 0, "from tf_sparse_attention.ops.masks import x\nimport keras", ["layers"]),
        (rules.backend_imports, 1, "import tensorflow as tf", ["layers", True]),
        (rules.backend_imports, 0, IN_FUNCTION, ["layers", True]),
        (rules.backend_imports, 1, IN_FUNCTION, ["layers", False]),
        (rules.backend_imports, 0, "from tensorflow import data", ["data", False]),
        (rules.backend_imports, 1, "import jax", ["data", False]),
        (rules.foreign_imports, 2, FOREIGN, [False]),
        (rules.foreign_imports, 1, FOREIGN, [True]),
        (rules.imports_in_error_handlers, 1, IN_HANDLER, []),
        (rules.imports_in_error_handlers, 1, IN_FINALLY, []),
        (rules.uses_of_keras_internals, 1, "from keras.src import ops", []),
        (rules.uses_of_keras_internals, 1, "from keras import src", []),
        (rules.uses_of_keras_internals, 1, "x = keras.src.ops.sum", []),
        (rules.more_than_exports, 0, EXPORTS, []),
        (rules.more_than_exports, 3, EXPORTS + "import keras\nx = 1\ndef f(): pass", []),
        (rules.exports_that_differ, 0, EXPORTS, []),
        (rules.exports_that_differ, 2, EXPORTS.replace("import causal_mask", "import merge"), []),
        (rules.not_annotated, 0, PRIVATE, []),
        (rules.not_annotated, 3, FUNCTIONS, []),
        (rules.not_annotated, 2, METHODS, []),
    ],
)
def test_a_rule_finds_what_it_forbids_and_nothing_else(rule, count, source, more):
    assert len(rule(source, *more)) == count


def test_every_part_is_reachable_from_the_front_door():
    internal = {"version", "types", "checks", "backends", "atomic_files", "kernels", "remote_files"}
    internal |= {"trainers", "audit"}  # programs
    for part in {part for _, part, _ in rules.ordered_sources()} - internal:
        assert part in dir(tsa)
        assert getattr(tsa, part).__name__ == f"{rules.LIBRARY}.{part}"


def test_the_table_of_goldens_runs_tests_that_exist():
    for test in golden_table.MORE:
        file, _, name = test.partition("::")
        assert f"def {name}" in (rules.ROOT / "tests" / file).read_text(encoding="utf-8"), test


def test_the_front_door_says_no_to_an_unknown_name():
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
    folder, passed = f"{rules.ROOT / rules.LIBRARY}/", set()

    def notice(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            passed.add((frame.f_code.co_filename.removeprefix(folder), frame.f_code.co_qualname))

    sys.setprofile(notice)
    try:
        run()
    finally:
        sys.setprofile(None)
    return passed


def test_calls_flow_through_the_files_that_contributing_names():
    section = (rules.ROOT / "CONTRIBUTING.md").read_text().split("## How a call flows")[1].split("\n## ")[0]
    forward, step = section.split("\nA decoding step")
    x = keras.random.normal((2, 300, 32), seed=0)
    routing = tsa.layers.RoutingAttention(4, 16, num_clusters=4, cluster_size=64)
    window = tsa.layers.SparseAttention(4, 16, tsa.patterns.Window(32) | tsa.patterns.First(4))
    for layer in (routing, window):
        layer.build(x.shape)
    cache = window.prefill(x, window.init_cache(2, 400))[1]
    for text, run in (
        (forward.split("1. ", 1)[1], lambda: routing(x, use_causal_mask=True)),
        (step, lambda: window.decode(x[:, :1], cache, 300)),
    ):
        passed = functions_passed(run)
        files = set(re.findall(r"`([\w/]+\.py)`", text))
        functions = set(re.findall(r"^\d\. `([\w/]+\.py)`, `([\w.]+)`", text, re.MULTILINE))
        assert len(files) >= 5 and len(functions) >= 3
        assert not files - {file for file, _ in passed}
        assert not functions - passed - {("patterns/engine/decoding.py", "CachedGroup")}  # a class
