"""Each test in this folder runs in a process of its own, with the simulated accelerator (toy.py)."""

from __future__ import annotations

from functools import partial

import pytest

from tests.device.build import missing


@pytest.fixture(autouse=True)
def _library() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    from tests.device.apart import fault_in_fresh_process  # with torch, which takes a second to import

    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if fault := fault_in_fresh_process(partial(pyfuncitem.obj, **arguments)):
        pytest.fail(fault, pytrace=False)
    return True
