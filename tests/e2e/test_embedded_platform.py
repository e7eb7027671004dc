"""The embedded platform as a user meets it: started, used, broken, started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("e2e"),
    # httpcore leaves the closing of a connection that broke in the middle of an answer to the garbage collector, which
    # may come to it in any later test of this file.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TWO_WORKERS = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} sees {value.item()}", flush=True)
os.makedirs("/data/output/result", exist_ok=True) if os.path.isdir("/data/output") else None
dist.destroy_process_group()
"""


def child_pid(home: Path, module: str) -> int:
    """The pid of the supervised process that runs ``python -m module`` on ``home``."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[1:3] == [b"-m", module.encode()] and f"TRAINMASTER_HOME={home}".encode() in environ:
                return int(entry.name)
    raise AssertionError(f"no process runs {module} on {home}")


def script(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


def test_a_strangers_two_worker_script_runs_from_the_command_line(platform: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_WORKERS)
    done = platform.cli("run", "--workers", "2", "--name", "stranger", "--", "python", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 2 sees 3.0" in done.stdout
    assert "rank 1 of 2 sees 3.0" in done.stdout


def test_a_second_up_on_the_same_folder_says_where_the_first_one_is(platform: Any, embedded: Any) -> None:
    done = embedded("up", "--home", str(platform.home), "--port", "0")
    assert done.returncode == 6
    assert platform.url in done.stderr
    assert "trainmaster down" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_reported_with_what_to_do(tmp_path: Path, embedded: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = embedded("up", "--home", str(tmp_path / "home"), "--port", str(port))
    assert done.returncode == 1
    assert f"Port {port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, embedded: Any) -> None:
    (tmp_path / "file").write_text("")
    done = embedded("up", "--home", str(tmp_path / "file"), "--port", "0")
    assert done.returncode == 1
    assert "--home" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("TRAINMASTER_LEASE_TTL_S", "abc", "TRAINMASTER_LEASE_TTL_S"),
        ("TRAINMASTER_PROCESS_PORT_RANGE", "abc", "20000-29999"),
        ("TRAINMASTER_DATABASE_URL", "postgresql://x@127.0.0.1:1/x", "cannot be reached"),
        ("TRAINMASTER_DATABASE_URL", "nonsense", "TRAINMASTER_DATABASE_URL"),
    ],
)
def test_a_setting_that_cannot_be_used_is_reported_in_a_sentence(
    tmp_path: Path, embedded: Any, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, word: str
) -> None:
    monkeypatch.setenv(variable, value)
    done = embedded("up", "--home", str(tmp_path / "home"), "--port", "0")
    assert done.returncode == 1
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert "errors.pydantic" not in done.stderr
    assert "sqlalche.me" not in done.stderr


def test_the_data_folder_is_its_owners_alone(platform: Any) -> None:
    assert platform.home.stat().st_mode & 0o077 == 0


def test_the_login_link_works_once(own_platform: Any) -> None:
    up = json.loads((own_platform.home / "up.json").read_text())
    code = up["login_url"].partition("?code=")[2]
    body = json.dumps({"code": code}).encode()

    def spend(opener: urllib.request.OpenerDirector) -> Any:
        request = urllib.request.Request(
            f"{own_platform.url}/api/v1/session",
            body,
            {"Content-Type": "application/json", "Origin": own_platform.url},
            method="POST",
        )
        return opener.open(request, timeout=10)

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with spend(browser) as answer:
        assert answer.status == 201
    with browser.open(f"{own_platform.url}/api/v1/me", timeout=10) as answer:
        assert "admin" in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        spend(urllib.request.build_opener(urllib.request.HTTPCookieProcessor()))
    assert refused.value.code in (400, 401, 403, 404)
    refused.value.close()


def test_a_job_survives_the_death_of_api_and_scheduler_and_keeps_its_exit_code(
    own_platform: Any, tmp_path: Path, eventually: Any
) -> None:
    client = own_platform.client
    wait_for_file = (
        "import os,sys,time\nprint('started')\nwhile not os.path.exists(sys.argv[1]): "
        "time.sleep(0.05)\nsys.exit(int(sys.argv[2]))"
    )
    go = tmp_path / "go"  # not in the home, which no job sees
    jobs = {
        code: client.submit(
            {
                "name": f"exit-{code}",
                "command": [*script(wait_for_file), str(go), str(code)],
                "workers": 1,
                "max_restarts": 0,
            }
        )
        for code in (0, 7)
    }
    eventually(
        lambda: all(client.get_job(j.id).state == "running" for j in jobs.values()), within_s=30, what="both run"
    )
    for module in ("scheduler", "api"):
        os.kill(child_pid(own_platform.home, module), signal.SIGKILL)
    go.write_text("")
    eventually(lambda: client.get_job(jobs[0].id).state == "succeeded", within_s=40, what="the first succeeds")
    eventually(lambda: client.get_job(jobs[7].id).state == "failed", within_s=40, what="the second fails")
    failed = client.get_job(jobs[7].id)
    assert failed.exit is not None
    assert failed.exit.exit_code == 7
    for job in jobs.values():
        assert client.get_job(job.id).attempt_count == 1


def test_a_job_goes_on_while_the_platform_is_down_and_is_adopted(
    own_platform: Any, tmp_path: Path, launch: Any, embedded: Any, eventually: Any
) -> None:
    client = own_platform.client
    go = tmp_path / "go"  # not in the home, which no job sees
    waits = "import os,sys,time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\nprint('done')"
    job = client.submit({"name": "patient", "command": [*script(waits), str(go)], "workers": 1})
    eventually(lambda: client.get_job(job.id).state == "running", within_s=30, what="it runs")
    stopped = embedded("down", "--home", str(own_platform.home))
    assert stopped.returncode == 0
    assert json.loads(stopped.stdout) == {"live": ["patient"]}
    again = launch(own_platform.home)
    try:
        assert json.loads((own_platform.home / "up.json").read_text())["adopted"] == ["patient"]
        assert "attempt.adopted" in [event.kind for event in again.client.list_job_events(job.id)]
        go.write_text("")
        eventually(
            lambda: again.client.get_job(job.id).state == "succeeded", within_s=30, what="it is adopted and ends well"
        )
        assert again.client.get_job(job.id).attempt_count == 1
    finally:
        again.stop()


def test_no_orphan_survives_a_cancel(platform: Any, eventually: Any, processes_of: Any) -> None:
    client = platform.client
    hides = (
        "import os,signal,time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "print('hidden', flush=True)\n"
        "time.sleep(600)\n"
    )
    job = client.submit({"name": "hides", "command": script(hides), "workers": 2, "grace": {"stop": 1}})
    eventually(lambda: client.get_job(job.id).state == "running", within_s=30, what="it runs")
    marker = f"TRAINMASTER_JOB_ID={job.id}"
    eventually(lambda: len(processes_of(marker)) >= 4, within_s=20, what="daemons are there")
    client.cancel_job(job.id)
    eventually(lambda: client.get_job(job.id).state == "cancelled", within_s=30, what="it is cancelled")
    eventually(lambda: not processes_of(marker), within_s=10, what="nothing of it is left")


def test_a_supervisor_killed_with_9_leaves_nothing_that_hinders_the_next_start(
    own_platform: Any, launch: Any, eventually: Any, processes_of: Any
) -> None:
    home = f"TRAINMASTER_HOME={own_platform.home}"
    own_platform.client.begin_simulation(policy={"order": "fifo"})
    assert processes_of(home)
    port = int(own_platform.url.rsplit(":", 1)[1])
    own_platform.process.kill()
    own_platform.process.wait()

    def is_free() -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True

    eventually(is_free, within_s=20, what="the port is free again")
    eventually(lambda: not processes_of(home), within_s=20, what="no process of it is left")
    again = launch(own_platform.home, port=port)
    assert again.client.get_me().user == "admin"
    again.client.begin_simulation(policy={"order": "fifo"})
    again.stop()
    assert not processes_of(home)
