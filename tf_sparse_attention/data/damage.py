"""The error for prepared data that are damaged."""

import os


class DamagedDataError(ValueError):
    """Raised for prepared data that are not as they were written."""


def message(remove: str | os.PathLike, found: str) -> str:
    """Return the message about damaged data: what to delete, and what was found."""
    return f"Prepared data must be as they were written; delete {remove} to prepare them again. Received: {found}."
