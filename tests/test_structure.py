"""The order of the code: who may import whom and what, and what `__init__` files hold."""

import re
import sys
from types import ModuleType

import keras
import pytest

import tf_sparse_attention as tsa
from tests import golden_table
from tests.source_rules import (
    DEFERRED_BACKEND_FILES,
    LIBRARY,
    PORTABLE_PARTS,
    RANKS,
    ROOT,
    backend_imports,
    exports_that_differ,
    foreign_imports,
    imports_in_error_handlers,
    imports_that_point_up,
    more_than_exports,
    not_annotated,
    ordered_sources,
    sources,
    uses_of_keras_internals,
)


def offences(found):
    """Return a readable list of what `found`, {path: offending lines or imports}, holds."""
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


def test_optional_packages_are_imported_on_use_and_not_at_all_by_the_portable_parts():
    assert not offences(
        {
            path: foreign_imports(source, part not in PORTABLE_PARTS or path in DEFERRED_BACKEND_FILES)
            for path, part, source in ordered_sources()
            if part != "trainers"
        }
    )


def test_no_file_reaches_into_keras_internals():
    everything = sources(LIBRARY, "tests", "benchmarks", "docs")
    assert not offences({path: uses_of_keras_internals(source) for path, source in everything.items()})


def test_nothing_is_imported_while_an_error_is_handled():
    everything = sources(LIBRARY)
    assert not offences({path: imports_in_error_handlers(source) for path, source in everything.items()})


def test_public_functions_carry_types():
    assert not offences({path: not_annotated(source) for path, source in sources(LIBRARY).items()})


def test_init_files_only_re_export():
    inits = {path: source for path, source in sources(LIBRARY).items() if path.endswith("/__init__.py")}
    # The first one has its own tests at the end of this file. That of the commands sets how much TensorFlow logs.
    del inits[f"{LIBRARY}/__init__.py"], inits[f"{LIBRARY}/trainers/__init__.py"]
    assert not offences({path: more_than_exports(source) for path, source in inits.items()})


def test_init_files_list_what_they_import():
    inits = {path: source for path, source in sources(LIBRARY).items() if path.endswith("/__init__.py")}
    del inits[f"{LIBRARY}/__init__.py"]  # most of its parts are imported on first use
    assert not offences({path: exports_that_differ(source) for path, source in inits.items()})


def test_completion_offers_public_names_alone(subtests):
    for name in (name for name in dir(tsa) if name not in ("__version__", "ops")):
        part = getattr(tsa, name)
        with subtests.test(name):
            assert dir(part) == sorted(part.__all__)
            assert not [public for public in dir(part) if isinstance(getattr(part, public), ModuleType)]


def test_imports_that_point_up_or_sideways_and_no_others_are_found(subtests):
    for source, part in [
        ("from tf_sparse_attention.layers import local_attention", "ops"),
        ("from tf_sparse_attention import layers", "ops"),
        ("import tf_sparse_attention.models.backbone", "layers"),
        ("from tf_sparse_attention.optimizers.schedules import constant", "layers"),
        ("def f():\n    from tf_sparse_attention.trainers import strategy", "export"),
        ("import tf_sparse_attention as tsa", "analysis"),
        ("from . import masks", "ops"),
        ("import tests.contracts", "layers"),
        ("import runpy\nrunpy.run_module('tf_sparse_attention.trainers.convert', run_name='__main__')", "convert"),
        ("from importlib import import_module\nimport_module(f'tf_sparse_attention.trainers.tasks.{name}')", "export"),
    ]:
        with subtests.test(source):
            assert len(imports_that_point_up(source, part)) == 1
    for source, part in [
        ("from tf_sparse_attention.ops.masks import causal_mask\nimport keras", "layers"),
        ("from tf_sparse_attention.ops import masks", "ops"),
        ("import tf_sparse_attention as tsa", "trainers"),
    ]:
        with subtests.test(source):
            assert not imports_that_point_up(source, part)


def test_a_backend_is_found_where_it_does_not_belong(subtests):
    deferred = "def f():\n    import tensorflow as tf"
    for source, part, deferred_allowed, count in [
        ("import tensorflow as tf", "layers", True, 1),
        (deferred, "layers", True, 0),
        (deferred, "layers", False, 1),
        ("from tensorflow import data", "data", False, 0),
        ("import jax", "data", False, 1),
    ]:
        with subtests.test(source, part=part):
            assert len(backend_imports(source, part, deferred_allowed)) == count


def test_a_foreign_package_is_found():
    source = "import math\nimport keras\nimport scipy.special\ndef plot():\n    import matplotlib"
    assert [item.name for item in foreign_imports(source, deferred_allowed=False)] == ["scipy.special", "matplotlib"]
    assert [item.name for item in foreign_imports(source, deferred_allowed=True)] == ["scipy.special"]


def test_imports_in_error_handlers_and_uses_of_keras_internals_are_found():
    for source in (
        "try:\n    f()\nexcept ValueError:\n    import tensorflow",
        "try:\n    f()\nfinally:\n    tell()\ndef tell():\n    name()\ndef name():\n    import tensorflow",
    ):
        assert imports_in_error_handlers(source) == [source.count("\n") + 1]
    for source in ("from keras.src import ops", "from keras import src", "x = keras.src.ops.sum"):
        assert uses_of_keras_internals(source) == [1]


def test_an_init_file_that_defines_something_is_found():
    exports = '"""Doc."""\nfrom tf_sparse_attention.ops.masks import causal_mask\n__all__ = ["causal_mask"]\n'
    assert more_than_exports(exports) == []
    assert more_than_exports(exports + "import keras\nx = 1\ndef f(): pass") == [4, 5, 6]
    assert exports_that_differ(exports) == []
    assert exports_that_differ(exports.replace("import causal_mask", "import merge")) == ["causal_mask", "merge"]


def test_a_public_function_without_types_is_found():
    private = "def f(x: int) -> None: pass\ndef _g(x): pass\nclass _C:\n    def f(self): pass"
    functions = "def f(x) -> None: pass\ndef g(x: int): pass\ndef h(*, x: int = 0, **y) -> None: pass"
    methods = "class C:\n    def __init__(self): pass\n    def f(self) -> int: pass\n    @staticmethod\n"
    methods += "    def g(x) -> int: pass\n    @classmethod\n    def h(cls) -> int: pass"
    for source, found in {private: [], functions: ["f", "g", "h"], methods: ["C.__init__", "C.g"]}.items():
        assert not_annotated(source) == found


def test_every_part_is_reachable_from_the_front_door():
    internal = {"version", "types", "checks", "backends", "atomic_files", "kernels", "remote_files"}
    internal |= {"trainers", "audit"}  # programs
    for part in {part for _, part, _ in ordered_sources()} - internal:
        assert part in dir(tsa)
        assert getattr(tsa, part).__name__ == f"{LIBRARY}.{part}"


def test_the_table_of_goldens_runs_tests_that_exist():
    for test in golden_table.MORE:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


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


def test_calls_flow_through_the_files_that_contributing_names():
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## How a call flows")[1].split("\n## ")[0]
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
