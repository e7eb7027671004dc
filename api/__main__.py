"""``python -m api``: serve with the settings of the environment."""

from __future__ import annotations

import argparse
import gc
import math
import resource
import socket
import sys

import uvicorn

from api.app.factory import create_app
from api.app.graceful_shutdown import DrainingServer
from api.app.unit_of_work import AppContext
from api.http.connections import AbortableConnection
from api.http.stream_process import start_stream_process
from core import telemetry
from core.settings import BadSettings, get_settings
from core.structured_log import configure_logging


def main(argv: list[str] | None = None) -> None:
    # The command takes no arguments; parsing refuses those meant for another one, such as `api.openapi --check`.
    argparse.ArgumentParser(
        prog="python -m api", description="Serve with the settings of the environment (TRAINMASTER_…)."
    ).parse_args(argv)
    # Routes and their models, some 270,000 objects, live for ever: collections while they are made find nothing and
    # take a fifth of the start's time.
    gc.disable()
    try:
        settings = get_settings()
        configure_logging(settings.log_level)
        app = create_app(settings)
        telemetry.configure("api")
    except BadSettings as error:
        sys.exit(str(error))
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=AbortableConnection,
        log_level=settings.log_level.lower(),
        log_config=None,  # uvicorn's lines go through the platform's own log format
        access_log=False,  # /metrics has rates and latencies; a line per request would cost more than the request
        server_header=False,
        timeout_keep_alive=65,
        # Streams end at once; this waits for uploads and slow readers.
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace_s),
    )
    # Not Config(fd=…): uvicorn would take the socket for a Unix one, and each small answer would wait for Nagle's
    # timer.
    AbortableConnection.limit = settings.connections_per_address
    _allow_open_files()
    sockets = [socket.socket(fileno=int(fd)) for fd in settings.listen_fds.split(",") if fd] or None
    # Each later full collection would stop the process 0.13 s, and copy the memory that forked processes share.
    gc.freeze()
    streams = start_stream_process(app, config, sockets or ())
    context: AppContext = app.state.context
    context.request_metrics.other_process = streams.collect
    AbortableConnection.stream_process = streams
    server = DrainingServer(config, app.state.shutdown, streams.end_streams)
    gc.enable()
    server.run(sockets=sockets)
    streams.end_streams()
    streams.wait(settings.shutdown_grace_s)
    if not server.started:
        sys.exit(3)


def _allow_open_files() -> None:
    """As many as this process may: each connection is one, and shells allow 1,024 by default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
