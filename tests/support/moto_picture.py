"""What moto has at one time, to be put back as often as one likes."""

from __future__ import annotations

import copy
import copyreg
from typing import Any

from moto import backends
from moto.core.base_backend import BackendDict
from moto.ssm.models import ParameterDict


def _as_made(found: ParameterDict) -> tuple[Any, ...]:
    """Without its __init__, which no copy can call."""
    attributes = (found.__dict__, {"default_factory": found.default_factory})
    return ParameterDict.__new__, (ParameterDict,), attributes, None, iter(found.items())


copyreg.pickle(ParameterDict, _as_made)  # type: ignore[arg-type]


class Picture:
    """Of all that these services have when it is made."""

    def __init__(self, *services: str) -> None:
        found = {
            (service, account, region): backend
            for service in services
            for account, regions in backends.get_backend(service).items()  # type: ignore[call-overload]
            for region, backend in regions.items()
        }
        self._kept = copy.deepcopy(found)

    def restore(self) -> None:
        """Nothing else is there then, of no service."""
        BackendDict.reset()
        for (service, account, region), backend in copy.deepcopy(self._kept).items():
            backends.get_backend(service)[account][region] = backend  # type: ignore[call-overload]
