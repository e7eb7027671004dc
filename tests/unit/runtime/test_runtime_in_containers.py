"""What only containers need: the short copy of the exit record, the code by HTTP, the container's own count of
kills.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from trainmaster_runtime import cgroups, code_archive
from trainmaster_runtime.record import write_copy

CONTENT = bytes(range(256)) * 2000


def record(**changes: Any) -> dict[str, Any]:
    ended = {"cause": "exited", "exit_code": 1, "sentence": "It failed.", "at": "2026-11-21T07:00:00.123456Z"}
    return {**ended, "log_tail": "", "facts": {}, **changes}


@pytest.mark.parametrize(
    "tail",
    [
        "short",
        "\n".join(f"line {n}" for n in range(2000)),
        "\n".join('"\\' * 20 for _ in range(200)),
        "\n".join("ü€😀" * 10 for _ in range(100)),
        "x" * 4096,
        "\x01\x02\n" * 1300,
    ],
)
def test_the_copy_fits_and_keeps_the_last_lines(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "termination"
    path.touch()
    write_copy(str(path), record(log_tail=tail, facts={"pids": list(range(500))}))
    text = path.read_bytes()
    assert len(text) <= 4096
    data = json.loads(text)
    assert (data["cause"], data["exit_code"], data["sentence"]) == ("exited", 1, "It failed.")
    assert tail.endswith(data["log_tail"])
    if len(tail.splitlines()) > 1:
        assert data["log_tail"].splitlines()[-1] == tail.splitlines()[-1]


def test_a_copy_that_cannot_be_written_is_let_pass(tmp_path: Path) -> None:
    write_copy(str(tmp_path / "no/such/folder"), record())


@pytest.mark.parametrize(
    ("own_folder", "name"),
    [("memory", "memory.oom_control"), ("unified", "memory.events")],
    ids=["version 1", "version 2"],
)
def test_kills_are_counted_in_the_containers_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_folder: str, name: str
) -> None:
    (tmp_path / name).write_text("oom 3\noom_kill_disable 0\noom_kill 2\n")
    monkeypatch.setattr(cgroups, "own_groups", lambda: {own_folder: str(tmp_path)})
    assert cgroups.own_oom_kills() == 2
    monkeypatch.setattr(cgroups, "own_groups", dict)
    assert cgroups.own_oom_kills() is None


class Api:
    """``answers``: what each request gets: a status, or how many bytes before it breaks off; then all is well."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.ranges: list[str | None] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.ranges.append(self.headers.get("Range"))
                answer = api.answers.pop(0) if api.answers else 10**9
                if 400 <= answer < 600:
                    self.send_response(answer)
                    self.end_headers()
                    self.wfile.write(b'{"detail": "The job was submitted without code."}')
                    return
                wanted = self.headers.get("Range") if self.headers.get("If-Range") == '"one"' else None
                start = int(wanted[6:-1]) if wanted else 0
                self.send_response(206 if wanted else 200)
                self.send_header("ETag", '"one"')
                self.send_header("Content-Length", str(len(CONTENT) - start))
                self.end_headers()
                self.wfile.write(CONTENT[start : start + answer])

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def api() -> Iterator[Callable[..., Api]]:
    made: list[Api] = []

    def make(*answers: int) -> Api:
        made.append(Api(*answers))
        return made[-1]

    yield make
    for item in made:
        item.server.shutdown()
        item.thread.join()
        item.server.server_close()


def get(url: str, path: Path, **more: Any) -> list[str]:
    log_text: list[str] = []
    code_archive.fetch(url, "t", str(path), say=log_text.append, wait=lambda _: None, **more)
    return log_text


def test_the_code_comes_in_pieces_and_each_byte_once(tmp_path: Path, api: Callable[..., Api]) -> None:
    server = api(503, 100_000, 502, 50_000)
    log_text = get(server.url, tmp_path / "code")
    assert (tmp_path / "code").read_bytes() == CONTENT
    assert server.ranges == [None, None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]
    assert all("does not arrive" in line for line in log_text)


def test_a_refusal_ends_it_with_the_apis_own_words(tmp_path: Path, api: Callable[..., Api]) -> None:
    with pytest.raises(code_archive.CodeAway, match="The job was submitted without code"):
        get(api(404).url, tmp_path / "code")


def test_an_api_that_stays_away_is_given_up_in_the_end(tmp_path: Path) -> None:
    with pytest.raises(code_archive.CodeAway, match="did not arrive within 0 s"):
        get("http://127.0.0.1:1", tmp_path / "code", patience_s=0)


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def wait(_: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        code_archive.fetch("http://127.0.0.1:1", "t", str(tmp_path / "code"), say=lambda _: None, wait=wait)


def test_the_interface_is_the_one_that_carries_the_address_whatever_its_name():
    from trainmaster_runtime.prepare import own_interface

    assert own_interface(["127.0.0.1"]) == "lo"
    assert own_interface(["192.0.2.1"]) is None


def test_horovods_processes_get_the_interface_and_a_named_one_stays(monkeypatch):
    from types import SimpleNamespace

    from trainmaster_runtime import prepare
    from trainmaster_runtime.cgroups import Groups

    monkeypatch.setattr(prepare, "own_interface", lambda: "ens5")
    prepared = prepare.PreparedReplica(job_folder="/nowhere", cwd="/", view=None, paths=None, groups=Groups({}, 1))
    address = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "worker-0"}
    extras = [address, {**address, "HOROVOD_GLOO_IFACE": "ib0"}, {}]
    order = SimpleNamespace(
        env={}, process_env=extras, command=["true"], args=[], view="as_is", mark="m", world=None, library=None
    )
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)
    reported = [program.env.get("HOROVOD_GLOO_IFACE") for program in prepared.programs(order)]
    assert reported == ["ens5", "ib0", None]
