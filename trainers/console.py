"""How the programs speak: short lines with the time, on the error stream, and none of what libraries say in passing."""

import logging as python_logging
import pathlib

from absl import logging

HERE = pathlib.Path(__file__).parent


def start():
    """Sets the form of log lines. Call it before `app.run`, whose flag --verbosity may still change the level."""
    logging.set_verbosity(logging.INFO)
    handler = logging.get_absl_handler()
    handler.addFilter(_is_ours_or_grave)
    handler.setFormatter(python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for library in ("tensorflow", "jax"):
        python_logging.getLogger(library).setLevel(python_logging.WARNING)


def _is_ours_or_grave(record):
    # TFDS logs every file it opens through the same logger.
    return record.levelno >= python_logging.WARNING or pathlib.Path(record.pathname).parent == HERE
