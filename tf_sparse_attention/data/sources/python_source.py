"""The source code of the running interpreter's standard library, as a TFDS data set."""

import os
import pathlib
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.file_splits import files_by_split, fingerprint_files, list_text_files

tfds: Any = import_tfds()

# Not the library itself: packages installed beside it, compiled files, and what depends on the build of the machine.
# Tests are left out since many systems package Python without them (the data would differ from machine to machine),
# they are two thirds of the bytes, and hold generated tables and files that are broken on purpose.
EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
EXCLUDED_PREFIXES = ("config-", "_sysconfigdata", "_sysconfig_vars")


def library_files(folder: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields the `pathlib.Path` of every source file that each build of this version of Python has."""
    for parent, folders, files in os.walk(folder):
        # Not even entered: a machine may have tens of thousands of files in site-packages.
        folders[:] = [name for name in folders if _is_library(name)]
        yield from (pathlib.Path(parent, name) for name in files if name.endswith(".py") and _is_library(name))


def _is_library(name):
    return name not in EXCLUDED_FOLDERS and not name.startswith(EXCLUDED_PREFIXES)


class PythonSource(tfds.core.GeneratorBasedBuilder):
    """The Python standard library's own source: text that every machine with Python has, so nothing is downloaded.

    One example a file, {"text", "path"}, about 10 MB for Python 3.11. The split comes from the hash of a file's content
    (about 90/5/5), so that equal files are never in two splits. Packages installed beside the library, tests,
    build-dependent modules and files that are not UTF-8 are left out.

    The configuration is named after the interpreter and the content ("cpython_3_11_7_<hash>"), so another Python, or
    one that its packager patched, is another data set. Figures are comparable between runs whose configuration has one
    name.

    Args:
        data_dir, version: as in `tfds.core.DatasetBuilder`.
        config: None, or the name of the one configuration that this interpreter has.

    Raises:
        ValueError: If the interpreter has no source files (its library is in a zip file), or `config` is of another.
    """

    name = "python_source"
    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, *, data_dir: str | os.PathLike | None = None, config: Any = None, version: Any = None) -> None:
        folder = sysconfig.get_path("stdlib")
        self._files = list_text_files(folder, library_files(folder), skip_invalid=True)
        if not self._files:
            raise ValueError(f"`stdlib` must be a folder of Python source. Received: stdlib={folder}.")
        own = self._interpreter_config()
        if config is not None and getattr(config, "name", config) != own.name:
            raise ValueError(f"`config` must be that of this interpreter, {own.name}. Received: config={config}.")
        super().__init__(data_dir=data_dir, config=own, version=version)

    def _interpreter_config(self):
        release = "_".join(str(number) for number in sys.version_info[:3])
        return tfds.core.BuilderConfig(
            name=f"{sys.implementation.name}_{release}_{fingerprint_files(self._files)}",
            version=self.VERSION,
            description=f"Standard library of {sys.implementation.name} {release}.",
        )

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Source code of the Python standard library of the interpreter that prepared it.",
            features=tfds.features.FeaturesDict({"text": tfds.features.Text(), "path": tfds.features.Text()}),
            homepage="https://docs.python.org/3/library/",
            license="PSF-2.0",
        )

    def _split_generators(self, dl_manager):
        del dl_manager  # Nothing is downloaded.
        # TFDS cannot write a split without examples; only a library of a few files has one.
        return {split: self._generate_examples(files) for split, files in files_by_split(self._files).items() if files}

    def _generate_examples(self, files):
        for file in files:
            yield file.name, {"text": file.read(), "path": file.name}
