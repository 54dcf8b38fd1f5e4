"""How the programs speak: short lines with the time on the error stream, and nothing of what libraries log in passing."""

import logging as python_logging

from absl import logging


def start():
    """Sets the form of log lines. Call it before `app.run`, whose flag --verbosity may still change the level."""
    logging.set_verbosity(logging.INFO)
    logging.get_absl_handler().setFormatter(python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
