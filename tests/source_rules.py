"""What the tests of the project's order read out of its source: imports, uses of internals, stray statements.

Files are read with `ast`, so that imports inside functions count and nothing is executed.
"""

import ast
import functools
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "tf_sparse_attention"

# A part imports itself and parts of a smaller number; parts of one number do not know each other.
ORDER = [
    ("version", "types", "checks", "backends", "atomic_files"),
    ("remote_files",),
    ("ops", "data"),
    ("kernels",),
    ("patterns",),
    ("layers", "generation", "optimizers", "distribution"),
    ("models",),
    ("analysis", "convert", "export"),
    (LIBRARY,),  # the whole of it, `import tf_sparse_attention as tsa`
    ("trainers",),
    ("audit",),  # a command that also reads runs
]
RANKS = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
TENSORFLOW_PARTS = {"data", "convert", "export", "trainers"}
# Others run unchanged on every backend: they stand on Keras, NumPy and the standard library alone.
PORTABLE_PARTS = {*RANKS} - TENSORFLOW_PARTS - {"version", "remote_files", "analysis", LIBRARY, "audit"}
# Files of other parts that may import a backend, inside functions and nowhere else.
DEFERRED = ("analysis/gradients.py", "backends.py", "distribution/sharded_window.py", "layers/data_parallel.py")
DEFERRED += ("models/programs.py", "models/rebuilding.py", "optimizers/skip_nonfinite.py")
DEFERRED += ("trainers/shared/devices.py", "trainers/shared/checkpoints.py")
KERNELS = ("flash_attention", "availability", "kernel_mask", "mosaic", "block_scores", "triton")
DEFERRED_BACKEND_FILES = {f"{LIBRARY}/{path}" for path in (*DEFERRED, *(f"kernels/{name}.py" for name in KERNELS))}
# Functions that import, or run, the module that their first argument names.
IMPORT_CALLS = {"import_module", "__import__", "run_module", "find_spec"}
BACKENDS = {"tensorflow", "tensorflow_text", "tensorflow_datasets", "jax", "jaxlib", "torch"}


class Import(NamedTuple):
    """An imported name with its dotted path, and whether it is imported only when a function runs."""

    name: str
    line: int
    deferred: bool

    @property
    def root(self):
        return self.name.split(".")[0]


@functools.cache
def parsed(source):
    """Return the tree of `source`, which the rules look at one after the other and leave as it is."""
    return ast.parse(source)


@functools.cache
def imports_of(source):
    """Return every import in `source`, by statement or by a call with the name; a relative one begins with a dot."""
    found = []

    def visit(node, deferred):
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, deferred) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.extend(Import(f"{module}.{alias.name}", node.lineno, deferred) for alias in node.names)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in IMPORT_CALLS and node.args:
            found.extend(Import(name, node.lineno, deferred) for name in [_begin_of(node.args[0])] if name)
        deferred = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            visit(child, deferred)

    visit(parsed(source), False)
    return tuple(found)


def _begin_of(node):
    node = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def part_of(name):
    """Return the part of the project that a dotted name lies in: `tf_sparse_attention.ops.masks` lies in `ops`."""
    first, *rest = name.split(".")
    return rest[0] if first == LIBRARY and rest else first


def imports_that_point_up(source, part):
    """Return the imports in `source`, a file of `part`, of parts that do not stand below it, and relative ones."""
    ours = {LIBRARY, "tests", "benchmarks"}
    return [
        imported
        for imported in imports_of(source)
        if imported.root in ours | {""}
        and part_of(imported.name) != part
        and RANKS.get(part_of(imported.name), len(RANKS)) >= RANKS[part]
    ]


def backend_imports(source, part, deferred_allowed):
    """Return the imports of backends in `source` that a file of `part` may not have."""
    allowed = {name for name in BACKENDS if name.startswith("tensorflow")} if part in TENSORFLOW_PARTS else set()
    return [
        imported
        for imported in imports_of(source)
        if imported.root in BACKENDS - allowed and not (deferred_allowed and imported.deferred)
    ]


def foreign_imports(source, deferred_allowed):
    """Return the imports in `source` of what comes neither with Python nor with the library's own requirements."""
    known = {"keras", "numpy", "tensorflow", LIBRARY} | sys.stdlib_module_names
    return [
        imported
        for imported in imports_of(source)
        if imported.root not in known and not (deferred_allowed and imported.deferred)
    ]


def uses_of_keras_internals(source):
    """Return the lines of `source` that import `keras.src` or reach into it."""
    imported = [item.line for item in imports_of(source) if f"{item.name}.".startswith("keras.src.")]
    reached = [
        node.lineno
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Attribute) and node.attr == "src" and ast.unparse(node) == "keras.src"
    ]
    return imported + reached


def imports_in_error_handlers(source):
    """Return the lines of imports that run while `source` handles an error, also in functions that are called there."""
    functions = {node.name: node for node in ast.walk(parsed(source)) if isinstance(node, ast.FunctionDef)}

    def found_in(node, called):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                yield inner.lineno
            name = ast.unparse(inner.func) if isinstance(inner, ast.Call) else None
            if name in functions and name not in called:
                yield from found_in(functions[name], called | {name})

    handlers = [node for node in ast.walk(parsed(source)) if isinstance(node, ast.ExceptHandler)]
    final = [node for block in ast.walk(parsed(source)) if isinstance(block, ast.Try) for node in block.finalbody]
    return sorted({line for node in [*handlers, *final] for line in found_in(node, frozenset())})


def not_annotated(source):
    """Return the public functions, methods and constructors of `source` without types of all they take and give."""

    def is_public(node):
        return not node.name.startswith("_") or node.name in ("__init__", "__new__", "__call__")

    def has_types(node, is_method):
        arguments = node.args
        taken = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        taken += [more for more in (arguments.vararg, arguments.kwarg) if more is not None]
        is_static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
        taken = taken[1:] if is_method and not is_static else taken
        return node.returns is not None and all(argument.annotation is not None for argument in taken)

    def found_in(body, prefix=""):
        for node in body:
            if isinstance(node, ast.ClassDef) and is_public(node):
                yield from found_in(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.FunctionDef) and is_public(node) and not has_types(node, bool(prefix)):
                yield f"{prefix}{node.name}"

    return list(found_in(parsed(source).body))


def more_than_exports(source):
    """Return the lines of statements that are no docstring, import of this library, `__all__`, or its use by `dir`."""

    def only_exports(index, node):
        if isinstance(node, ast.Expr):
            return index == 0 and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.ImportFrom):
            return f"{node.module}.".startswith(f"{LIBRARY}.")
        shows_all = ast.unparse(node) == "__dir__ = __all__.copy"
        return shows_all or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")

    return [node.lineno for index, node in enumerate(parsed(source).body) if not only_exports(index, node)]


def exports_that_differ(source):
    """Return the public names of ours that an `__init__` imports and does not list in `__all__`, or the reverse."""
    imported, listed = set(), set()
    for node in parsed(source).body:
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == LIBRARY:
            imported |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = set(ast.literal_eval(node.value))
    return sorted(name for name in imported ^ listed if not name.startswith("_"))


def sources(*folders):
    """Return {path from the root: source} of the Python files below `folders`, missing folders left out."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def ordered_sources():
    """Return (path, part, source) of every file the order of imports binds: all but the library's front door."""
    files = sources(LIBRARY)
    del files[f"{LIBRARY}/__init__.py"]
    return [(path, part_of(path.removesuffix(".py").replace("/", ".")), source) for path, source in files.items()]
