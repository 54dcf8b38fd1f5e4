"""Concise logging on standard error; third-party logs are suppressed."""

import logging as python_logging
import pathlib
import sys
from collections.abc import Callable

from absl import app, logging

TRAINERS = pathlib.Path(__file__).parents[1]
USER_ERRORS = (ValueError, OSError, AttributeError, KeyError, TypeError)  # raised for wrong flags of a configuration


def run(main: Callable[[list[str]], None]) -> None:
    """Runs a program as `app.run` does. Errors of a user are printed in one line, with exit status 2."""
    logging.set_verbosity(logging.INFO)
    handler = logging.get_absl_handler()
    handler.addFilter(_is_own_or_warning)
    handler.setFormatter(python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for library in ("tensorflow", "jax"):
        python_logging.getLogger(library).setLevel(python_logging.WARNING)
    app.run(lambda argv: _exit_on_error(main, argv, (ValueError, OSError)), flags_parser=_parse)


def _parse(argv):
    return _exit_on_error(app.parse_flags_with_usage, argv, USER_ERRORS)


def _exit_on_error(function, argv, errors):
    try:
        return function(argv)
    except errors as error:
        if logging.get_verbosity() >= logging.DEBUG:
            raise
        text, name = str(error), str(error).strip("\"'")
        if isinstance(error, KeyError | AttributeError) and name.isidentifier():
            text = f"{name} is not a setting; trainers/configs/base.py has all of them, with their meaning"
        print(f"error: {text}\n(--verbosity=1 shows where)", file=sys.stderr)
        sys.exit(2)


def _is_own_or_warning(record):
    # TFDS logs every file it opens through the same logger.
    return record.levelno >= python_logging.WARNING or TRAINERS in pathlib.Path(record.pathname).parents
