"""Run directories at an address such as gs://bucket/run. The run uses a temporary folder and uploads its results.

The remote folder has

- checkpoints/step_000001000.npz: a checkpoint with all other files for resuming a run;
- tensorboard/, and at the end of the run metrics.jsonl and model.keras;
- files of other commands: scores, samples and exports.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from absl import logging

from tf_sparse_attention import remote_files
from tf_sparse_attention.trainers.shared import workdir
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints, damaged_error, parse_step


class LocalRun:
    """Run directory in the local `folder`."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder: Any = folder

    def files(self) -> list[pathlib.Path]:
        """Return the files to include in a checkpoint: none, since they stay in the folder."""
        return []

    def fetch(self) -> None:
        """Download the newest checkpoint."""

    def upload(self, step: int) -> None:
        """Upload the checkpoint of a step."""

    def finish(self, step: int) -> None:
        """Upload the final files, and the checkpoint of the last step if necessary."""


class RemoteRun(LocalRun):
    """Run directory at an address such as "gs://bucket/run", with a temporary local folder.

    The newest `keep` checkpoints are kept at the address. If the run is only read, calls with the same newest
    checkpoint have the same local folder, so that interrupted evaluations resume.
    """

    def __init__(self, address: str | os.PathLike, keep: int = 3, is_read: bool = False) -> None:
        self.path, self.keep = remote_files.remote_path(address), keep
        if is_read:
            version = remote_files.stat_all(self.path / workdir.CHECKPOINTS)
            super().__init__(remote_files.cache_folder(f"{address}/{sorted(version.items())[-1:]}"))
            self.folder.mkdir(parents=True, exist_ok=True)
        else:
            super().__init__(pathlib.Path(tempfile.mkdtemp(prefix="tsa-run-")))
        self._checkpoints = Checkpoints(self.folder / workdir.CHECKPOINTS)
        self._uploaded: int | None = None

    def files(self) -> list[pathlib.Path]:
        sums = self.folder / workdir.CHECKSUMS
        small = [*workdir.read_json(self.folder, workdir.CHECKSUMS), workdir.CHECKSUMS] if sums.exists() else []
        return [path for name in (*small, workdir.METRICS) if (path := self.folder / name).exists()]

    def fetch(self) -> None:
        """Download the newest complete checkpoint, if any, with the files of the run."""
        steps = self._steps()
        for step in reversed(steps):
            path = self._checkpoints.path(step)
            if not path.exists():
                remote_files.download(self._remote(step), path)
            if self._checkpoints.read_metadata(step) is not None:
                self._checkpoints.extract_files(step, self.folder)
                self._uploaded = step
                return
            path.unlink()
        if steps:
            raise damaged_error(len(steps), self.path)

    def upload(self, step: int) -> None:
        """Upload the checkpoint of a step. Log a warning on failure."""
        try:
            self._upload(step)
        except OSError as error:
            logging.warning("Upload of the checkpoint of step %d failed: %s", step, error)

    def _upload(self, step):
        remote_files.upload(self._checkpoints.path(step), self._remote(step))
        self._uploaded = step
        for old in [other for other in self._steps() if other <= step][: -self.keep]:
            remote_files.remove(self._remote(old))
        self._upload_all(workdir.TENSORBOARD)

    def finish(self, step: int) -> None:
        """Upload the final files, and the checkpoint of the last step if necessary. Delete the local folder.

        Raises:
            RemoteError: If an upload fails. The local folder is kept.
        """
        try:
            if self._uploaded != step and self._checkpoints.path(step).exists():
                self._upload(step)
            for name in (workdir.MODEL, workdir.METRICS, workdir.TENSORBOARD):
                self._upload_all(name)
        except OSError as error:
            raise remote_files.RemoteError(
                f"The checkpoint of step {step} is only in {self.folder}. Copy it to {self.path}, or run the same "
                f"command again to resume from the last uploaded checkpoint. {error}"
            ) from error
        shutil.rmtree(self.folder)

    def _upload_all(self, name):
        """Upload a file or all files of a folder, if it exists."""
        path = self.folder / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                remote_files.upload(file, self.path / file.relative_to(self.folder).as_posix())

    def _remote(self, step):
        return self.path / workdir.CHECKPOINTS / self._checkpoints.path(step).name

    def _steps(self):
        steps = map(parse_step, remote_files.names(self.path / workdir.CHECKPOINTS))
        return sorted(step for step in steps if step is not None)


def open_run(address: str | os.PathLike, keep: int = 3) -> LocalRun:
    """Return the `LocalRun` of a folder, or the `RemoteRun` of an address."""
    return RemoteRun(address, keep) if remote_files.is_remote(address) else LocalRun(address)


@contextlib.contextmanager
def reading(address: str | os.PathLike) -> Iterator[Any]:
    """Yield a local run directory for commands that read a run. At the end, upload files that they wrote.

    A folder is yielded unchanged. The newest checkpoint at an address is downloaded.
    """
    if not remote_files.is_remote(address):
        yield address
        return
    with contextlib.ExitStack() as stack:
        run = RemoteRun(address, is_read=True)
        try:
            stack.enter_context(workdir.hold_lock(run.folder))
        except ValueError:  # another command is reading the same checkpoint
            run = RemoteRun(address)
        yield from _read(run, address)
        shutil.rmtree(run.folder, ignore_errors=True)


def _read(run, address):
    """Fetch the newest checkpoint, yield the local folder, and upload the files that were written to it."""
    run.fetch()
    if not (run.folder / workdir.CONFIG).exists():
        raise ValueError(f"`workdir` must hold a checkpoint. Received: workdir={address}.")
    fetched = {workdir.CHECKPOINTS, workdir.LOCK, *(path.name for path in run.files())}
    yield run.folder
    for path in run.folder.iterdir():
        if path.name not in fetched and ".partial." not in path.name and not path.name.startswith("."):
            if path.is_dir():
                remote_files.upload_folder(path, run.path / path.name, remote_files.SAVED_MODEL)
            else:
                remote_files.upload(path, run.path / path.name)
            logging.info("Uploaded to %s.", run.path / path.name)
