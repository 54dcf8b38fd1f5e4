"""Behavior that all commands share: help without a backend, concise logs, one-line errors, exit statuses."""

import contextlib
import errno
import logging as python_logging
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from absl import app, flags, logging

TRAINERS = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = TRAINERS / "configs"
BASE = str(CONFIGS / "base.py")
# `flags.Error` is from absl; the other errors are from configuration files.
FLAG_ERRORS = (flags.Error, ValueError, OSError, AttributeError, KeyError, TypeError)
# Errors that users can fix, unless `mark_faults` has marked them as internal errors.
USER_ERRORS = (ValueError, OSError, ImportError)
# Prefix that ml_collections adds to an error of a configuration file, such as an unknown variant.
CONFIG_TRACEBACK = re.compile(r"Error whilst parsing config file:\s+Traceback.*\n[\w.]+: ", re.DOTALL)
# Text that Keras adds around the error of a layer: its name and the arguments of its call.
KERAS_CALL = re.compile(r"Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m.*", re.DOTALL)
# Advice for files that cannot be read or written.
DISK_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room on this disk"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "choose a folder with read and write permission"),
}
FULL_HELP = {"-helpfull", "--helpfull"}
HELP = {"-h", "-help", "--help", "-helpshort", "--helpshort", *FULL_HELP}
WRONG_COMMAND = 2  # exit status; docs/training.md lists all


def run(name: str, main: Callable[[], None]) -> None:
    """Run a command with `app.run`.

    Help, the docstring and the flags of the module `name`, is printed without importing a backend. Errors that users
    can fix are printed in one line, internal errors with a traceback. Only `main` imports modules that need a backend.
    """
    if HELP & set(sys.argv[1:]):
        listed = flags.FLAGS.get_help() if FULL_HELP & set(sys.argv[1:]) else flags.FLAGS.module_help(name)
        print(f"{(sys.modules[name].__doc__ or '').strip()}\n{listed}")
        sys.exit(0)
    logging.set_verbosity(logging.INFO)
    handler = logging.get_absl_handler()
    handler.addFilter(_is_own_or_warning)
    handler.setFormatter(python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for library in ("tensorflow", "jax"):
        python_logging.getLogger(library).setLevel(python_logging.WARNING)

    def start(argv):
        del argv  # only the name of the command
        from tf_sparse_attention.backends import check_backend

        check_backend()
        main()

    app.run(
        lambda argv: _exit_on_error(start, argv, USER_ERRORS),
        flags_parser=lambda argv: _exit_on_error(_read_flags, argv, FLAG_ERRORS),
    )


@contextlib.contextmanager
def mark_faults() -> Iterator[None]:
    """Mark errors in this block as internal errors. Use it after all settings are checked.

    `run` then shows a traceback and exits with status 1. Errors that users can fix are not marked: full or read-only
    disks, damaged data, unreachable addresses, and errors with a separate exit status.
    """
    from tf_sparse_attention.data.array_store import DamagedDataError
    from tf_sparse_attention.remote_files import RemoteError

    try:
        yield
    except (ValueError, OSError) as error:
        is_disk_error = isinstance(error, OSError) and error.errno in DISK_ADVICE
        if not (is_disk_error or isinstance(error, DamagedDataError | RemoteError) or hasattr(error, "exit_status")):
            error.is_fault = True  # type: ignore[union-attr]
        raise


def _read_flags(argv):
    """Parse flags and return the remaining arguments."""
    if "config" in flags.FLAGS:
        argv[1:] = sys.argv[1:] = with_config_files(argv[1:])  # `config_flags` reads `sys.argv`
    rest = flags.FLAGS(argv)
    if len(rest) > 1:
        raise ValueError(f"All arguments must be flags. Received: {' '.join(rest[1:])}.")
    return rest


def _exit_on_error(function, argv, errors):
    try:
        return function(argv)
    except errors as error:
        if logging.get_verbosity() >= logging.DEBUG or getattr(error, "is_fault", False):
            raise
        text = _error_text(error)
        if isinstance(error, OSError) and error.errno in DISK_ADVICE:
            text = f"{text}: {DISK_ADVICE[error.errno]}, and run the same command again"
        text = KERAS_CALL.sub(r"\1", CONFIG_TRACEBACK.sub("", text)).strip()
        print(f"error: {text}\n(--verbosity=1 shows where)", file=sys.stderr)
        sys.exit(getattr(error, "exit_status", WRONG_COMMAND))


def _error_text(error):
    """Return the text of an error. For unknown settings, explain ml_collections' text, which is only the name."""
    inner = error
    while isinstance(inner, KeyError | AttributeError) and inner.args:
        inner = inner.args[0]  # an argument of an error can be another error
    text = str(inner)
    name, _, similar = text.partition("\n")
    name = name.strip("\"'")
    if isinstance(error, KeyError | AttributeError) and name.isidentifier():
        text = f"{name} is not a setting. trainers/configs/base.py describes all settings. {similar}"
    return text.strip()


def _is_own_or_warning(record):
    # TFDS logs every opened file to the same logger.
    return record.levelno >= python_logging.WARNING or TRAINERS in pathlib.Path(record.pathname).parents


def with_config_files(arguments: Sequence[str]) -> list[str]:
    """Replace the name of a configuration in --config by its path. Return all arguments."""
    resolved: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if flag in ("-config", "--config"):
            found = find_config(value if equals else next(rest, ""))
            if not pathlib.Path(found.partition(":")[0]).is_file():
                ours = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.py") if path.stem != "__init__"))
                raise ValueError(f"`--config` must be a file, or one of {ours}. Received: --config={found}.")
            argument = f"--config={found}"
        resolved.append(argument)
    return resolved


def find_config(text: str) -> str:
    """Return FILE[:VARIANT] of an existing file, or of the configuration in `trainers/configs` with that name."""
    name, colon, variant = text.partition(":")
    path = pathlib.Path(name)
    ours = CONFIGS / f"{path.stem}.py"
    is_ours = path.parent == pathlib.Path() or path.parts[-3:-1] == ("trainers", "configs")
    if not path.is_file() and is_ours and ours.is_file():
        name = str(ours)
    return f"{name}{colon}{variant}"
