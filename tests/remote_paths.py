"""Paths of two schemes for tests, registered with `etils.epath`: memory://, and disk://, which is the local disk."""

import pathlib
import types

import fsspec
from etils import epath


class RemotePath(pathlib.PurePosixPath):
    """The used part of `epath.Path` on a file system of fsspec. Like a bucket, it cannot rename folders."""

    system = "memory"

    def __new__(cls, *parts):
        return super().__new__(cls, *(str(part).removeprefix(f"{cls.scheme}://") for part in parts))

    def __fspath__(self):
        return f"{self.scheme}://{super().__str__()}"

    __str__ = __fspath__

    @property
    def _files(self):
        return fsspec.filesystem(self.system)

    @property
    def _name(self):
        return f"/{super().__str__().lstrip('/')}"

    def exists(self):
        return self._files.exists(self._name)

    def is_dir(self):
        return self._files.isdir(self._name)

    def stat(self):
        found = self._files.info(self._name)
        time = found["mtime"] if "mtime" in found else found["created"].timestamp()
        return types.SimpleNamespace(length=found["size"], mtime=time)

    def iterdir(self):
        return (self / pathlib.PurePosixPath(name).name for name in self._files.ls(self._name, detail=False))

    def open(self, mode="r"):
        return self._files.open(self._name, mode)

    def mkdir(self, parents=False, exist_ok=False):
        self._files.makedirs(self._name, exist_ok=exist_ok)

    def rmdir(self):
        self._files.rmdir(self._name)

    def replace(self, target):
        assert not self.is_dir()
        self._files.mv(self._name, target._name)

    def unlink(self, missing_ok=False):
        if not missing_ok or self.exists():
            self._files.rm_file(self._name)


@epath.register_path_cls("memory://")
class MemoryPath(RemotePath):
    """In the memory of this process."""

    scheme = system = "memory"


@epath.register_path_cls("disk://")
class DiskPath(RemotePath):
    """On the local disk."""

    scheme, system = "disk", "file"
