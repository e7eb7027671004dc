"""A container as a driver makes it, by the engine's command line alone: order, runtime, scratch folders."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from core.domain.ids import AttemptId, JobId
from core.domain.sharing.resources import ResourceRequest
from executors.base import MountOrder, ReplicaExit, ReplicaKey, ReplicaOrder
from executors.containers import names, paths
from executors.containers.exits import read_exit
from executors.containers.order_files import render_order

ROOT = Path(__file__).parents[3]
LABEL = "trainmaster.test=images"
PYTHON = "python:3.11-slim"
PLAIN_DOCKERFILE = """
FROM python:3.11-slim AS old
RUN rm -rf /usr/local/bin/python* /usr/local/lib/python* /usr/bin/python3*
FROM scratch
COPY --from=old / /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["sh", "-c", "echo I am the image"]
"""
BARE_DOCKERFILE = """
FROM {runtime} AS runtime
FROM scratch
COPY --from=runtime /trainmaster/runtime/busybox /tools/busybox
ENV PATH=/tools
"""


def docker(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    more.setdefault("check", False)
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=60, **more)  # noqa: PLW1510


@pytest.fixture(scope="session")
def engine() -> None:
    """Skips where there is no engine or no base image."""
    if shutil.which("docker") is None or docker("version", "-f", "{{.Server.Version}}").returncode != 0:
        pytest.skip("no Docker engine answers")
    if docker("image", "inspect", PYTHON).returncode != 0 and docker("pull", "-q", PYTHON).returncode != 0:
        pytest.skip(f"the engine has no {PYTHON} and cannot pull it")


def build(tag: str, context: Path, dockerfile: str | None = None, *, file: str = "Dockerfile") -> str:
    """``dockerfile``: the text of one, instead of the ``file`` in the context."""
    words = ["build", "--network", "host", "-q", "--label", LABEL, "-t", tag]
    source = "-" if dockerfile else str(context / file)
    done = docker(*words, "-f", source, str(context), input=dockerfile)
    assert done.returncode == 0, done.stderr
    return tag


@pytest.fixture(scope="session")
def suite(engine: None) -> Iterator[str]:
    """A name of this session's own. What carries it, and the images made with it, are removed."""
    name = "tm-images-" + uuid.uuid4().hex[:8]
    yield name
    left = docker("ps", "-aq", "--filter", f"label=trainmaster.suite={name}").stdout.split()
    if left:
        docker("rm", "-f", "-v", *left)
    images = docker("images", "-q", "--filter", f"reference={name}/*").stdout.split()
    if images:
        docker("rmi", "-f", *set(images))


@pytest.fixture(scope="session")
def runtime_image(suite: str) -> str:
    return build(f"{suite}/runtime", ROOT / "worker_images", file="runtime/Dockerfile")


@pytest.fixture(scope="session")
def runtime_files(runtime_image: str, suite: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime as it lies in its image, fetched by the image's own command."""
    folder = tmp_path_factory.mktemp("runtime") / "files"
    folder.mkdir()
    folder.chmod(0o777)
    done = docker("run", "--rm", "--label", f"trainmaster.suite={suite}", "-v", f"{folder}:/into", runtime_image)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def plain_image(suite: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian with a shell and all its tools, without Python."""
    return build(f"{suite}/plain", tmp_path_factory.mktemp("empty"), PLAIN_DOCKERFILE)


@pytest.fixture(scope="session")
def bare_image(suite: str, runtime_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One static program and nothing else: no shell at /bin/sh, no /etc/passwd, no /tmp."""
    return build(f"{suite}/bare", tmp_path_factory.mktemp("empty"), BARE_DOCKERFILE.format(runtime=runtime_image))


@dataclass
class Box:
    """One container and its folders on this machine."""

    name: str
    folder: Path
    order: ReplicaOrder
    code: int | None = None

    @property
    def output(self) -> Path:
        return self.folder / "output"

    @property
    def log(self) -> str:
        """Without the lines' times."""
        return "".join(line.partition(" ")[2] for line in self.raw_log.splitlines(keepends=True))

    @property
    def raw_log(self) -> str:
        key = self.order.key
        path = self.output / ".trainmaster/logs" / key.job_id / "1" / f"{key.role}-{key.index}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def exit(self) -> ReplicaExit:
        record = read_exit((self.folder / "state/exit.json").read_bytes())
        assert record is not None
        return record

    @property
    def message(self) -> bytes:
        return (self.folder / "termination").read_bytes()

    def wait(self) -> Box:
        self.code = int(docker("wait", self.name, check=True).stdout)
        return self

    def kill(self, signal: str) -> None:
        docker("kill", "-s", signal, self.name, check=True)


Run = Callable[..., Box]


@pytest.fixture
def run(suite: str, runtime_files: Path, tmp_path: Path) -> Run:
    """``run(image, command, …)``: started, and waited for unless ``wait=False``.

    ``options`` are words for ``docker run``; the rest are fields of the order. ``uid`` of ``None``: the image's user.
    ``gang``: the first replica of an attempt, of which this is the second; they share the output.
    """

    def start(
        image: str,
        command: Any = None,
        *,
        uid: int | None = 1000,
        wait: bool = True,
        options: tuple[str, ...] = (),
        image_command: tuple[str, ...] | None = None,
        code: Path | None = None,
        gang: Box | None = None,
        log_limit_bytes: int = 0,
        **fields: Any,
    ) -> Box:
        number = uuid.uuid4().hex[:12]
        key = ReplicaKey(JobId(f"job-{number}"), AttemptId(f"att-{number}"), "worker", 0)
        if gang is not None:
            key = replace(gang.order.key, index=1)
        values = {
            "args": (),
            "env": {},
            "process_env": ({},),
            "request": ResourceRequest(),
            "stop_grace": timedelta(seconds=5),
            "peers_grace": timedelta(seconds=5),
        }
        order = ReplicaOrder(
            key=key,
            job_name="test",
            attempt_number=1,
            node="n",
            image=image,
            command=command,
            mounts=(MountOrder("", "/data/output", read_only=False),),
            **{**values, **fields},
        )
        folder = tmp_path / number
        for name in ("state", "order", "scratch", "asked", "output"):
            (folder / name).mkdir(parents=True)
        if gang is not None:
            (folder / "output").rmdir()
            (folder / "output").symlink_to(gang.output)
        for name in ("output", "state", "scratch"):
            (folder / name).chmod(0o777)
        (folder / "asked/stop").touch()
        (folder / "termination").touch()
        (folder / "termination").chmod(0o666)
        files = render_order(
            order,
            image_command=image_command,
            code_path=paths.CODE if code else None,
            termination_path=paths.TERMINATION_LOG,
            log_limit_bytes=log_limit_bytes,
        )
        for name, content in files.items():
            (folder / "order" / name).write_bytes(content)
        binds = [
            f"{runtime_files}:{paths.RUNTIME}:ro",
            f"{folder}/order:{paths.ORDER}:ro",
            f"{folder}/state:{paths.STATE}",
            *(f"{folder}/scratch:{target}" for target in paths.scratch_folders(order) if target != paths.STATE),
            f"{(folder / 'output').resolve()}:/data/output",
            f"{folder}/asked:{paths.REQUESTS}:ro",
            f"{folder}/termination:{paths.TERMINATION_LOG}",
            *([f"{code}:{paths.CODE}:ro"] if code else []),
        ]
        user = () if uid is None else ("--user", f"{uid}:{uid}")
        # A bridge of the engine's is nobody's need here, and not there on every machine.
        network = () if "--network" in options else ("--network", "none")
        program, *rest = paths.entry()
        done = docker(
            *("run", "-d", "--name", names.replica_name(key), "--label", f"trainmaster.suite={suite}"),
            *("--hostname", names.host_name(key.role, key.index)),
            *(word for bind in binds for word in ("-v", bind)),
            *user,
            *network,
            *("--entrypoint", program),
            *options,
            image,
            *rest,
        )
        assert done.returncode == 0, done.stderr
        box = Box(names.replica_name(key), folder, order)
        return box.wait() if wait else box

    return start


class CodeApi:
    """What hands out code, on a port of its own. ``troubles``: what goes wrong first, one per request."""

    def __init__(self, content: bytes, troubles: list[str]) -> None:
        api = self
        self.served: list[str] = []  # the Range of each request
        self.reported: list[dict[str, Any]] = []
        self.report_status = 200

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.served.append(self.headers.get("Range", ""))
                assert self.path == "/api/v1/runtime/code"
                assert self.headers["Authorization"] == "Bearer t0ken"
                trouble = troubles.pop(0) if troubles else ""
                if trouble.isdigit():
                    self.send_error(int(trouble))
                    return
                start = int(self.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.send_header("ETag", '"one"')
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                self.end_headers()
                self.wfile.write(content[start : len(content) // 2 if trouble == "half" else None])

            def do_POST(self) -> None:
                assert self.path == "/api/v1/runtime/report"
                assert self.headers["Authorization"] == "Bearer t0ken"
                assert self.headers["Content-Type"] == "application/json"
                api.reported.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                answer = b'{"code": "attempt_ended"}' if api.report_status == 410 else b'{"acked": 0}'
                self.send_response(api.report_status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def code_api() -> Iterator[Callable[..., CodeApi]]:
    apis: list[CodeApi] = []

    def serve(content: bytes, *, troubles: list[str]) -> CodeApi:
        apis.append(CodeApi(content, troubles))
        return apis[-1]

    yield serve
    for api in apis:
        api.close()
