"""How the programs speak: short lines with the time, on the error stream, and none of what libraries say in passing."""

import logging as python_logging
import pathlib
import sys

from absl import app, logging

TRAINERS = pathlib.Path(__file__).parents[1]
MISTAKES = (ValueError, OSError, AttributeError, KeyError, TypeError)  # what a wrong flag of a configuration raises


def run(main):
    """Runs a program as `app.run` does. What a user did wrong is told in one line, with exit status 2."""
    logging.set_verbosity(logging.INFO)
    handler = logging.get_absl_handler()
    handler.addFilter(_is_ours_or_grave)
    handler.setFormatter(python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for library in ("tensorflow", "jax"):
        python_logging.getLogger(library).setLevel(python_logging.WARNING)
    app.run(lambda argv: _told(main, argv, (ValueError, OSError)), flags_parser=_parse)


def _parse(argv):
    return _told(app.parse_flags_with_usage, argv, MISTAKES)


def _told(function, argv, mistakes):
    try:
        return function(argv)
    except mistakes as error:
        if logging.get_verbosity() >= logging.DEBUG:
            raise
        text, name = str(error), str(error).strip("\"'")
        if isinstance(error, KeyError | AttributeError) and name.isidentifier():
            text = f"{name} is not a setting; trainers/configs/base.py has all of them, with what they mean"
        print(f"error: {text}\n(--verbosity=1 shows where)", file=sys.stderr)
        sys.exit(2)


def _is_ours_or_grave(record):
    # TFDS logs every file it opens through the same logger.
    return record.levelno >= python_logging.WARNING or TRAINERS in pathlib.Path(record.pathname).parents
