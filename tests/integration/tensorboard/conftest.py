"""A real API process with two jobs that wrote event files, and the real TensorBoard."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from trainmaster.spec import parse_spec

from core.db.bootstrap import prepare_home
from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.tables import Job, Project, User
from core.domain.sharing.resources import gang_of
from core.settings import Settings
from migrations import upgrade

ROOT = Path(__file__).parents[3]
WITHIN_S = 120.0


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("TensorBoard is not installed: pip install -e '.[tensorboard]'")


def write_scalars(folder: Path, tag: str, values: list[float]) -> Path:
    """An event file of one scalar."""
    return _write_values(
        folder, [_field(1, 2, tag.encode()) + _field(2, 5, struct.pack("<f", value)) for value in values]
    )


def write_image(folder: Path, tag: str) -> Path:
    """An event file of one picture, of two by two pixels."""
    size = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(bytes([0, 9, 200, 0, 90, 3]))), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    image = bytes([0x08, 2, 0x10, 2, 0x18, 1]) + _field(4, 2, png)  # height, width, grey
    return _write_values(folder, [_field(1, 2, tag.encode()) + _field(4, 2, image)])


def _write_values(folder: Path, values: list[bytes]) -> Path:
    """As TensorFlow and torch write it: one of ``values`` at each step, in records with length and checksums around
    them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "events.out.tfevents.1.host"
    events = [_field(1, 1, struct.pack("<d", 1.0)) + _field(3, 2, b"brain.Event:2")]
    for step, value in enumerate(values):
        wall_time = _field(1, 1, struct.pack("<d", 1000.0 + step))
        events.append(wall_time + bytes([0x10, step]) + _field(5, 2, _field(1, 2, value)))
    path.write_bytes(b"".join(_record(event) for event in events))
    return path


def _field(number: int, kind: int, data: bytes) -> bytes:
    # https://protobuf.dev/programming-guides/encoding/; all lengths here are below 2**14
    length = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    return bytes([number << 3 | kind]) + (length if kind == 2 else b"") + data


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    # CRC-32C, masked as https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details says
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def eventually(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WITHIN_S
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return value


@dataclass
class Served:
    """An API process on a port of its own, with its admin's token."""

    process: subprocess.Popen[bytes]
    url: str
    token: str
    output: Path
    jobs: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return httpx.request(method, f"{self.url}{path}", timeout=WITHIN_S, **more)

    def as_admin(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def link(self, *names: str) -> str:
        answer = self.ask("POST", "/api/v1/tensorboards", json={"jobs": list(names)}, headers=self.as_admin())
        assert answer.status_code == 201, answer.text
        path: str = answer.json()["path"]
        return path

    def shown(self, link: str, run: str, tag: str = "loss") -> list[float]:
        """The values of a scalar, as soon as TensorBoard has read them."""

        def look() -> Any:
            answer = self.ask("GET", f"{link}data/plugin/scalars/scalars", params={"run": run, "tag": tag})
            assert answer.status_code in (200, 404), answer.text
            return answer.json() if answer.status_code == 200 else None

        return [point[2] for point in eventually(look, f"{run} does not show")]

    def children(self) -> list[int]:
        """The TensorBoards that this API has started."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        pids = [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
        return [pid for pid in pids if b"api.tensorboard.viewer" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """``serve(idle_s=…, limit=…)``: the API with jobs ``one`` and ``two``; each wrote ``logs/`` with a loss."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*, idle_s: float = 600.0, limit: int = 2) -> Served:
        home = tmp_path / "home"
        home.mkdir()
        settings = Settings(home=home)
        upgrade(settings.resolved_database_url)
        engine = make_engine(settings.resolved_database_url)
        prepare_home(make_sessions(engine), settings, datetime.now(UTC))
        output = home / "output"
        output.mkdir(exist_ok=True)
        jobs = {name: _add_job(make_sessions(engine), name) for name in ("one", "two")}
        engine.dispose()
        for number, name in enumerate(jobs):
            write_scalars(output / "default" / jobs[name] / "logs", "loss", [1.0 + number, 0.5])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {
            **os.environ,
            "TRAINMASTER_HOME": str(home),
            "TRAINMASTER_PORT": str(port),
            "TRAINMASTER_TENSORBOARD_IDLE_S": str(idle_s),
            "TRAINMASTER_TENSORBOARD_LIMIT": str(limit),
        }
        env.pop("TRAINMASTER_DATABASE_URL", None)
        with (home / "api.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", "api"], cwd=ROOT, env=env, stdout=log, stderr=log)
        started.append(process)
        served = Served(process, f"http://127.0.0.1:{port}", (home / "token").read_text().strip(), output, jobs)

        def is_up() -> bool:
            assert process.poll() is None, (home / "api.log").read_text()
            with suppress(httpx.HTTPError):
                return served.ask("GET", "/api/v1/live").status_code == 200
            return False

        eventually(is_up, "the API does not answer")
        return served

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()


def _add_job(sessions: SessionFactory, name: str) -> str:
    spec = parse_spec({"name": name, "command": "true"})
    gang = gang_of(spec)
    now = datetime.now(UTC)
    with unit_of_work(sessions) as session:
        project = session.execute(select(Project).where(Project.name == "default")).scalar_one()
        job = Job(
            id=f"job-{name}",
            project_id=project.id,
            user_id=session.execute(select(User.id).where(User.name == "admin")).scalar_one(),
            name=name,
            spec=spec.model_dump(mode="json"),
            gang=gang.to_json(),
            shape=gang.shape(),
            state="succeeded",
            priority=0,
            output_volume="output",
            output_path=f"default/job-{name}",
            created_at=now,
            queued_at=now,
            updated_at=now,
        )
        session.add(job)
    return f"job-{name}"
