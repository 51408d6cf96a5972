"""A base class for wrappers that behave like the wrapped object."""

from __future__ import annotations

from typing import Any


class Proxy:
    """
    A stand-in for `inner`. Every attribute that a subclass of Proxy does not define is read from `inner`. This includes
    `__class__`, so `isinstance` sees the class of `inner`. Setting an attribute sets it on `inner`.
    """

    _inner: Any

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "_inner", inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # during unpickling in a worker
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    def __reduce__(self) -> Any:
        return type(self), (self._inner,)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._inner)
