"""Registered models by the client and the command line, over the real application and the real registrar."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from trainmaster import Client
from trainmaster.cli.main import app as cli
from trainmaster.cli.terminal import session
from trainmaster.cli.terminal.exits import ExitCode
from trainmaster.errors import Conflict, LocalFileProblem, NotFound
from typer.testing import CliRunner, Result

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Job
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.registrar import Registrar

FILES = {"weights.pt": b"weights" * 100, "sub/empty": b""}


@pytest.fixture
def job(sdk: Client, sessions: SessionFactory, job_output: Any) -> str:
    made = sdk.submit({"name": "digits", "command": "true"})
    folder = job_output(made.id)
    for name, data in FILES.items():
        (folder / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "model" / name).write_bytes(data)
    with unit_of_work(sessions) as work:
        work.execute(update(Job).where(Job.id == made.id).values(state="succeeded"))
    return str(made.id)


@pytest.fixture
def registrar(sessions: SessionFactory, clock: Any) -> Registrar:
    control = ControlContext(sessions, FakeExecutor(FakeEngine()), NoWakeup(), clock, "test", b"k" * 32)
    return Registrar(control, limit_bytes=2**20)


@pytest.fixture
def run(sdk: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr(session, "client", lambda: nullcontext(sdk))
    monkeypatch.setattr(session, "project_or_default", lambda project: project or "default")
    return lambda *args: CliRunner().invoke(cli, ["model", *args])


def test_a_version_goes_in_and_comes_out_whole(sdk: Client, job: str, registrar: Registrar, tmp_path: Path) -> None:
    made = sdk.register_version("default", "digits", job, aliases=["prod"], idempotency_key="a")
    assert sdk.register_version("default", "digits", job, aliases=["prod"], idempotency_key="a").id == made.id
    with pytest.raises(Conflict, match="registering"):
        sdk.download_version("default", "digits", 1, tmp_path)
    registrar.work()
    assert sdk.wait_for_version("default", "digits", "prod").version == 1
    copied = sdk.download_version("default", "digits", "prod", tmp_path / "out")
    assert {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in copied} == FILES
    (tmp_path / "out/weights.pt").write_bytes(b"spoilt")
    (tmp_path / "out/sub/empty").unlink()
    with pytest.raises(LocalFileProblem, match=r"out has other content in weights\.pt: name another folder"):
        sdk.download_version("default", "digits", "prod", tmp_path / "out")
    assert (tmp_path / "out/weights.pt").read_bytes() == b"spoilt"
    assert not (tmp_path / "out/sub/empty").exists()  # nothing is copied where something is in the way
    sdk.download_version("default", "digits", "prod", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out/weights.pt").read_bytes() == FILES["weights.pt"]
    assert [one.name for one in sdk.list_models("default", search="dig")] == ["digits"]
    (found,) = sdk.find_models(projects=["default"], search="DIG")
    assert found.newest is not None
    assert (found.newest.version, found.newest.state, found.stages) == (1, "ready", {})
    assert list(sdk.find_models(stages=["production"])) == []
    assert [one.what for one in sdk.list_model_changes("default", "digits", limit=1)] == ["alias.moved"]
    with pytest.raises(Conflict, match="now points to version 1"):
        sdk.set_model_alias("default", "digits", "prod", 1, expected=0)
    sdk.delete_model("default", "digits", force=True)
    with pytest.raises(NotFound):
        sdk.get_model("default", "digits")


def test_a_failed_registration_is_informed_to_who_waits(
    sdk: Client, job: str, registrar: Registrar, job_output: Any
) -> None:
    sdk.register_version("default", "digits", job)
    (job_output(job) / "model/weights.pt").unlink()
    (job_output(job) / "model/sub/empty").unlink()
    registrar.work()
    with pytest.raises(Conflict, match="nothing to register"):
        sdk.wait_for_version("default", "digits", 1)


def test_every_verb_of_the_command_line(
    run: Callable[..., Result], job: str, registrar: Registrar, tmp_path: Path
) -> None:
    more = ("--alias", "prod", "--label", "team=a", "--stage", "staging", "--no-wait")
    output = run("register", "digits", "--job", job, *more)
    assert (output.exit_code, output.stdout) == (0, "digits version 1 registering, staging\n")
    registrar.work()
    assert "prod -> 1" in run().stdout
    assert [one["version"] for one in json.loads(run("versions", "digits", "--json").stdout)] == [1]
    shown = run("show", "digits", "latest").stdout
    assert all(
        word in shown for word in ("output model of job digits (", job, "weights.pt", "torch", "Command", "true")
    )
    assert json.loads(run("show", "digits", "--json").stdout)["aliases"] == {"prod": 1}
    assert run("stage", "digits", "1", "production", "-m", "good").stdout.startswith(
        "digits version 1 ready, production"
    )
    assert run("protect", "digits", "1").stdout.endswith("protected\n")
    assert run("protect", "digits").stdout == "digits protected\n"
    assert run("protect", "digits", "--off").stdout == "digits not protected\n"
    output = run("download", "digits", "prod", str(tmp_path / "out"))
    assert (output.exit_code, str(tmp_path / "out") in output.stdout) == (0, True)
    (tmp_path / "out/weights.pt").write_bytes(b"my own")
    refused = run("download", "digits", "prod", str(tmp_path / "out"))
    assert (refused.exit_code != 0, "--overwrite" in refused.stderr) == (True, True)
    assert run("download", "digits", "prod", str(tmp_path / "out"), "--overwrite").exit_code == 0
    assert (tmp_path / "out/weights.pt").read_bytes() == FILES["weights.pt"]
    refused = run("delete", "digits", "1", "--yes")
    assert (refused.exit_code, "protected" in refused.stderr) == (ExitCode.CONFLICT, True)
    assert run("alias", "digits", "prod", "--remove").stdout == "digits prod removed\n"
    assert run("alias", "digits", "beta", "1").stdout == "digits beta -> version 1\n"
    assert "stage.changed" in run("history", "digits").stdout
    assert run("delete", "digits", "--yes", "--force").exit_code == 0
    assert json.loads(run("list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("alias", "digits", "prod"), "--remove"),
        (("stage", "digits", "1", "gone"), "stages are none, staging, production, archived"),
        (("register", "digits", "--job", "x", "--label", "team"), "KEY=VALUE"),
        (("show", "nobody"), "no model 'nobody'"),
        (("register", "digits", "--job", "nobody"), "no job 'nobody'"),
        (("register", "DI GITS", "--job", "nobody"), "letters"),
    ],
)
def test_what_is_wrong_is_reported_without_a_traceback(
    run: Callable[..., Result], args: tuple[str, ...], words: str
) -> None:
    output = run(*args)
    assert output.exit_code not in (0, 70)
    assert words in output.stderr
