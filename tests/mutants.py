"""Mutation testing of the core: `python -m tests.mutants` (make test-mutants).

Each mutant is a copy of the checkout with one small change of the package, such as `<` in place of `<=`. It is killed
if a test fails. The tests of a mutant are those that execute the changed lines, read from the files of `make coverage`:
coverage data with one context per test, and the durations of the tests. Fast tests run first, and the first failure
ends the run. Tests that fail without a change are left out. With `--full`, a mutant that survives also runs all tests
of these files with the marker `full`.

Results are appended to a JSON lines file. A mutant that is in the file is not run again.
"""

import argparse
import ast
import collections
import concurrent.futures
import copy
import dataclasses
import json
import os
import pathlib
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("patterns", "ops", "layers", "kernels")
COPIED = ("tf_sparse_attention", "tests", "benchmarks", "docs", "colabs")
MOST_TESTS = 400  # of one mutant; lines of every call are executed by thousands of tests
PAIRS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
PAIRS += [(ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.And, ast.Or)]
SWAPS = {ast.Div: ast.Mult, ast.Mod: ast.Mult} | dict(PAIRS) | {new: old for old, new in PAIRS}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one node of a file.

    Attributes:
        path: path of the file, relative to the checkout.
        index: index of the change among all changes of the file.
        first, last: first and last line of the changed node.
        column: first column of the changed node.
        change: the change as text, for people.
    """

    path: str
    index: int
    first: int
    last: int
    column: int
    change: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.first}:{self.column}: {self.change}"


def changes_of(tree: ast.Module) -> list[tuple[ast.AST, ast.AST]]:
    """Return pairs of a node of a module and its replacement.

    Messages of errors and logs, annotations, docstrings and code outside functions are left alone.
    """
    pairs: list[tuple[ast.AST, ast.AST]] = []

    def visit(node, in_function):
        if isinstance(node, ast.FunctionDef):
            if node.name in ("__repr__", "get_config"):
                return
            children, in_function = node.body, True
        elif in_function and (isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)) or _is_text(node)):
            return
        else:
            if in_function:
                pairs.extend((node, new) for new in _replacements(node))
            annotation = getattr(node, "annotation", None)
            children = [child for child in ast.iter_child_nodes(node) if child is not annotation]
        for child in children:
            visit(child, in_function)

    visit(tree, in_function=False)
    return pairs


def _is_text(node):
    """Return whether a statement is a docstring or a log message."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and "logging" in ast.unparse(value.func))


def _replacements(node):
    """Yield the replacements of one node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield _with(node, ops=[SWAPS[type(node.ops[0])]()])
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        yield _with(node, op=SWAPS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _with(node, value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield _with(node, value=node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield _with(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.If) and not isinstance(node.test, (ast.Compare, ast.BoolOp)):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield _with(node, keywords=[other for other in node.keywords if other is not keyword])


def _with(node, **fields):
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


class _Replace(ast.NodeTransformer):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit(self, node):
        return self.new if node is self.old else super().visit(node)


def mutants_of(path: pathlib.Path) -> list[Mutant]:
    """Return all mutants of a file."""
    tree = ast.parse(path.read_text())
    mutants = []
    for index, (old, new) in enumerate(changes_of(tree)):
        texts = [" ".join(ast.unparse(node).split("\n")[0].split())[:80] for node in (old, new)]
        last = old.test.end_lineno if isinstance(old, ast.If) else old.end_lineno
        change = f"{texts[0]} -> {texts[1]}"
        mutants.append(Mutant(path.relative_to(ROOT).as_posix(), index, old.lineno, last, old.col_offset, change))
    return mutants


def mutated(mutant: Mutant) -> str:
    """Return the source of the file of a mutant."""
    tree = ast.parse((ROOT / mutant.path).read_text())
    old, new = changes_of(tree)[mutant.index]
    return ast.unparse(ast.fix_missing_locations(_Replace(old, new).visit(tree)))


class Tests:
    """The tests that execute each line, fastest first, read from the files of `make coverage`."""

    def __init__(self, folder: pathlib.Path) -> None:
        import coverage

        self._data = coverage.CoverageData(folder / "data")
        self._data.read()
        self._seconds = collections.defaultdict(float)
        for case in xml.etree.ElementTree.parse(folder / "durations.xml").iter("testcase"):
            self._seconds[_test_id(case)] = float(case.get("time"))
        self._left_out: set[str] = set()

    def of(self, mutant: Mutant) -> list[str]:
        """Return the ids of the tests of a mutant.

        Lines without a recorded test may be executed in the process of `JaxWorker`: by tests with "jax" in their name.
        """
        by_line = self._data.contexts_by_lineno(str(ROOT / mutant.path))
        names = {
            context.partition("|")[0]
            for line in range(mutant.first, mutant.last + 1)
            for context in by_line.get(line, ())
            if context
        }
        names = names or {name for name in self._seconds if "jax" in name}
        names -= self._left_out
        return sorted(names, key=lambda name: (self._seconds[name], name))[:MOST_TESTS]

    def leave_out_failing(self, mutants: list[Mutant], checkout: pathlib.Path) -> list[str]:
        """Run the tests of mutants without a change, leave out and return those that fail."""
        for path in {mutant.path for mutant in mutants}:  # without comments, as a mutant
            (checkout / path).write_text(ast.unparse(ast.parse((ROOT / path).read_text())))
        report = checkout / "unchanged.xml"
        names = sorted({name for mutant in mutants for name in self.of(mutant)})
        _run_tests(checkout, [f"--junit-xml={report}", *names], None)
        cases = xml.etree.ElementTree.parse(report).iter("testcase")
        self._left_out = {_test_id(case) for case in cases if any(x.tag in ("failure", "error") for x in case)}
        for path in {mutant.path for mutant in mutants}:
            shutil.copy(ROOT / path, checkout / path)
        return sorted(self._left_out)

    def seconds(self, names: list[str]) -> float:
        """Return the duration of tests."""
        return sum(self._seconds[name] for name in names)


def _test_id(case):
    """Return the id of a test case of a report."""
    return f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"


def run_mutant(mutant: Mutant, checkout: pathlib.Path, tests: Tests, full: bool) -> str:
    """Return "killed", "survived" or, if no test executes the lines, "untested"; with `full` also "killed in full"."""
    names = tests.of(mutant)
    if not names:
        return "untested"
    (checkout / mutant.path).write_text(mutated(mutant))
    try:
        if _fails(checkout, names, 120 + 4 * tests.seconds(names)):
            return "killed"
        files = sorted({name.partition("::")[0] for name in names})
        if full and _fails(checkout, ["-m", "full", *files], 1800):
            return "killed in full"
        return "survived"
    finally:
        shutil.copy(ROOT / mutant.path, checkout / mutant.path)


def _fails(checkout, arguments, seconds):
    """Return whether a test fails, or the tests do not end in time."""
    try:
        done = _run_tests(checkout, ["-x", *arguments], seconds)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2, 5):  # 2: an error at import, 5: no test
        raise RuntimeError(f"pytest ended with status {done.returncode}:\n{done.stdout.decode()[-2000:]}")
    return done.returncode in (1, 2)


def _run_tests(checkout, arguments, seconds):
    """Run pytest in a copy of the checkout."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(arguments))
        file.flush()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"@{file.name}"]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, timeout=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="number of mutants; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: %(default)s")
    parser.add_argument("--processes", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--full", action="store_true", help="also run tests marked `full`")
    parser.add_argument("--coverage", type=pathlib.Path, default=ROOT / ".coverage_run", help="folder of make coverage")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / ".coverage_run" / "mutants.jsonl")
    options = parser.parse_args()
    files = [path for folder in FOLDERS for path in sorted((ROOT / "tf_sparse_attention" / folder).rglob("*.py"))]
    everything = [mutant for path in files for mutant in mutants_of(path)]
    sample = random.Random(options.seed).sample(everything, options.count)
    rows = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    results = {row["mutant"]: row["result"] for row in rows}
    tests, checkouts = Tests(options.coverage), queue.Queue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.processes):
            checkouts.put(_copy_checkout(pathlib.Path(folder) / str(number)))
        checkout = checkouts.get()
        print("left out, failing without a change:", tests.leave_out_failing(sample, checkout), flush=True)
        checkouts.put(checkout)

        def run(mutant):
            if mutant.name not in results:
                checkout = checkouts.get()
                results[mutant.name] = run_mutant(mutant, checkout, tests, options.full)
                checkouts.put(checkout)
                with open(options.results, "a") as file:
                    file.write(json.dumps({"mutant": mutant.name, "result": results[mutant.name]}) + "\n")
                print(f"{results[mutant.name]}: {mutant.name}", flush=True)
            return results[mutant.name]

        with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
            counts = collections.Counter(pool.map(run, sample))
    killed = sum(count for result, count in counts.items() if result.startswith("killed"))
    print(
        f"{killed} of {len(sample)} mutants killed, {killed / len(sample):.1%}, of {len(everything)} in all: {counts}"
    )


def _copy_checkout(folder):
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.suffix in (".toml", ".md", ".py", ".yml", "") and path.name != ".git":
            shutil.copy(path, folder)
    return folder


if __name__ == "__main__":
    main()
