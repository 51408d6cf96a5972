"""A stand-in for another object that the code around it cannot tell from it."""

from __future__ import annotations

from typing import Any


class Proxy:
    """
    A stand-in for `inner`: what the subclass does not define is that object's own, `isinstance` included.

    Setting an attribute sets it on the object.
    """

    _inner: Any

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "_inner", inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # while it is being unpickled in a worker
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
