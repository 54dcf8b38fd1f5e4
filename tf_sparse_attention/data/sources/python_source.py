"""The source code of the running interpreter's standard library, as a TFDS data set."""

import os
import pathlib
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from tf_sparse_attention.data.sources.file_splits import fingerprint_files, nonempty_splits
from tf_sparse_attention.data.sources.text_files import list_texts
from tf_sparse_attention.data.sources.tfds_reader import import_tfds

tfds: Any = import_tfds()

# Installed packages, compiled files and build-dependent files are not part of the library. Tests are left out because
# many systems package Python without tests. Tests are two thirds of the bytes, and include generated tables and files
# with deliberate errors.
EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
EXCLUDED_PREFIXES = ("config-", "_sysconfigdata", "_sysconfig_vars")


def library_files(folder: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yield the paths of the source files that are part of every build of this version of Python."""
    for parent, folders, files in os.walk(folder):
        # Skip excluded folders: site-packages can have tens of thousands of files.
        folders[:] = [name for name in folders if _is_library(name)]
        yield from (pathlib.Path(parent, name) for name in files if name.endswith(".py") and _is_library(name))


def _is_library(name):
    return name not in EXCLUDED_FOLDERS and not name.startswith(EXCLUDED_PREFIXES)


class PythonSource(tfds.core.GeneratorBasedBuilder):
    """Source code of the Python standard library, which needs no download.

    One example per file, {"text", "path"}, about 10 MB for Python 3.11. Files are split by the hash of their content
    (about 90/5/5). Installed packages, tests, build-dependent modules and files that are not UTF-8 are left out.

    The configuration is named after the interpreter and the content ("cpython_3_11_7_<hash>"). Results are comparable
    between runs with the same configuration name.

    Args:
        data_dir, version: see `tfds.core.DatasetBuilder`.
        config: None, or the name of the configuration of this interpreter.

    Raises:
        ValueError: If the interpreter has no source files (the library is in a zip file), or `config` has another name.
    """

    name = "python_source"
    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, *, data_dir: str | os.PathLike | None = None, config: Any = None, version: Any = None) -> None:
        folder = sysconfig.get_path("stdlib")
        self._files = list_texts(pathlib.Path(folder), library_files(folder), skip_invalid=True)
        if not self._files:
            raise ValueError(f"`stdlib` must be a folder of Python source. Received: stdlib={folder}.")
        known = self._interpreter_config()
        if config is not None and getattr(config, "name", config) != known.name:
            raise ValueError(f"`config` must be {known.name}, for this interpreter. Received: config={config}.")
        super().__init__(data_dir=data_dir, config=known, version=version)

    def _interpreter_config(self):
        release = "_".join(str(number) for number in sys.version_info[:3])
        return tfds.core.BuilderConfig(
            name=f"{sys.implementation.name}_{release}_{fingerprint_files({'': self._files})}",
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
        return {split: self._generate_examples(files) for split, files in nonempty_splits(self._files).items()}

    def _generate_examples(self, files):
        for file in files:
            yield file.name, {"text": file.read(), "path": file.name}
