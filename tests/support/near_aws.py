"""
Makes AWS on this machine answer sooner: what botocore sends to an application of this process arrives there without a
connection, and botocore and moto compute once what stays the same. Requests of other processes, and those to S3, whose
bodies are streams, go through a connection as ever.
"""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.client import ClientCreator
from botocore.hooks import EventAliaser, HierarchicalEmitter
from botocore.httpsession import URLLib3Session
from botocore.loaders import JSONFileLoader
from botocore.session import Session
from moto import backends
from moto.core import responses

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_applications: dict[str, Application] = {}
"""By their addresses."""


def answer_near(url: str, application: Application) -> None:
    """Let `application`, which also has a server at `url`, answer this process by itself."""
    _shorten()
    _applications[url] = application


def answer_near_no_longer(url: str) -> None:
    _applications.pop(url, None)


class _Raw(io.BytesIO):
    """What AWSResponse reads an answer from."""

    def stream(self) -> Iterable[bytes]:
        yield self.read()


@functools.cache
def _shorten() -> None:
    through_connection, methods_of = URLLib3Session.send, ClientCreator._create_methods
    register_all = Session._register_builtin_handlers
    methods: dict[tuple[str, str], dict[str, Any]] = {}
    handlers: list[HierarchicalEmitter] = []

    def send(session: URLLib3Session, request: AWSPreparedRequest) -> AWSResponse:
        address = urlsplit(request.url)
        application = _applications.get(f"{address.scheme}://{address.netloc}")
        if application is None or "/s3/aws4_request" in _text(request.headers.get("Authorization", "")):
            return through_connection(session, request)
        status, headers, body = _answer(application, request)
        return AWSResponse(request.url, status, headers, _Raw(body))

    def create_methods(creator: ClientCreator, model: Any) -> dict[str, Any]:
        """EC2 has 800 of them. They are the same for all clients of a service."""
        key = model.service_name, model.api_version
        if key not in methods:
            methods[key] = methods_of(creator, model)
        return dict(methods[key])

    def register(session: Session, _: EventAliaser) -> None:
        """The 350 handlers that each session has."""
        if not handlers:
            register_all(session, session._events)
            handlers.append(session._original_handler)
        session._original_handler = copy.copy(handlers[0])
        session._events = EventAliaser(session._original_handler)

    load = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
    JSONFileLoader.load_file = lambda _, path: load(path)  # each session would read the models of its services anew
    URLLib3Session.send = send
    ClientCreator._create_methods = create_methods
    Session._register_builtin_handlers = register
    names = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: names
    responses.method_names_from_class = functools.cache(responses.method_names_from_class)


def _answer(application: Application, request: AWSPreparedRequest) -> tuple[int, dict[str, str], bytes]:
    address = urlsplit(request.url)
    body = request.body or b""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else body.read()
    asked = {name: _text(value) for name, value in request.headers.items()}
    environ = {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": unquote(address.path) or "/",
        "QUERY_STRING": address.query,
        "REQUEST_URI": request.url,
        "SERVER_NAME": address.hostname,
        "SERVER_PORT": str(address.port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_LENGTH": str(len(data)),
        "CONTENT_TYPE": asked.get("Content-Type", ""),
        "HTTP_HOST": address.netloc,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": address.scheme,
        "wsgi.input": io.BytesIO(data),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in asked.items()}
    begun: list[tuple[int, dict[str, str]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], _: object = None) -> None:
        begun.append((int(status.split()[0]), dict(headers)))

    answer = b"".join(application(environ, start_response))
    return *begun[0], answer


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
