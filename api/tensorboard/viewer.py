"""A TensorBoard in a process of its own: ``python -m api.tensorboard.viewer``, started by the API.

It serves on a Unix socket in a folder that only the platform's user may enter, so that no port is open: network access
goes through the API. It reads its configuration from its input, and ends when that is closed: the kernel closes it when
the API dies, for any reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import resource
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from core.domain.errors import TrainmasterError
from core.storage.tree import Tree

SCHEME: Final = "job"
# Folders without event files: the platform's own folder, and model files, which may be many.
_IGNORED: Final = frozenset({".trainmaster", "mlflow"})
_NAME_LIMIT: Final = 20_000  # of one folder
_DEPTH_LIMIT: Final = 12
_READ_LIMIT_BYTES: Final = 64 * 2**20  # bytes at once


@dataclass(frozen=True, slots=True)
class Length:
    """The part of stat(2) that TensorBoard uses."""

    length: int


class EventFileSystem:
    """``job://<number>/…``: the event files below output number ``<number>``."""

    def __init__(self, trees: Mapping[str, Tree], errors: Any) -> None:
        """``errors``: TensorBoard's error module, whose exceptions its readers expect."""
        self._trees = trees
        self._errors = errors

    def exists(self, filename: str | bytes) -> bool:
        try:
            tree, path = self._place(filename)
            return tree.exists(path)
        except TrainmasterError:
            return False

    def isdir(self, dirname: str | bytes) -> bool:
        try:
            tree, path = self._place(dirname)
            return tree.stat(path).is_dir
        except TrainmasterError:
            return False

    def listdir(self, dirname: str | bytes) -> list[str]:
        """Folders and event files in order of name, without links to folders, which could form a cycle."""
        tree, path = self._place(dirname)
        if path.count("/") >= _DEPTH_LIMIT:
            return []
        found: list[str] = []
        try:
            with tree.open_folder(path) as fd, os.scandir(fd) as entries:
                for entry in entries:
                    if len(found) >= _NAME_LIMIT:
                        break
                    if entry.name in _IGNORED or not entry.name.isprintable():
                        continue
                    if entry.is_dir(follow_symlinks=False) or "tfevents" in entry.name:
                        found.append(entry.name)
        except TrainmasterError as error:
            self._missing(error)
        return sorted(found)

    def stat(self, filename: str | bytes) -> Length:
        try:
            tree, path = self._place(filename)
            return Length(tree.stat(path).size_bytes)
        except TrainmasterError as error:
            self._missing(error)

    def read(
        self,
        filename: str | bytes,
        binary_mode: bool = False,
        size: int | None = None,
        continue_from: Mapping[str, int] | None = None,
    ) -> tuple[bytes | str, dict[str, int]]:
        start = continue_from["offset"] if continue_from is not None else 0
        try:
            tree, path = self._place(filename)
            fd = tree.open_file(path)
        except TrainmasterError as error:
            self._missing(error)
        try:
            data = os.pread(fd, min(_READ_LIMIT_BYTES, _READ_LIMIT_BYTES if size is None else size), start)
        finally:
            os.close(fd)
        return data if binary_mode else data.decode("utf-8", "replace"), {"offset": start + len(data)}

    def join(self, path: str, *paths: str) -> str:
        return posixpath.join(path, *paths)

    def glob(self, filename: object) -> list[str]:  # noqa: ARG002 (used for checkpoints only)
        return []

    def _place(self, filename: str | bytes) -> tuple[Tree, str]:
        text = filename.decode("utf-8", "surrogateescape") if isinstance(filename, bytes) else filename
        # Paths that went through os.path lose a slash.
        number, _, path = text.removeprefix(f"{SCHEME}:").lstrip("/").partition("/")
        tree = self._trees.get(number)
        if tree is None or not text.startswith(f"{SCHEME}:"):
            raise self._errors.NotFoundError(None, None, "there are event files of jobs alone")
        return tree, path

    def _missing(self, error: TrainmasterError) -> NoReturn:
        raise self._errors.NotFoundError(None, None, error.sentence) from error


class EmptyFileSystem:
    """Replaces the local disk, which paths in event folders may name: it is empty."""

    def __init__(self, errors: Any) -> None:
        self._errors = errors

    def exists(self, filename: object) -> bool:  # noqa: ARG002
        return False

    def isdir(self, dirname: object) -> bool:  # noqa: ARG002
        return False

    def glob(self, filename: object) -> list[str]:  # noqa: ARG002
        return []

    def join(self, path: str, *paths: str) -> str:
        return posixpath.join(path, *paths)

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object, **__: object) -> NoReturn:
            raise self._errors.NotFoundError(None, None, "there are event files of jobs alone")

        return refuse


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
