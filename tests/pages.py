"""The pages of the project as its tests read them: README.md, CONTRIBUTING.md, CHANGELOG.md and docs/."""

import ast
import functools
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "tf_sparse_attention"
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page):
    """Return the path of a page from the root, such as "docs/start.md"."""
    return page.relative_to(ROOT).as_posix()


def text_between(page, marks):
    """Return the text between two marks of a page."""
    return page.read_text(encoding="utf-8").partition(marks[0])[2].partition(marks[1])[0].strip("\n")


def write_between(page, marks, text):
    """Replace the text between two marks of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def markdown_table(rows):
    """Return a table as Markdown, given lists of cells, the first of which are headings."""
    head, *lines = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *lines])


def blocks(text, language=None):
    """Return the blocks of code of a page, in order; None: those of every language and of none."""
    return [code for kind, code in FENCED.findall(text) if language in (None, kind)]


def commands(text):
    """Return the programs, such as `tsa-train`, that the code of a page calls, each with the names of its flags."""
    found = []
    for block in blocks(text):
        for program, rest in re.findall(r"\btsa-(\w+)(.*(?:\n +-.*)*)", block):
            found.append((program, re.findall(r"(?<!\S)--([\w.-]+)", rest)))
    return found


def flags_of(program):
    """Return the names of the flags that a program such as `tsa-train` defines itself, read without importing it."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module = scripts[f"tsa-{program}"].partition(":")[0]
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    return {*re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", source), *re.findall(r"\(\s*\"--([\w-]+)\"", source)}


def links(text):
    """Return the relative links and pictures of a page, outside its code, as (path or "", anchor or "")."""
    prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", text))
    targets = [target for target in LINK.findall(prose) if not re.match(r"\w+:", target)]
    return [target.partition("#")[::2] for target in targets]


def anchors(text):
    """Return the anchors of the headings of a page, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(page, text):
    """Return the relative links of a page to files or anchors that do not exist."""
    broken = []
    for path, anchor in links(text):
        target = (page.parent / path).resolve() if path else page
        found = target.is_file()
        if found and anchor:
            found = target.suffix == ".md" and anchor in anchors(text if target == page else target.read_text("utf-8"))
        if not found:
            broken.append(f"{path}#{anchor}" if anchor else path)
    return broken


@functools.cache
def public_names():
    """Return {package: {public name: path that the API reference calls it by}}, read without importing anything.

    The path is `tf_sparse_attention.PACKAGE.NAME`. Where a module of the package has that name too, the tool would
    describe the module, and the path is the one that the package imports the name from.
    """
    found = {}
    for path in sorted((ROOT / LIBRARY).glob("*/__init__.py")):
        package, origins = f"{LIBRARY}.{path.parent.name}", {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                origins |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                modules = {module.stem for module in path.parent.iterdir()}
                names = ast.literal_eval(node.value)
                paths = {name: origins[name] if name in modules else f"{package}.{name}" for name in names}
                found[path.parent.name] = paths
    return found


def api_entries(text):
    """Return the names that a page of the API reference describes: its lines `::: name`."""
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)
