"""Optuna's own client and studies over the API: each project's for itself, and none of it lost or doubled."""

from __future__ import annotations

import http.client
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import optuna
import pytest
import uvicorn
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient
from trainmaster_train import optuna as ours

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Attempt, Job, Project
from core.domain.ids import AttemptId
from core.settings import Settings
from core.storage.optuna_tables import gc_tables
from core.tokens import attempt_token


@pytest.fixture
def url(app: Any) -> Iterator[str]:
    """The app behind a real socket."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        app.state.optuna.close()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture
def job_storage(
    url: str, settings: Settings, submit: Callable[..., str], start: Callable[..., str]
) -> Callable[..., BaseStorage]:
    """The storage as a new job's script gets it."""

    def make(by: TestClient | None = None, **spec: Any) -> BaseStorage:
        attempt_id = start(submit(by, **spec))
        token = attempt_token(settings.secret_key.get_secret_value().encode(), AttemptId(attempt_id))
        return ours.storage(url=url, token=token)

    return make


def test_jobs_of_a_project_share_a_study_that_optuna_drives(job_storage: Callable[..., BaseStorage]) -> None:
    first, second = job_storage(name="a"), job_storage(name="b")
    study = optuna.create_study(
        storage=first, study_name="digits", direction="maximize", sampler=optuna.samplers.TPESampler(seed=1)
    )

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 1e-3, 10, log=True)
        kind = trial.suggest_categorical("kind", ["a", "b", None])
        for step in range(3):
            trial.report(x * step, step)
        trial.set_user_attr("kind", kind)
        if x > 9.99:
            raise optuna.TrialPruned
        return -((x - 2) ** 2)

    study.optimize(objective, n_trials=8)
    other = optuna.load_study(storage=second, study_name="digits")
    other.optimize(objective, n_trials=4)

    assert [trial.number for trial in study.trials] == list(range(12))
    assert study.best_trial.params == other.best_trial.params
    assert all(list(trial.intermediate_values) == [0, 1, 2] for trial in study.trials)
    assert study.trials[3].user_attrs == {"kind": study.trials[3].params["kind"]}
    with pytest.raises(DuplicatedStudyError):
        optuna.create_study(storage=second, study_name="digits")
    with pytest.raises(UpdateFinishedTrialError):
        second.set_trial_user_attr(study.trials[0]._trial_id, "late", 1)
    with pytest.raises(KeyError):
        optuna.load_study(storage=second, study_name="none")
    optuna.delete_study(storage=first, study_name="digits")
    assert second.get_all_studies() == []


def test_many_threads_draw_each_number_once(job_storage: Callable[..., BaseStorage]) -> None:
    storage = job_storage()
    study_id = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "wide")
    made: list[int] = []

    def make() -> None:
        made.extend(storage.create_new_trial(study_id) for _ in range(5))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 30
    assert sorted(trial.number for trial in storage.get_all_trials(study_id)) == list(range(30))


def test_no_project_sees_the_studies_of_another(job_storage: Callable[..., BaseStorage], client: TestClient) -> None:
    vision = job_storage()
    vision.create_new_study([optuna.study.StudyDirection.MINIMIZE], "secret")
    assert client.post("/api/v1/projects", json={"name": "speech"}).status_code == 201
    speech = job_storage(project="speech")
    assert speech.get_all_studies() == []
    with pytest.raises(KeyError):
        speech.get_study_id_from_name("secret")


def test_a_storage_can_be_pickled(job_storage: Callable[..., BaseStorage]) -> None:
    storage = job_storage()
    storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "kept")
    copied = pickle.loads(pickle.dumps(storage))  # noqa: S301 (our own)
    assert [study.study_name for study in copied.get_all_studies()] == ["kept"]


# --- who may ---------------------------------------------------------------------------------------------------------


def code_of(call: Callable[[], Any]) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def test_a_user_names_the_project_and_needs_its_rights(url: str, as_user: Callable[..., TestClient]) -> None:
    def by(name: str, **rights: Any) -> BaseStorage:
        token = as_user(name, **rights).headers["authorization"].removeprefix("Bearer ")
        return ours.storage(url=url, token=token, project="default")

    make = [optuna.study.StudyDirection.MINIMIZE], "mine"
    member, viewer, reader = by("ann"), by("vic", role="viewer"), by("rea", scopes=("read",))
    member.create_new_study(*make)
    assert [study.study_name for study in viewer.get_all_studies()] == ["mine"]
    assert [study.study_name for study in reader.get_all_studies()] == ["mine"]
    assert code_of(lambda: viewer.create_new_study(*make))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert "scope write" in code_of(lambda: reader.create_new_study(*make))[1]


def test_what_is_wrong_with_a_call_is_reported(url: str, client: TestClient) -> None:
    token = client.headers["authorization"].removeprefix("Bearer ")
    assert "name the project" in code_of(ours.storage(url=url, token=token).get_all_studies)[1]
    assert "no project" in code_of(ours.storage(url=url, token=token, project="none").get_all_studies)[1]
    refused = code_of(ours.storage(url=url, token="nobody's").get_all_studies)
    assert refused[0] is grpc.StatusCode.UNAUTHENTICATED
    assert client.post("/api/v1/optuna/Nothing?project=default").json()["code"] == "not_found"
    unread = client.post("/api/v1/optuna/CreateNewStudy?project=default", content=b"\xff\xff\xff")
    assert (unread.status_code, unread.json()["code"]) == (422, "invalid_request")
    with pytest.raises(ValueError, match="not an address"):
        ours.storage(url="ftp://here", token="t")


def test_a_job_that_is_over_writes_no_more(
    job_storage: Callable[..., BaseStorage], end_attempt: Callable[..., None], sessions: SessionFactory, clock: Any
) -> None:
    storage = job_storage()
    with unit_of_work(sessions) as session:
        attempt_id = session.scalars(select(Attempt.id)).one()
    end_attempt(attempt_id)
    clock.advance(61)
    assert "ended" in code_of(storage.get_all_studies)[1]


def test_the_studies_go_with_their_project(
    job_storage: Callable[..., BaseStorage],
    client: TestClient,
    app: Any,
    sessions: SessionFactory,
    set_job: Callable[..., None],
) -> None:
    assert client.post("/api/v1/projects", json={"name": "speech"}).status_code == 201
    storage = job_storage(project="speech")
    storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "gone")
    with unit_of_work(sessions) as session:
        project_id, job_id = session.execute(select(Job.project_id, Job.id)).one()
    set_job(job_id, state="succeeded")
    assert client.delete("/api/v1/projects/speech").status_code == 204
    assert app.state.optuna.get(project_id).get_all_studies() == []


def test_what_a_kill_left_of_a_deleted_project_is_swept_and_nothing_else(
    job_storage: Callable[..., BaseStorage],
    client: TestClient,
    settings: Settings,
    sessions: SessionFactory,
    clock: Any,
) -> None:
    make = [optuna.study.StudyDirection.MINIMIZE], "gone"
    assert client.post("/api/v1/projects", json={"name": "speech"}).status_code == 201
    storage, retained = job_storage(project="speech"), job_storage()
    storage.create_new_study(*make)
    retained.create_new_study(*make)
    assert gc_tables(sessions, settings) == 0
    with unit_of_work(sessions) as session:  # the commit of its deletion, after which nothing else was done
        session.execute(update(Project).where(Project.name == "speech").values(deleted_at=clock.now))
    assert "project" in code_of(storage.get_all_studies)[1]
    assert gc_tables(sessions, settings) == 1
    assert gc_tables(sessions, settings) == 0
    assert [study.study_name for study in retained.get_all_studies()] == ["gone"]


# --- the client ------------------------------------------------------------------------------------------------------


class Connection(http.client.HTTPConnection):
    """``method``: of Optuna's storage, which was called last."""

    method = ""

    def request(self, method: str, url: str, *arguments: Any, **options: Any) -> None:
        self.method = url.rpartition("/")[2]
        super().request(method, url, *arguments, **options)


def test_an_api_that_restarts_is_waited_for_and_nothing_is_doubled(
    job_storage: Callable[..., BaseStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ["CreateNewStudy"]

    class BreaksOnce(Connection):
        def getresponse(self) -> http.client.HTTPResponse:
            answer = super().getresponse()
            if self.method not in broken:
                broken.append(self.method)
                raise ConnectionResetError("the answer was lost")
            return answer

    monkeypatch.setattr(http.client, "HTTPConnection", BreaksOnce)
    storage = job_storage()
    study_id = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "kept")
    storage.set_study_user_attr(study_id, "tried", 1)
    assert storage.get_study_user_attrs(study_id) == {"tried": 1}
    assert code_of(lambda: storage.create_new_trial(study_id))[0] is grpc.StatusCode.UNAVAILABLE
    assert len(storage.get_all_trials(study_id)) == 1


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_call_that_may_have_been_done_is_not_sent_again(
    job_storage: Callable[..., BaseStorage], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    storage = job_storage()
    study_id = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "kept")

    class LosesOneInAProxy(Connection):
        def getresponse(self) -> http.client.HTTPResponse:
            answer = super().getresponse()
            if self.method == "CreateNewTrial":
                answer.status = status
            return answer

    monkeypatch.setattr(http.client, "HTTPConnection", LosesOneInAProxy)
    assert code_of(lambda: storage.create_new_trial(study_id))[0] is grpc.StatusCode.UNAVAILABLE
    assert len(storage.get_all_trials(study_id)) == 1


def test_a_storage_that_cannot_be_opened_is_reported_as_away(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise OperationalError("no", None, Exception("away"))

    monkeypatch.setattr(optuna.storages, "RDBStorage", fail)
    answer = client.post("/api/v1/optuna/GetAllStudies?project=default")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


def test_a_script_that_knows_optunas_proxy_alone_finds_it_on_its_machine(
    url: str,
    client: TestClient,
    tmp_path: Path,
    submit: Callable[..., str],
    start: Callable[..., str],
    settings: Settings,
    free_port: int,
) -> None:
    token = attempt_token(settings.secret_key.get_secret_value().encode(), AttemptId(start(submit())))
    (tmp_path / "token").write_text(token)
    port = free_port
    script = f"""
import optuna, subprocess, sys
study = optuna.create_study(storage=optuna.storages.GrpcStorageProxy(host="127.0.0.1", port={port}), study_name="plain")
study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
print(study._study_id)
second = subprocess.run([sys.executable, "-m", "trainmaster_train.optuna", "--port", "{port}"], capture_output=True)
print(second.returncode, second.stderr.decode())
sys.exit(7)
"""
    env = {**os.environ, "TRAINMASTER_API_URL": url, "TRAINMASTER_TOKEN_FILE": str(tmp_path / "token")}
    ended = subprocess.run(
        [sys.executable, "-m", "trainmaster_train.optuna", "--host", "127.0.0.1", "--port", str(port), "--",
         sys.executable, "-W", "ignore", "-c", script],
        env=env, stdout=subprocess.PIPE, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 7, ended.stdout
    study_id, second, *_ = ended.stdout.splitlines()
    assert len(ours.storage(url=url, token=token).get_all_trials(int(study_id))) == 2
    assert second.startswith(f"1 trainmaster_train.optuna: port {port} is another replica's")


def _serve(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setenv("TRAINMASTER_API_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TRAINMASTER_TOKEN", "unused")
    monkeypatch.setattr(sys, "argv", ["trainmaster_train.optuna", *arguments])
    ours.main()


def test_without_a_program_one_server_runs_and_nothing_after_it(
    monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    calls: list[str] = []

    class Server:
        def start(self) -> None:
            calls.append("start")

        def wait_for_termination(self) -> None:
            calls.append("wait")

    monkeypatch.setattr(ours, "make_server", lambda *_: Server())
    monkeypatch.setattr(subprocess, "Popen", lambda _: calls.append("run"))
    _serve(monkeypatch, "--port", str(free_port))
    assert calls == ["start", "wait"]


def test_no_program_talks_to_a_strangers_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda _: pytest.fail("the program was run"))
    monkeypatch.setattr(
        optuna.storages.GrpcStorageProxy, "wait_server_ready", lambda *_, **__: None
    )  # the stranger's answers
    with socket.socket() as strangers:
        strangers.bind(("127.0.0.1", 0))
        strangers.listen()
        port = strangers.getsockname()[1]
        with pytest.raises(SystemExit, match=f"127.0.0.1:{port} cannot be listened on: .*each replica its own --port"):
            _serve(monkeypatch, "--host", "127.0.0.1", "--port", str(port), "--", "true")


@pytest.mark.skipif(sys.platform != "linux", reason="there are no such names elsewhere")
def test_a_claimed_port_is_in_the_way_of_no_other_user(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    with ours._claim(free_port):
        with pytest.raises(OSError, match=f"port {free_port} is another replica's"):
            ours._claim(free_port)
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        ours._claim(free_port).close()


def test_a_signal_while_the_program_is_being_started_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Signalled(subprocess.Popen[bytes]):
        def __init__(self, command: list[str]) -> None:
            super().__init__(command)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Signalled)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # or this process would end where it is not handed on
    try:
        assert ours._run(["sleep", "10"]) == 128 + signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
