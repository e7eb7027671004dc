"""A TensorBoard in a process of its own: ``python -m api.tensorboard.viewer``, started by the API.

It serves on a Unix socket in a folder that only the platform's user may enter, so that no port is open: network access
goes through the API. It reads its configuration from its input, and ends when that is closed: the kernel closes it when
the API dies, for any reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from api.tensorboard.event_files import SCHEME, EmptyFileSystem, EventFileSystem
from core.storage.tree import Tree

_NICE: Final = 10
_OPEN_FILES: Final = 1024
_STACK_BYTES: Final = 2**20  # of each thread that answers a request
_RELOAD_S: Final = 5
# Polyfills for what browsers deny to a page with an opaque origin: storage and cookies, workers from a URL (which is of
# another origin, so an inline worker imports the script), and requests with credentials.
_SHIM_PATH: Final = "/trainmaster-stand-ins.js"
_SHIM: Final = b"""(function () {
  for (const name of ["localStorage", "sessionStorage"]) {
    const kept = new Map();
    Object.defineProperty(window, name, {value: {
      getItem: (key) => kept.has(String(key)) ? kept.get(String(key)) : null,
      setItem: (key, value) => { kept.set(String(key), String(value)); },
      removeItem: (key) => { kept.delete(String(key)); },
      clear: () => { kept.clear(); },
      key: (place) => [...kept.keys()][place] ?? null,
      get length() { return kept.size; },
    }});
  }
  Object.defineProperty(Document.prototype, "cookie", {get: () => "", set: () => {}});
  Object.defineProperty(XMLHttpRequest.prototype, "withCredentials", {get: () => false, set: () => {}});
  window.Worker = class extends Worker {
    constructor(address, options) {
      const script = `importScripts(${JSON.stringify(new URL(address, document.baseURI).href)});`;
      super(URL.createObjectURL(new Blob([script], {type: "text/javascript"})), options);
    }
  };
})();
"""

_Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def main() -> None:
    order = json.loads(sys.stdin.readline())
    _limit(order["memory_bytes"])
    threading.Thread(target=_end_with_input, args=(order["socket"],), daemon=True).start()
    app = _make_app(order["outputs"])
    _serve(order["socket"], _with_stand_ins(app))


def _limit(memory_bytes: int) -> None:
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    # It writes no file; its socket does not count as one.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    threading.stack_size(_STACK_BYTES)


def _end_with_input(socket: str) -> None:
    sys.stdin.buffer.read()
    # The API, which would clean up, may be dead.
    with contextlib.suppress(OSError):
        Path(socket).unlink(missing_ok=True)
        Path(socket).parent.rmdir()
    os._exit(0)


def _make_app(outputs: list[dict[str, str]]) -> _Wsgi:
    """``outputs``: the name, the volume's root and the path there of each job's output."""
    # With this module, TensorBoard uses its own TensorFlow stub, even if TensorFlow is installed: the stub's file
    # system can be replaced, and it starts in a tenth of the time.
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
    from tensorboard import default, program
    from tensorboard.backend import application
    from tensorboard.backend.event_processing import data_ingester
    from tensorboard.compat.tensorflow_stub import errors
    from tensorboard.compat.tensorflow_stub.io import gfile
    from tensorboard.plugins.debugger_v2 import debugger_v2_plugin

    trees = {str(number): Tree(output["root"], output["base"]) for number, output in enumerate(outputs)}
    gfile.register_filesystem(SCHEME, EventFileSystem(trees, errors))
    gfile.register_filesystem("", EmptyFileSystem(errors))
    # Only TensorBoard's own plugins: other installed ones might open any file.
    plugins = [output for output in default.get_static_plugins() if output is not debugger_v2_plugin.DebuggerV2Plugin]
    spec = ",".join(f"{output['name']}:{SCHEME}://{number}" for number, output in enumerate(outputs))
    board = program.TensorBoard(plugins=plugins)
    board.configure(
        argv=(
            "",
            f"--logdir_spec={spec}",
            "--load_fast=false",  # the fast loader opens a port of its own
            f"--reload_interval={_RELOAD_S}",
            "--reload_multifile=true",
            "--window_title=TensorBoard",
        )
    )
    ingester = data_ingester.LocalDataIngester(board.flags)
    ingester.start()
    app: _Wsgi = application.TensorBoardWSGIApp(
        board.flags,
        board.plugin_loaders,
        ingester.data_provider,
        board.assets_zip_provider,
        ingester.deprecated_multiplexer,
    )
    return app


def _with_stand_ins(app: _Wsgi) -> _Wsgi:
    """``app`` with the polyfills loaded first in its main page."""

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == _SHIM_PATH:
            start_response("200 OK", [("Content-Type", "text/javascript"), ("Content-Length", str(len(_SHIM)))])
            return [_SHIM]
        if path not in ("", "/", "/index.html"):
            return app(environ, start_response)
        environ.pop("HTTP_ACCEPT_ENCODING", None)
        response: list[Any] = []

        def capture(status: str, headers: list[tuple[str, str]], _error: object = None) -> Callable[[bytes], None]:
            response[:] = [status, headers]
            return lambda _data: None

        page = b"".join(app(environ, capture))
        page = page.replace(b"<head>", b'<head><script src="' + _SHIM_PATH[1:].encode() + b'"></script>', 1)
        page = page.replace(b"url(/font-roboto/", b"url(font-roboto/")  # TensorBoard's only URL that is not relative
        headers = [(name, value) for name, value in response[1] if name.lower() != "content-length"]
        start_response(response[0], [*headers, ("Content-Length", str(len(page)))])
        return [page]

    return serve


def _serve(socket: str, app: _Wsgi) -> None:
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 (the base's name)
            """No line for each request: its address is a secret."""

    server = make_server(f"unix://{socket}", 0, app, threaded=True, request_handler=Quiet)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
