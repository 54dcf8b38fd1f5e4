"""Old names that are accepted for one more release, with a warning."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warns that a name is an old one; by default on behalf of the caller of the function that calls this."""
    message = f"`{old}` is now `{new}`; the next release will refuse the old name."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def renamed_keys(settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return settings with new names in place of old ones, without a warning: for configs in files.

    Args:
        settings: settings by name.
        names: the new name of each old one.
    """
    return {names.get(name, name): value for name, value in settings.items()}


def renamed_arguments(**names: str) -> Callable[[Function], Function]:
    """Return a decorator of a function that may also be called with old names of its arguments: `old="new"`."""

    def decorate(function):
        @functools.wraps(function)
        def accepting(*args, **kwargs):
            for old, new in names.items():
                if old in kwargs:
                    renamed(old, new)
                    if new in kwargs:
                        raise ValueError(f"`{new}` must be given once. Received: `{old}`, its old name, as well.")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        # Keras looks for `self` in that of a layer's constructor.
        setattr(accepting, "__signature__", inspect.signature(function))  # noqa: B010
        return accepting

    return decorate


def renamed_method(old: str, new: str) -> Callable[..., Any]:
    """Return a method under its old name, which calls the one under the new name."""

    def method(self, *args, **kwargs):
        renamed(old, new)
        return getattr(self, new)(*args, **kwargs)

    method.__name__ = old
    method.__doc__ = f"Old name of `{new}`."
    return method


def renamed_attributes(**names: str) -> Callable:
    """Return a decorator of a class whose attributes may also be read under old names: `old="new"`.

    The old names are no properties: Keras reads those of a layer when it saves one, and each time they would warn.
    """

    def decorate(cls):
        inherited = getattr(cls, "__getattr__", object.__getattribute__)  # which raises the error of the first attempt

        def __getattr__(self, name):
            if name not in names:
                return inherited(self, name)
            renamed(name, names[name])
            return getattr(self, names[name])

        cls.__getattr__ = __getattr__
        return cls

    return decorate
