"""The lock of a run directory."""

import errno
import fcntl
import os
import socket
import subprocess
import sys

import pytest

from tf_sparse_attention.trainers.shared import lock


def test_a_folder_of_a_running_training_is_an_error_with_its_process(tmp_path):
    expected = rf"no other training runs.*, in use by process {os.getpid()} on {socket.gethostname()}\."
    with lock.hold_lock(tmp_path), pytest.raises(ValueError, match=expected), lock.hold_lock(tmp_path):
        pass
    with lock.hold_lock(tmp_path):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path):
    # Without the package, which takes seconds to import.
    program = f"import fcntl, os; f = open({str(tmp_path / lock.FILE_NAME)!r}, 'a+'); fcntl.flock(f, fcntl.LOCK_EX); "
    subprocess.run([sys.executable, "-c", program + "os.kill(os.getpid(), 9)"], check=False)
    with lock.hold_lock(tmp_path):
        pass


def test_a_file_system_without_locks_logs_a_warning(tmp_path, monkeypatch, caplog):
    def flock(file, how):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock.hold_lock(tmp_path):
        pass
    assert "cannot be locked ([Errno 95] Operation not supported)" in caplog.text
