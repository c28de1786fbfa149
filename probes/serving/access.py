"""Access checks for requests: host name, API key, content type and body size."""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from extract.errors import InputError
from probes.serving.protocol import RequestError, to_json

#: Maximum size of a request's body in bytes.
MAX_BODY = 2**20
#: Maximum time for receiving a body, in seconds.
BODY_SECONDS = 30.0
#: Paths that need no key.
OPEN_PATHS = ("/", "/health")

App = Any


def is_loopback(host: str) -> bool:
    """Whether a host is reachable only from this machine.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_key(variable: str, is_default: bool, environment: Mapping[str, str] = os.environ) -> str | None:
    """Read the API key from an environment variable, or return None if the default variable is not set.

    Raises:
        InputError: If the variable is empty, if a non-default variable is not set, or if the key can't be sent in an
            HTTP header.
    """
    key = environment.get(variable)
    if not key and (not is_default or key == ""):
        raise InputError(
            f"Expected the environment variable {variable!r} to contain the API key, but it is "
            f"{'not set' if key is None else 'empty'}. Set it, or omit --api_key_env."
        )
    if key and not re.fullmatch(r"[!-~]+", key):  # the message must not contain the key
        raise InputError(
            f"Expected the API key in {variable!r} to consist of printable ASCII characters without spaces, but it "
            "contains other characters. Choose a different key."
        )
    return key


class Gate:
    """ASGI middleware that refuses requests with a wrong host name or key. During shutdown, it allows only ``/health``.

    If `check_host` is true, the `Host` header must name this machine. This check prevents DNS rebinding.
    """

    def __init__(self, app: App, api_key: str | None, check_host: bool) -> None:
        self._app, self._check_host = app, check_host
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except RequestError as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Any) -> None:
        headers = dict(scope["headers"])
        if self._check_host and not is_loopback(_hostname(headers.get(b"host", b"").decode("latin-1"))):
            message = "Expected the Host header to be localhost or a loopback address, but got a different name."
            raise RequestError(403, message, code="invalid_host")
        if scope["app"].state.closing and scope["path"] != "/health":
            raise closing()
        if self._key is None or scope["path"] in OPEN_PATHS:
            return
        given = headers.get(b"authorization")
        if given is None or not hmac.compare_digest(_sent_key(given), self._key):
            message = "Expected the Authorization header to be `Bearer KEY` with the server's API key, but "
            message += "it is missing." if given is None else "the key is wrong."
            raise RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _sent_key(header: bytes) -> bytes:
    """Return the key in an `Authorization` header: a bearer token, or the password of basic authentication.

    Clients use basic authentication if the URL has the form http://user:KEY@host.
    """
    scheme, _, value = header.partition(b" ")
    if scheme.lower() == b"bearer":
        return value
    with suppress(binascii.Error):
        return base64.b64decode(value, validate=True).partition(b":")[2] if scheme.lower() == b"basic" else b""
    return b""


def _hostname(header: str) -> str:
    """Return the host name in a `Host` header."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:]*))(?::\d*)?", header)
    return "" if found is None else (found[1] or found[2] or "").lower()


def closing() -> RequestError:
    """Return the error for new and unfinished requests during shutdown."""
    return RequestError(503, "The server is shutting down.", code="shutting_down")


def error_response(error: RequestError) -> Response:
    """Return an error as a response in OpenAI's format."""
    return Response(to_json(error.body()), error.status, error.headers, "application/json")


async def read_body(request: Request) -> bytes:
    """Read the body of a request.

    Raises:
        RequestError: If the body is too large, arrives too slowly or is not declared as JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # browsers prevent other sites from sending this type
        message = "Expected the Content-Type header to be application/json, but it is not."
        raise RequestError(415, message, code="unsupported_media_type")
    too_large = RequestError(
        413, f"Expected a body of at most {MAX_BODY:,} bytes, but it is larger. Send fewer questions.", code="too_large"
    )
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MAX_BODY:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise too_large
    except TimeoutError:
        message = f"Expected the body to arrive within {BODY_SECONDS:.0f} seconds, but it did not."
        raise RequestError(408, message, code="timeout", headers={"Connection": "close"}) from None
    return bytes(body)
