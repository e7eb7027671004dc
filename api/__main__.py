"""``python -m api``: serve with the settings of the environment."""

from __future__ import annotations

import argparse
import gc
import math
import socket
import sys

import uvicorn

from api.app.factory import create_app
from api.app.graceful_shutdown import DrainingServer
from api.http.connections import AbortableConnection
from core.settings import BadSettings, get_settings
from core.structured_log import configure_logging


def main(argv: list[str] | None = None) -> None:
    # It takes none: whoever gives one means something else than a server, such as `python -m api.openapi --check`.
    argparse.ArgumentParser(
        prog="python -m api", description="Serve with the settings of the environment (TRAINMASTER_…)."
    ).parse_args(argv)
    try:
        settings = get_settings()
        configure_logging(settings.log_level)
        app = create_app(settings)
    except BadSettings as error:
        sys.exit(str(error))
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=AbortableConnection,
        log_level=settings.log_level.lower(),
        log_config=None,  # as everybody else's lines
        access_log=False,  # /metrics tells rates and latencies; a line per request would cost more than the request
        server_header=False,
        timeout_keep_alive=65,
        # Streams end at once; what this waits for are uploads and slow readers.
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace_s),
    )
    # Not Config(fd=…): that takes the socket for a Unix one, and every small answer then waits for Nagle's timer.
    sockets = [socket.socket(fileno=int(fd)) for fd in settings.listen_fds.split(",") if fd] or None
    server = DrainingServer(config, app.state.shutdown)
    # Routes and their models, some 270,000 objects, stay: each full look for garbage would stop all answers for 0.13 s.
    gc.freeze()
    server.run(sockets=sockets)
    if not server.started:
        sys.exit(3)


if __name__ == "__main__":
    main()
