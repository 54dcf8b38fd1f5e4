"""A hook of mkdocs: README.md, CONTRIBUTING.md, CHANGELOG.md and the notebooks, which lie outside docs/, join the site.

Pages link to them by their paths in the repository, so that links work there too; here they become paths in the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOKS = {path.relative_to(ROOT).as_posix(): f"colabs/{path.name}" for path in (ROOT / "colabs").glob("*.ipynb")}
IN_SITE = PAGES | NOTEBOOKS
IN_REPOSITORY = {site: path for path, site in IN_SITE.items()}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_files(files, config):
    """Adds the files to those of the site."""
    for path, name in IN_SITE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites the links of a page from paths in the repository to paths in the site."""
    source = page.file.src_uri
    folder = posixpath.dirname(IN_REPOSITORY.get(source, f"docs/{source}"))

    def in_site(link):
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        target = IN_SITE.get(path, path.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(source) or ".")

    return LINK.sub(in_site, markdown)
