"""The command ``python -m probes serve``: a server that answers questions and reports confidences."""

from __future__ import annotations

import asyncio
import socket
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from extract.errors import InputError, at_least_one
from extract.running.exit import Terminated
from probes.saved.artefact import load_probe
from probes.saved.scoring import load_model_of

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from probes.serving.engine import Engine

API_KEY = "CONFIDENCE_PROBES_API_KEY"
#: Maximum time in seconds to end unfinished answers after a signal.
CLOSING_SECONDS = 5


def serve(
    probe: str,
    model: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    served_model_name: str | None = None,
    max_batch_size: int = 32,
    max_queue: int = 256,
    api_key_env: str = API_KEY,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    device_map: str | None = None,
) -> None:
    """Serve answers with confidences over an OpenAI-compatible HTTP API.

    The server runs until Ctrl-C or SIGTERM. Concurrent requests share forward passes of the model. See docs/serving.md.

    Args:
        probe: Folder or Hub id of a saved probe.
        model: Hub id or folder of the probe's model. The default is smollm2-135m-instruct, which `make install`
            installs.
        host: Address on which the server listens. If other machines can reach it, an API key is required.
        port: Port on which the server listens; 0 selects a free one.
        served_model_name: Name of the model in requests. The default is the model name saved in the probe.
        max_batch_size: Maximum number of questions or answers in one forward pass of the model.
        max_queue: Maximum number of waiting requests. Further requests are rejected with status 429.
        api_key_env: Environment variable with the API key that requests must contain.
        revision: Commit, branch or tag of a Hub model.
        dtype: auto (the dtype of the probe's model), float32, bfloat16 or float16.
        device: auto, cpu, cuda or cuda:N.
        device_map: How to distribute a large model over several devices, as in transformers (auto, balanced, …).

    Raises:
        InputError: If the probe or its model can't be loaded, an option is invalid, the port is in use, or a key is
            required but not set.
    """
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise InputError(
            f"Expected the `serve` extra to be installed, but {' and '.join(missing)} can't be imported. Run "
            "`pip install 'confidence-probes[serve]'`."
        )
    from probes.serving.access import is_loopback, read_key
    from probes.serving.app import create_app
    from probes.serving.engine import Engine

    at_least_one("max_batch_size", max_batch_size, 32)
    at_least_one("max_queue", max_queue, 256)
    key = read_key(api_key_env, api_key_env == API_KEY)
    if key is None and not is_loopback(host):
        raise InputError(
            f"Expected an API key, because other machines can reach the host {host!r}, but {api_key_env!r} is not set. "
            "Set this environment variable, or omit --host."
        )
    loaded = load_probe(probe)
    with bound_socket(host, port) as listener:
        engine = Engine(
            loaded,
            *load_model_of(loaded, model, revision, dtype, device, device_map),
            max_batch_size=max_batch_size,
            max_queue=max_queue,
        )
        try:
            engine.encode("Is the prompt template compatible with the model?")
            name = served_model_name or str(loaded.config["model"]["id"])
            app = create_app(engine, loaded, name, key, check_host=is_loopback(host))
            address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
            started = f"Serving {name} at {address}. Press Ctrl-C to stop."
            new_server(app, engine, started).run([listener])
        except KeyboardInterrupt as stop:
            print(f"Stopped by {'SIGTERM' if isinstance(stop, Terminated) else 'Ctrl-C'}.", file=sys.stderr)
        finally:
            engine.close(CLOSING_SECONDS)


def new_server(app: FastAPI, engine: Engine, started: str) -> uvicorn.Server:
    """Create a server that cuts off unfinished answers when it shuts down.

    When the server is ready, it prints `started` to standard error.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            try:
                await super().startup(sockets)
            except OSError as error:  # another server started at the same time and took the port
                raise InputError(
                    f"Expected `port` to be free, but the server can't listen on it: {error.strerror or error}. Choose "
                    "a different --port, or 0 for a free one."
                ) from None
            print(started, file=sys.stderr, flush=True)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.closing = True
            await asyncio.to_thread(engine.close, CLOSING_SECONDS)
            await super().shutdown(sockets)

    limits: dict[str, Any] = {"timeout_graceful_shutdown": CLOSING_SECONDS, "backlog": 1024}
    config = uvicorn.Config(
        app, lifespan="off", ws="none", log_level="warning", access_log=False, server_header=False, **limits
    )
    return Server(config)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a host and port. Raises InputError if the address is invalid or in use."""
    if not 0 <= port < 2**16:
        raise InputError(f"Expected `port` to be from 0 to 65535, but got {port}. 0 selects a free port.")
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise InputError(
            f"Expected `host` and `port` to be an available address, but port {port} on {host!r} can't be used: "
            f"{error.strerror or error}. Choose a different --port, or 0 for a free one."
        ) from None
    return bound
