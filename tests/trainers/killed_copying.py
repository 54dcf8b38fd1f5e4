"""`tsa-train` with the scheme disk://, killed while it copies the file KILLED_COPYING."""

import os
import signal

from tests import remote_paths  # noqa: F401  # registers the scheme
from tf_sparse_attention import remote_files
from tf_sparse_attention.trainers import train

copy = remote_files._copy


def killed(source, target):
    """Copy a file, but only half of KILLED_COPYING."""
    if os.path.basename(str(source.name)) == os.environ.get("KILLED_COPYING"):
        target.write(source.read(1000))
        target.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return copy(source, target)


if __name__ == "__main__":
    remote_files._copy = killed
    train.run()
