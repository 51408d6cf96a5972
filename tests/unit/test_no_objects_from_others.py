"""Nothing that comes from another process is unpickled, and no program of ours listens at all addresses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.repository import ROOT

PACKAGE = ROOT / "spotrun"
OF_OBJECTS = frozenset(
    {
        *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
        *("recv_object_list", "send_object_list"),
    }
)
"""Collectives of torch and accelerate that unpickle what other ranks send."""
RUN_CODE = frozenset(
    {
        *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open"),
        *("dill.load", "dill.loads", "cloudpickle.load", "cloudpickle.loads", "joblib.load", "yaml.load"),
        *("multiprocessing.connection", "multiprocessing.managers", "multiprocessing.Manager"),
    }
)
READS_WITHOUT_RUNNING = {"exactness/pickled.py": "pickle.Unpickler"}
"""Its find_class makes a class of its own for each name."""
LISTEN = frozenset({"bind", "create_server", "HTTPServer", "ThreadingHTTPServer", "TCPServer", "__init__"})
ALL_ADDRESSES = frozenset({"", "0.0.0.0", "::"})
LISTENS_FOR_CLOUD_RUN = "night/server.py"
"""Runs in a container of its own, where Cloud Run alone reaches it and has asked who calls."""


WORTH_READING = re.compile(
    r"object_list|gather_object|pickle|marshal|shelve|dill|joblib|[.]load\b|multiprocessing|bind\(\(|create_server|HTTPServer|TCPServer|__init__\(\("
)
"""To read all files as Python takes seconds. Of a source without any of these words nothing is found."""


def findings(source: str) -> Iterator[str]:
    """Name what in the source runs the code of others, or listens at all addresses."""
    if not WORTH_READING.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Name):
            name = ast.unparse(node)
            if name.rpartition(".")[2] in OF_OBJECTS or name in RUN_CODE:
                yield name
        elif isinstance(node, ast.ImportFrom):
            names = {each.name for each in node.names} | {f"{node.module}.{each.name}" for each in node.names}
            yield from names & (OF_OBJECTS | RUN_CODE)
            yield from {str(node.module)} & RUN_CODE
        elif isinstance(node, ast.Import):
            yield from {each.name for each in node.names} & RUN_CODE
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(call: ast.Call) -> Iterator[str]:
    words = {word.arg: word.value for word in call.keywords}
    match ast.unparse(call.func):
        case "torch.load" if ast.unparse(words.get("weights_only", ast.Constant(False))) != "True":
            yield "torch.load"
        case "np.load" | "numpy.load" if ast.unparse(words.get("allow_pickle", ast.Constant(False))) != "False":
            yield "np.load"
    for given in call.args:
        if ast.unparse(call.func).rpartition(".")[2] not in LISTEN:
            break
        match given:
            case ast.Tuple(elts=[ast.Constant(value=str(host)), _]) if host in ALL_ADDRESSES:
                yield f"listens at {host!r}"


@pytest.mark.exhaustive
def test_no_module_runs_what_another_process_sends() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), what) for path in PACKAGE.rglob("*.py") for what in findings(path.read_text())
    }
    assert found == {*READS_WITHOUT_RUNNING.items(), (LISTENS_FOR_CLOUD_RUN, "listens at ''")}


@pytest.mark.parametrize(
    "source",
    [
        "dist.all_gather_object(boxes, mine)",
        "from torch.distributed import gather_object",
        "torch.distributed.broadcast_object_list([x], 0, group=g)",
        "pickle.loads(data)",
        "from pickle import loads",
        "from multiprocessing.connection import Listener",
        "import multiprocessing.managers",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "sock.bind(('', 0))",
        "socket.create_server(('0.0.0.0', port))",
    ],
)
def test_each_way_to_do_so_is_found(source: str) -> None:
    assert list(findings(source))
