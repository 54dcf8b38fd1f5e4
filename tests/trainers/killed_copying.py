"""`tsa-train` with the scheme disk://, killed while it copies the file KILLED_COPYING."""

import os
import shutil
import signal
import types

from tests import remote_paths  # noqa: F401  # registers the scheme
from tf_sparse_attention import remote_files
from tf_sparse_attention.trainers import train


def killed(source, target, length):
    """Copy a file, but only half of KILLED_COPYING."""
    if os.path.basename(str(source.name)) == os.environ.get("KILLED_COPYING"):
        target.write(source.read(1000))
        target.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return shutil.copyfileobj(source, target, length)


if __name__ == "__main__":
    remote_files.shutil = types.SimpleNamespace(copyfileobj=killed)
    train.run()
