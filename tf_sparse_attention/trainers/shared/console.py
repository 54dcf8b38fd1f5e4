"""The command line of the programs: help without a backend, concise logging, errors of one line, exit statuses."""

import errno
import logging as python_logging
import os
import pathlib
import re
import sys
import types
from collections.abc import Callable

from absl import app, flags, logging

from tf_sparse_attention.trainers.shared import config_files, settings_help
from tf_sparse_attention.trainers.shared.quiet import quiet_imports

TRAINERS = pathlib.Path(__file__).resolve().parents[1]
# Raised for wrong flags: the first by absl, the others by a configuration.
FLAG_ERRORS = (flags.Error, ValueError, OSError, AttributeError, KeyError, TypeError)
# Raised by the programs for what a user can fix, unless they are marked as faults, see `faults.marked`.
USER_ERRORS = (ValueError, OSError, ImportError)
# What ml_collections puts before the error of a configuration, such as that of a variant it lacks.
CONFIG_TRACEBACK = re.compile(r"Error whilst parsing config file:\s+Traceback.*\n[\w.]+: ", re.DOTALL)
# What Keras writes around the error of a layer: which one, and the arguments of its call on lines of their own.
KERAS_CALL = re.compile(r"Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m.*", re.DOTALL)
# What to do where a file cannot be read or written.
DISK_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room on this disk"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "choose a folder in which you may read and write"),
}
FULL_HELP = {"-helpfull", "--helpfull"}
HELP = {"-h", "-help", "--help", "-helpshort", "--helpshort", *FULL_HELP}
WRONG_COMMAND, NOT_CAUSAL, INTERRUPTED = 2, 3, 130
EXIT_STATUSES = {
    0: "done",
    1: "a fault of the program, with a traceback",
    WRONG_COMMAND: "a wrong command, setting or file, in one line; of tsa-audit: nothing can be concluded",
    NOT_CAUSAL: "of tsa-audit: the model is not causal",
    4: "of tsa-train: loss or weights are no longer finite; the last good checkpoint is kept",
    5: "of tsa-train: another worker of the run is gone; all have to be started again",
    129: "ended by a closed terminal (SIGHUP), likewise",
    INTERRUPTED: "ended by Ctrl-C; training leaves a checkpoint, generation the samples and evaluation the sums so far",
    143: "ended by SIGTERM, likewise",
}


def run(name: str, main: Callable[[], None]) -> None:
    """Runs a program as `app.run` does.

    Help is printed before any backend is imported, with exit status 0: --help is a page, --helpfull has all. Errors of
    a user are printed in one line, faults of the program with their traceback.

    Args:
        name: the `__name__` of its module, whose docstring and flags are its help.
        main: the program, once its flags are read. It imports what needs a backend itself.
    """
    sys.argv[1:] = config_files.with_files(sys.argv[1:])
    if HELP & set(sys.argv[1:]):
        print(help_of(sys.modules[name], bool(FULL_HELP & set(sys.argv[1:]))))
        sys.exit(0)
    logging.set_verbosity(logging.INFO)
    handler = logging.get_absl_handler()
    handler.addFilter(_is_own_or_warning)
    handler.setFormatter(python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for library in ("tensorflow", "jax"):
        python_logging.getLogger(library).setLevel(python_logging.WARNING)

    def start(argv):
        del argv  # the name of the program alone
        import_backends()
        main()

    app.run(lambda argv: _exit_on_error(start, argv, USER_ERRORS), flags_parser=_parse)


def import_backends() -> None:
    """Imports Keras and the backends without the lines that say nothing."""
    with quiet_imports():
        from tf_sparse_attention.backends import check_backend, has_tensorflow

        check_backend()
        reads_by_tensorflow = has_tensorflow()  # of the data pipeline on every backend, where it is installed
        import keras

        if reads_by_tensorflow and keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.list_physical_devices()


def help_of(module: types.ModuleType, is_full: bool) -> str:
    """Returns what a program does, with examples, and its flags; in full also its settings and its exit statuses."""
    parts = [(module.__doc__ or "").strip()]
    own = _flags_of(module, is_setting=False)
    parts.append("Flags:\n" + settings_help.table(own, max(len(name) for name, _, _ in own) + 4))
    settings = _flags_of(module, is_setting=True)
    if not is_full:
        what = "the settings (--config.SECTION.NAME=VALUE) and the exit statuses"
        what = what if settings or "config" in flags.FLAGS else "the exit statuses"
        return _without_folder("\n\n".join([*parts, f"--helpfull lists {what} too."]))
    if settings:
        parts.append("Settings:\n" + settings_help.table(settings))
    if "config" in flags.FLAGS:
        parts.append(settings_help.describe(sys.argv[1:]))
    parts.append("Exit status:\n" + "\n".join(f"  {status:<5}{text}" for status, text in EXIT_STATUSES.items()))
    return _without_folder("\n\n".join(parts))


def _without_folder(text):
    return text.replace(str(TRAINERS.parent) + os.sep, "")


def _flags_of(module, is_setting):
    """Returns name, default and meaning of the flags of a program: its own, or those that override settings."""
    found = flags.FLAGS.get_key_flags_for_module(module.__name__)
    named = sorted((flag.name, flag) for flag in found)
    return [
        # A whole configuration as a default has its settings listed elsewhere.
        (f"--{name}", None if hasattr(flag.default, "keys") else flag.default, flag.help)
        for name, flag in named
        if is_setting == name.startswith("config.")
    ]


def _parse(argv):
    return _exit_on_error(_read_flags, argv, FLAG_ERRORS)


def _read_flags(argv):
    """Returns what of a command is no flag: the name of the program."""
    if "config" in flags.FLAGS:
        config_files.check_files(argv[1:])
    rest = flags.FLAGS(argv)
    if len(rest) > 1:
        raise ValueError(f"No arguments are expected beside flags. Received: {' '.join(rest[1:])}.")
    return rest


def _exit_on_error(function, argv, errors):
    try:
        return function(argv)
    except errors as error:
        if logging.get_verbosity() >= logging.DEBUG or getattr(error, "is_fault", False):
            raise
        text = _text_of(error)
        if isinstance(error, OSError) and error.errno in DISK_ADVICE:
            text = f"{text}: {DISK_ADVICE[error.errno]}, and give the same command again"
        text = KERAS_CALL.sub(r"\1", CONFIG_TRACEBACK.sub("", text)).strip()
        print(f"error: {text}\n(--verbosity=1 shows where)", file=sys.stderr)
        sys.exit(getattr(error, "exit_status", WRONG_COMMAND))


def _text_of(error):
    """Returns what an error says, and of a setting that does not exist, of which ml_collections says the name, more."""
    inner = error
    while isinstance(inner, KeyError | AttributeError) and inner.args:
        inner = inner.args[0]  # maybe another error, whose text would be in quotes
    text = str(inner)
    name, _, similar = text.partition("\n")
    name = name.strip("\"'")
    if isinstance(error, KeyError | AttributeError) and name.isidentifier():
        text = f"{name} is not a setting; trainers/configs/base.py has all of them, with their meaning. {similar}"
    return text.strip()


def exit_status(error: BaseException) -> int:
    """Returns the exit status of a program that an error ends while it runs, see `EXIT_STATUSES`."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    is_of_user = isinstance(error, USER_ERRORS) and not getattr(error, "is_fault", False)
    return getattr(error, "exit_status", WRONG_COMMAND if is_of_user else 1)


def _is_own_or_warning(record):
    # TFDS logs every file it opens through the same logger.
    return record.levelno >= python_logging.WARNING or TRAINERS in pathlib.Path(record.pathname).parents
