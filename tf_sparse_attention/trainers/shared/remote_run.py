"""A work folder at an address such as gs://bucket/run: the run works in a local copy, and its checkpoints are copied.

In the remote folder are

- checkpoints/step_000001000/: the checkpoint, the small files that a run needs beside it, the metrics so far, and
  "manifest.json" with size and checksum of each, which is written last. A checkpoint counts if it has one;
- tensorboard/, and at the end metrics.jsonl and model.keras;
- what other programs write into a work folder: scores, samples and exports.
"""

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any

from absl import logging

from tf_sparse_attention import remote_files
from tf_sparse_attention.trainers.shared import damage, lock, workdir
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints
from tf_sparse_attention.trainers.shared.files import write_json

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "remote.json"  # in the local copy: which run it is of, and the last step that was copied


class LocalRun:
    """A work folder on a local disk, of which nothing is copied.

    Attributes:
        folder: where the run works.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder: Any = folder

    def fetch(self) -> None:
        """Copies the newest checkpoint that counts here, unless the local copy has one as new."""

    def upload(self, step: int) -> None:
        """Copies the checkpoint of a step to the address."""

    def finish(self, step: int) -> None:
        """Makes sure that the last checkpoint is at the address, and copies what is written at the end."""


class RemoteRun(LocalRun):
    """A work folder at an address.

    Args:
        address: as "gs://bucket/run", of a scheme that `etils.epath` knows.
        keep: number of newest checkpoints to keep there. Default 3.
    """

    def __init__(self, address: str | os.PathLike, keep: int = 3) -> None:
        super().__init__(remote_files.cache_folder(address))
        self.path, self.keep = remote_files.remote_path(address), keep
        self._checkpoints = Checkpoints(self.folder / workdir.CHECKPOINTS, keep)
        self._uploaded: int | None = None
        self._copied: dict[str, tuple[int, int]] = {}  # other files: size and time by name

    def fetch(self) -> None:
        """Copies the newest checkpoint that counts here, unless the local copy has one as new.

        Raises:
            ValueError: If all are damaged, or the local copy is of another run.
            RemoteError: If the address cannot be reached.
        """
        logging.info("The local copy of %s is %s.", self.path, self.folder)
        known, local, damaged = self._state(), self._newest_local(), []
        steps = self._steps()
        if known and not steps:
            raise ValueError(self._other_run("no checkpoint there"))
        for step in reversed(steps):
            try:
                manifest = self._manifest(step)
                if manifest is None:
                    continue  # half copied
                if known and known["run"] != manifest["run"]:
                    raise OtherRunError(self._other_run("another run there"))
                if step > local:
                    self._download(step, manifest["files"])
            except OtherRunError:
                raise
            except (ValueError, KeyError, TypeError) as error:
                logging.warning("The checkpoint of step %d is skipped: %s.", step, damage.reason_of(error))
                damaged.append(step)
                continue
            self._uploaded = step
            self._write_state(manifest["run"])
            return
        if damaged and local < 0:
            raise ValueError(
                "`workdir` must have a checkpoint that can be read; remove the folder to start again. "
                f"Received: {len(damaged)} damaged ones in {self.path}."
            )

    def upload(self, step: int) -> None:
        """Copies the checkpoint of a step to the address; a failure is logged, and the next call tries again."""
        try:
            self._upload(step)
        except OSError as error:
            logging.warning("Step %d is not copied, which the next checkpoint tries again: %s", step, error)

    def finish(self, step: int) -> None:
        """Makes sure that the checkpoint of the last step is at the address, and copies what is written at the end.

        Raises:
            RemoteError: If that fails, with where the local copy is.
        """
        try:
            if self._uploaded != step and self._checkpoints.path(step).exists():
                self._upload(step)
            self.upload_others((workdir.MODEL, workdir.METRICS, workdir.TENSORBOARD))
        except OSError as error:
            raise remote_files.RemoteError(
                f"The checkpoint of step {step} is in {self.folder}, but not all of it is in {self.path}; the same "
                f"command copies it. {error}"
            ) from error

    def upload_others(self, names: tuple[str, ...]) -> None:
        """Copies files, and folders with what is in them, that were written since they were copied, by name."""
        for name in names:
            path = self.folder / name
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            for file in (file for file in files if file.is_file()):
                self._upload_changed(file)

    def _upload_changed(self, file):
        status, name = file.stat(), file.relative_to(self.folder).as_posix()
        now = status.st_size, status.st_mtime_ns
        if self._copied.get(name) != now:
            remote_files.upload(file, self.path / name)
            self._copied[name] = now

    def _upload(self, step):
        folder = self._remote(step)
        self._remove(folder)  # what was half copied, or is damaged
        files = {}
        for path in self._files(step):
            files[path.name] = remote_files.upload(path, folder / path.name)._asdict()
        content = {"format": FORMAT, "run": self._run_id(), "step": step, "files": files}
        text = json.dumps({**content, "blake2b": _digest(content)}, indent=1)
        remote_files.write_bytes(folder / MANIFEST, text.encode())
        self._uploaded = step
        self._write_state(content["run"])
        self._remove_old(step)
        self.upload_others((workdir.TENSORBOARD,))

    def _files(self, step):
        """Returns the local files that a run goes on from."""
        sums = self.folder / workdir.CHECKSUMS
        small = [*workdir.read_json(self.folder, workdir.CHECKSUMS), workdir.CHECKSUMS] if sums.exists() else []
        files = [self.folder / name for name in (*small, workdir.METRICS)]
        return [*(path for path in files if path.exists()), self._checkpoints.path(step)]

    def _remove_old(self, step):
        """Removes all but the newest checkpoints that count."""
        older = [other for other in self._steps() if other <= step]
        counted = [other for other in older if remote_files.exists(self._remote(other) / MANIFEST)]
        for other in [other for other in older if other < counted[-self.keep :][0]]:
            self._remove(self._remote(other))

    def _remove(self, folder):
        """Removes a checkpoint, first the manifest without which it does not count."""
        for name in sorted(remote_files.names(folder), key=lambda name: name != MANIFEST):
            remote_files.remove(folder / name)
        with contextlib.suppress(Exception):  # in a bucket there are no folders, only names of files
            folder.rmdir()

    def _remote(self, step):
        return self.path / workdir.CHECKPOINTS / f"step_{step:09d}"

    def _steps(self):
        """Returns the steps of the checkpoints that begin to be there, in order."""
        found = (re.fullmatch(r"step_(\d+)", name) for name in remote_files.names(self.path / workdir.CHECKPOINTS))
        return sorted(int(match[1]) for match in found if match)

    def _manifest(self, step):
        """Returns the manifest of a step, None if it has none; a `ValueError` if it is damaged."""
        content = remote_files.read_bytes(self._remote(step) / MANIFEST)
        if content is None:
            return None
        manifest = json.loads(content)
        digest = manifest.pop("blake2b")
        if digest != _digest(manifest) or manifest["format"] != FORMAT:
            raise ValueError(f"{self._remote(step) / MANIFEST} is damaged")
        return manifest

    def _download(self, step, files):
        # The checkpoint is last in a manifest: where it is here, all that belongs to it is.
        for name in map(os.path.basename, files):
            target = self._checkpoints.path(step)
            target = target if name == target.name else self.folder / name
            remote_files.download(self._remote(step) / name, target, remote_files.Content(**files[name]))
        (self.folder / workdir.MODEL).unlink(missing_ok=True)  # of an earlier step
        self._checkpoints.remove_old(step)

    def _newest_local(self):
        """Returns the step of the newest checkpoint in the local copy, -1 if there is none."""
        try:
            return (self._checkpoints.newest_metadata() or {"step": -1})["step"]
        except ValueError:
            return -1

    def _state(self):
        return workdir.read_json(self.folder, STATE) if (self.folder / STATE).exists() else None

    def _run_id(self):
        return (self._state() or {"run": uuid.uuid4().hex})["run"]

    def _write_state(self, run):
        write_json(self.folder / STATE, {"address": str(self.path), "run": run})

    def _other_run(self, found):
        return (
            f"`workdir` must be the run that its local copy is of; remove {self.folder} if that is no longer needed. "
            f"Received: workdir={self.path}, with {found}."
        )


class OtherRunError(ValueError):
    """Raised where the local copy is of another run than that at the address."""


def open_run(address: str | os.PathLike, keep: int = 3) -> LocalRun:
    """Returns the `LocalRun` of a folder, or the `RemoteRun` of an address."""
    return RemoteRun(address, keep) if remote_files.is_remote(address) else LocalRun(address)


@contextlib.contextmanager
def reading(address: str | os.PathLike) -> Iterator[Any]:
    """Yields a local work folder for programs that read a run; what they write there is copied to its address.

    Args:
        address: a folder, which is yielded as it is, or an address, of which the newest checkpoint is fetched.

    Raises:
        ValueError: If there is no checkpoint that counts.
        RemoteError: If the address cannot be reached.
    """
    if not remote_files.is_remote(address):
        yield address
        return
    run = RemoteRun(address)
    run.fetch()
    if not (run.folder / workdir.CONFIG).exists():
        raise ValueError(f"`workdir` must hold a checkpoint with a manifest. Received: workdir={address}.")
    before = _results(run.folder)
    yield run.folder
    for name, files in _results(run.folder).items():
        if before.get(name) != files:
            _upload_result(run.folder / name, run.path / name)
            logging.info("Copied to %s.", run.path / name)


def _upload_result(source, target):
    if source.is_dir():
        remote_files.upload_folder(source, target, remote_files.SAVED_MODEL)
    else:
        remote_files.upload(source, target)


def _results(folder):
    """Returns what programs beside training write into a local copy: size and time of its files, by name."""
    own = {workdir.CHECKPOINTS, workdir.TENSORBOARD, workdir.METRICS, STATE, lock.NAME}
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, status = path.relative_to(folder).parts[0], path.stat()
        if name not in own and ".partial." not in name and not name.startswith("."):
            found.setdefault(name, []).append((str(path), status.st_size, status.st_mtime_ns))
    return found


def _digest(content):
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
