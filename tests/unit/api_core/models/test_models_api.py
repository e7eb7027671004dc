"""The registry of models over REST: registered from jobs, never changed, found by alias, deleted only where nobody
needs it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories import models
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Checkpoint, Deployment, Event, Job, ModelVersion, Project
from core.domain.errors import Conflict, NotFound
from core.domain.metrics import Points
from core.registry import versions
from core.settings import Settings
from core.wakeups import TOPIC_MODELS, NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.registrar import Registrar

URL = "/api/v1/projects/default/models"
WEIGHTS = b"weights" * 1000
LIMIT = 100_000


class Registry:
    """A client, the job whose output it registers, and the registrar that a test has work."""

    def __init__(self, client: TestClient, job: str, output: Path, registrar: Registrar) -> None:
        self.client = client
        self.job = job
        self.output = output
        self.registrar = registrar

    def post(self, name: str = "digits", **body: Any) -> Any:
        return self.client.post(f"{URL}/{name}/versions", json={"job": self.job, **body})

    def register(self, name: str = "digits", **body: Any) -> dict[str, Any]:
        answer = self.post(name, **body)
        assert answer.status_code == 201, answer.text
        self.registrar.work()
        return self.get(f"{name}/versions/{answer.json()['version']}")

    def get(self, path: str) -> Any:
        answer = self.client.get(f"{URL}/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def history(self, name: str = "digits") -> list[tuple[str, str | None, str | None]]:
        return [(one["what"], one["before"], one["after"]) for one in self.get(f"{name}/history")["items"]][::-1]


@pytest.fixture
def registrar(sessions: SessionFactory, clock: Any) -> Registrar:
    control = ControlContext(sessions, FakeExecutor(FakeEngine()), NoWakeup(), clock, "test", b"k" * 32)
    return Registrar(control, limit_bytes=LIMIT)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"model_limit_bytes": LIMIT})


@pytest.fixture
def registry(
    client: TestClient, submit: Callable[..., str], set_job: Any, settings: Settings, registrar: Registrar
) -> Registry:
    job = submit(name="digits", args=["--lr", "0.1"], labels={"team": "a"})
    set_job(job, state="succeeded", attempt_count=1)
    output = settings.home / "output" / "default" / job
    (output / "model" / "variables").mkdir(parents=True)
    (output / "model" / "weights.pt").write_bytes(WEIGHTS)
    (output / "model" / "variables" / "a.txt").write_text("a")
    (output / ".trainmaster").mkdir()
    (output / ".trainmaster" / "log").write_text("log")
    return Registry(client, job, output, registrar)


def test_a_version_is_copied_and_says_where_it_comes_from(
    registry: Registry, wakeup: Any, sessions: SessionFactory, settings: Settings, clock: Any
) -> None:
    points = Points([1, 2], [0, 0], [0.5, 0.9])
    with unit_of_work(sessions) as session:
        add_metrics(session, StreamKey(registry.job, 1, "worker", 0), {"accuracy": points}, now=clock.now)
    wakeup.rings.clear()
    answer = registry.post(aliases=["prod"], stage="staging", description="first")
    assert (answer.status_code, answer.json()["state"], wakeup.rings) == (201, "registering", [(TOPIC_MODELS, "")])
    assert registry.client.get(f"{URL}/digits/versions/1/archive").status_code == 409
    registry.registrar.work()
    found = registry.get("digits/versions/prod")
    assert (found["version"], found["state"], found["stage"], found["aliases"]) == (1, "ready", "staging", ["prod"])
    assert (found["size_bytes"], found["file_count"], found["format"]) == (len(WEIGHTS) + 1, 2, "torch")
    assert found["source"] == {"kind": "output", "job": registry.job, "path": "model"}
    lineage = found["lineage"]
    assert (lineage["job"], lineage["job_name"], lineage["attempt"]) == (registry.job, "digits", 1)
    assert lineage["commands"] == {"worker": "true --lr 0.1"}
    assert (lineage["metrics"], found["metrics"]) == ({"accuracy": 0.9}, {"accuracy": 0.9})
    files = registry.get("digits/versions/1/files")["items"]
    assert [(file["path"], file["size_bytes"]) for file in files] == [
        ("variables/a.txt", 1),
        ("weights.pt", len(WEIGHTS)),
    ]
    assert files[1]["sha256"] == hashlib.sha256(WEIGHTS).hexdigest()
    place = settings.home / found["location"]
    assert (place / "weights.pt").read_bytes() == WEIGHTS
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (place, place / "variables", place / "weights.pt")]
    assert modes == [0o555, 0o555, 0o444]
    assert not list((settings.home / "output/.models/default/.drafts").iterdir())
    (registry.output / "model" / "weights.pt").write_bytes(b"other")
    assert registry.client.get(f"{URL}/digits/versions/1/files/content?path=weights.pt").content == WEIGHTS


def test_equal_content_has_an_equal_digest_and_no_request_is_done_twice(registry: Registry) -> None:
    body = {"job": registry.job}
    headers = {"Idempotency-Key": "once"}
    posted = [registry.client.post(f"{URL}/digits/versions", json=body, headers=headers) for _ in range(2)]
    assert [one.json()["version"] for one in posted] == [1, 1]
    other = registry.client.post(f"{URL}/other/versions", json=body, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    second = registry.register()
    assert second["version"] == 2
    assert second["digest"] == registry.get("digits/versions/1")["digest"]
    made = [registry.client.post(URL, json={"name": "empty"}, headers={"Idempotency-Key": "e"}) for _ in range(2)]
    assert made[0].json() == made[1].json()
    assert registry.client.post(URL, json={"name": "empty"}).status_code == 409


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"path": "nothing"}, 404, "there are checkpoints, dangling"),
        ({"path": "../other"}, 422, "'..'"),
        ({"path": "/etc"}, 422, "leading slash"),
        ({"path": "empty"}, 422, "nothing to register"),
        ({"path": "out"}, 422, "leads out"),
        ({"path": "outlink"}, 422, "leads out"),
        ({"path": "loop"}, 422, "link to a folder"),
        ({"path": "dangling"}, 422, "link to nothing"),
        ({"path": "pipe"}, 422, "not a file"),
        ({"path": "large"}, 413, "the most that a version may have"),
        ({"path": "a", "checkpoint": "b"}, 422, "not both"),
        ({"checkpoint": "checkpoints/step-1"}, 409, "not complete"),
        ({"checkpoint": "checkpoints/step-2"}, 404, "does not exist"),
        ({"job": "nobody"}, 404, "no job 'nobody'"),
        ({"aliases": ["7up"]}, 422, "begins with a lower-case letter"),
        ({"aliases": ["latest"]}, 422, "always names the newest"),
    ],
)
def test_what_cannot_be_registered_is_refused_in_words(
    registry: Registry, body: dict[str, Any], status: int, words: str
) -> None:
    out = registry.output
    for folder in ("empty", "out", "loop", "dangling", "pipe", "large", "checkpoints/step-1"):
        (out / folder).mkdir(parents=True)
    (out / "out" / "passwd").symlink_to("/etc/passwd")
    (out / "outlink").symlink_to("/etc")
    (out / "loop" / "again").symlink_to(".")
    (out / "dangling" / "nobody").symlink_to("nowhere")
    os.mkfifo(out / "pipe" / "fifo")
    (out / "large" / "weights").write_bytes(b"x" * (LIMIT + 1))
    (out / "checkpoints" / "step-1" / "a.pt").write_bytes(b"half")
    answer = registry.post(**body)
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert registry.client.get(URL).json()["items"] == []


def test_an_output_without_the_folder_model_says_where_the_script_saves_it(registry: Registry) -> None:
    (registry.output / "model").rename(registry.output / "weights")
    (registry.output / "notes.txt").write_text("a")
    answer = registry.post()
    assert (answer.status_code, answer.json()["field"]) == (422, "path")
    assert answer.json()["detail"] == (
        "The job's output has no folder model: let its script save the model there ($AIP_MODEL_DIR), or name what to "
        "register by its path; there are notes.txt, weights."
    )


@pytest.mark.parametrize("name", ["a!b", "-a", "a" * 64, "a b"])
def test_names_are_checked(registry: Registry, name: str) -> None:
    assert registry.post(name).status_code == 422
    assert registry.client.post(URL, json={"name": name}).status_code == 422


def test_a_link_inside_the_output_is_copied_as_its_file(registry: Registry) -> None:
    (registry.output / "blob").write_text("shared")
    (registry.output / "model" / "link.bin").symlink_to("../blob")
    found = registry.register()
    assert found["file_count"] == 3
    answer = registry.client.get(f"{URL}/digits/versions/1/files/content?path=link.bin")
    assert answer.text == "shared"


def test_another_projects_job_is_not_there(registry: Registry, sessions: SessionFactory, clock: Any) -> None:
    with unit_of_work(sessions) as session:
        session.add(Project(id="project-x", name="secret", created_at=clock.now))
        session.flush()
        session.get_one(Job, registry.job).project_id = "project-x"
    answer = registry.post()
    assert (answer.status_code, answer.json()["field"]) == (404, "job")


def test_a_job_that_runs_is_refused_waited_for_or_its_checkpoint_taken(
    registry: Registry, set_job: Any, start: Any, sessions: SessionFactory, clock: Any
) -> None:
    attempt = start(registry.job)
    assert "is running: its output may still change" in registry.post().text
    step = registry.output / "checkpoints" / "step-5"
    step.mkdir(parents=True)
    (step / "a.pt").write_bytes(b"weights")
    with unit_of_work(sessions) as session:
        session.add(
            Checkpoint(id="c-1", job_id=registry.job, attempt_id=attempt, path="checkpoints/step-5", step=5,
                       metrics={"loss": 0.25}, created_at=clock.now)
        )  # fmt: skip
    taken = registry.register(checkpoint="checkpoints/step-5")
    assert (taken["state"], taken["metrics"], taken["lineage"]["step"]) == ("ready", {"loss": 0.25}, 5)
    assert [file["path"] for file in registry.get("digits/versions/1/files")["items"]] == ["a.pt"]
    waiting = registry.register(when_done=True, aliases=["prod"])
    assert (waiting["state"], waiting["aliases"]) == ("waiting", [])
    failing = registry.register("other", when_done=True)
    assert failing["state"] == "waiting"
    set_job(registry.job, state="succeeded")
    registry.registrar.work()
    registry.registrar.work()
    assert registry.get("digits/versions/2")["aliases"] == ["prod"]


def test_a_version_that_waits_for_a_job_fails_with_it(registry: Registry, set_job: Any) -> None:
    set_job(registry.job, state="running")
    registry.register(when_done=True)
    set_job(registry.job, state="failed")
    registry.registrar.work()
    found = registry.get("digits/versions/1")
    assert (found["state"], found["reason"]) == ("failed", "Job 'digits' has not succeeded: it is failed.")
    assert "has not succeeded" in registry.post(when_done=True).text


def test_files_that_change_or_go_after_the_request_fail_it_in_words(registry: Registry, settings: Settings) -> None:
    registry.post()
    (registry.output / "model" / "weights.pt").unlink()
    (registry.output / "model" / "variables" / "a.txt").unlink()
    registry.registrar.work()
    found = registry.get("digits/versions/1")
    assert (found["state"], "nothing to register" in found["reason"]) == ("failed", True)
    assert [path for path in (settings.home / "output/.models").rglob("*") if path.is_file()] == []


def test_aliases_move_in_one_step_with_history(registry: Registry, sessions: SessionFactory) -> None:
    registry.register()
    registry.register()
    put = lambda **body: registry.client.put(f"{URL}/digits/aliases/prod", json=body)  # noqa: E731
    assert put(version=1).json()["aliases"] == {"prod": 1}
    assert put(version=2, expected=2).status_code == 409
    assert put(version=3).status_code == 404
    assert put(version=2, expected=1, reason="better").json()["aliases"] == {"prod": 2}
    assert registry.client.delete(f"{URL}/digits/aliases/prod").status_code == 204
    assert registry.client.delete(f"{URL}/digits/aliases/prod").status_code == 404
    moves = [one for one in registry.history() if one[0].startswith("alias.")]
    assert moves == [("alias.moved", None, "1"), ("alias.moved", "1", "2"), ("alias.removed", "2", None)]
    with unit_of_work(sessions) as session:
        kinds = session.scalars(select(Event.kind).where(Event.kind.like("model.alias%")).order_by(Event.id)).all()
        assert kinds == ["model.alias_moved", "model.alias_moved", "model.alias_removed"]


def test_stages_are_reported_with_who_and_why(registry: Registry) -> None:
    registry.register()
    moved = registry.client.post(f"{URL}/digits/versions/1/stage", json={"stage": "production", "reason": "it is good"})
    assert moved.json()["stage"] == "production"
    assert registry.client.post(f"{URL}/digits/versions/1/stage", json={"stage": "gone"}).status_code == 422
    newest = registry.get("digits/history")["items"][0]
    assert (newest["what"], newest["before"], newest["after"]) == ("stage.changed", "none", "production")
    assert (newest["reason"], newest["user"]) == ("it is good", "admin")
    assert registry.get("digits/versions?stage=staging")["items"] == []


def test_models_of_all_projects_are_found_by_name_stage_and_job(
    registry: Registry, as_user: Callable[..., TestClient]
) -> None:
    registry.register("digits", stage="production")
    registry.register("digits")
    registry.register("letters", stage="archived")
    registry.client.post(URL, json={"name": "empty"})
    registry.client.post("/api/v1/projects", json={"name": "other"})
    registry.client.post("/api/v1/projects/other/models", json={"name": "digits"})

    def found(client: TestClient, query: str = "") -> list[tuple[str, str]]:
        seen, cursor = [], ""
        while cursor is not None:
            page = client.get(f"/api/v1/models?limit=2{query}{cursor and f'&cursor={cursor}'}").json()
            seen += [(one["project"], one["name"]) for one in page["items"]]
            cursor = page["next_cursor"]
        return seen

    own = {("default", "digits"), ("other", "digits"), ("default", "empty"), ("default", "letters")}
    everything = found(registry.client)
    assert ({*everything}, len(everything)) == (own, 4)
    assert [name for _, name in everything] == sorted(name for _, name in everything)
    assert found(registry.client, "&project=other") == [("other", "digits")]
    assert found(registry.client, "&search=DIG&project=default") == [("default", "digits")]
    assert found(registry.client, "&stage=production&stage=archived") == [("default", "digits"), ("default", "letters")]
    assert found(registry.client, f"&job={registry.job}") == [("default", "digits"), ("default", "letters")]
    assert found(registry.client, "&search=%25") == []
    other = as_user("ann", role="viewer", project="other")
    assert found(other) == [("other", "digits")]
    assert other.get("/api/v1/models?project=default").status_code == 404
    (digits,) = registry.client.get("/api/v1/models?project=default&search=digits").json()["items"]
    assert (digits["newest"]["version"], digits["newest"]["state"], digits["stages"]) == (2, "ready", {"production": 1})
    (empty,) = registry.client.get("/api/v1/models?search=empty").json()["items"]
    assert (empty["newest"], empty["stages"]) == (None, {})


def test_deleting_is_refused_while_somebody_needs_it(
    registry: Registry, sessions: SessionFactory, clock: Any, settings: Settings
) -> None:
    place = settings.home / registry.register()["location"]
    delete = lambda more="": registry.client.delete(f"{URL}/digits/versions/1{more}")  # noqa: E731
    registry.client.patch(f"{URL}/digits/versions/1", json={"is_protected": True})
    assert "protected" in delete().json()["detail"]
    registry.client.patch(f"{URL}/digits/versions/1", json={"is_protected": False})
    registry.client.put(f"{URL}/digits/aliases/prod", json={"version": 1})
    assert "has the alias prod" in delete().json()["detail"]
    assert registry.client.delete(f"{URL}/digits").status_code == 409
    registry.client.delete(f"{URL}/digits/aliases/prod")
    version_id = registry.get("digits/versions/1")["id"]
    with unit_of_work(sessions) as session:
        versions.hold(session, version_id, "endpoint digits", clock.now)
        versions.hold(session, version_id, "endpoint digits", clock.now)
    assert "a rollback target, at endpoint digits" in delete().json()["detail"]
    with unit_of_work(sessions) as session:
        versions.release(session, version_id, "endpoint digits")
    assert delete().status_code == 204
    assert delete().status_code == 404
    registry.registrar.work()
    assert not place.exists()
    assert registry.get("digits")["versions"] == 0
    assert registry.register()["version"] == 2  # a number is never used again


def test_force_deletes_all_and_frees_the_name(registry: Registry, settings: Settings) -> None:
    place = settings.home / registry.register(aliases=["prod"])["location"]
    registry.client.patch(f"{URL}/digits", json={"is_protected": True})
    assert registry.client.delete(f"{URL}/digits").status_code == 409
    assert registry.client.delete(f"{URL}/digits?force=true").status_code == 204
    assert registry.client.get(f"{URL}/digits").status_code == 404
    registry.registrar.work()
    assert not place.exists()
    # Its name is free, its number is not: digits@1 stands in lineages and specs of jobs.
    assert registry.register()["version"] == 2
    registry.client.delete(f"{URL}/digits?force=true")
    assert registry.client.post(URL, json={"name": "digits"}).status_code == 201
    assert registry.register()["version"] == 3
    assert registry.get("digits")["versions"] == 1


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("model.skops", b"PK", "skops"),
        ("model.pt2", b"PK", "torch.export"),
        ("model.pt", b"PK...archive/data.pkl...archive/constants.pkl...", "torchscript"),
        ("model.pt", b"PK...archive/data.pkl...archive/byteorder...", "torch"),
        ("readme.txt", b"", ""),
    ],
)
def test_what_a_version_is_is_reported(registry: Registry, name: str, content: bytes, form: str) -> None:
    (registry.output / "own").mkdir()
    (registry.output / "own" / name).write_bytes(content)
    assert registry.register(path="own")["format"] == form


def test_downloads_go_on_where_they_broke_off(registry: Registry) -> None:
    registry.register()
    whole = registry.client.get(f"{URL}/digits/versions/latest/archive")
    with tarfile.open(fileobj=io.BytesIO(whole.content)) as tar:
        names = tar.getnames()
        member = tar.extractfile("digits-1/weights.pt")
        assert member is not None
        assert member.read() == WEIGHTS
    assert names == ["digits-1/variables/a.txt", "digits-1/weights.pt"]
    assert int(whole.headers["content-length"]) == len(whole.content)
    for start, end in ((0, 10), (500, 2000), (len(whole.content) - 7, len(whole.content))):
        part = registry.client.get(
            f"{URL}/digits/versions/latest/archive", headers={"Range": f"bytes={start}-{end - 1}"}
        )
        assert (part.status_code, part.content) == (206, whole.content[start:end])
    beyond = registry.client.get(f"{URL}/digits/versions/1/archive", headers={"Range": "bytes=99999999-"})
    assert beyond.status_code == 416
    piece = registry.client.get(
        f"{URL}/digits/versions/1/files/content?path=weights.pt", headers={"Range": "bytes=7-13"}
    )
    assert (piece.status_code, piece.content) == (206, b"weights")
    assert registry.client.get(f"{URL}/digits/versions/1/files/content?path=../x").status_code == 404


def test_one_file_is_sent_without_reading_of_the_others(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register()

    def all_of_them(*_: object) -> None:
        raise AssertionError("a version may have 10,000 files")

    monkeypatch.setattr(models, "files_of", all_of_them)
    content = f"{URL}/digits/versions/1/files/content"
    sent = registry.client.get(content, params={"path": "variables/a.txt"})
    assert (sent.status_code, sent.content) == (200, b"a")
    assert sent.headers["X-Content-SHA256"] == hashlib.sha256(b"a").hexdigest()
    assert registry.client.get(content, params={"path": "variables/a.txt\0"}).status_code == 404
    gone = registry.client.get(content, params={"path": "variables"})
    assert (gone.status_code, gone.json()["detail"]) == (404, "Version 1 of model 'digits' has no file 'variables'.")


def test_who_uses_a_version_gets_it_whole_or_a_word(registry: Registry, sessions: SessionFactory) -> None:
    registry.register(aliases=["prod"])
    with unit_of_work(sessions) as session:
        project = session.scalars(select(ModelVersion.project_id)).one()
        found = versions.ready(session, project, "digits", "prod")
        assert (found.version, found.volume, found.image, len(found.manifest)) == (1, "output", None, 2)
        assert found.path.startswith(".models/default/version-")
        with pytest.raises(NotFound, match="no version or alias 'beta'"):
            versions.ready(session, project, "digits", "beta")
        with pytest.raises(NotFound, match="no model"):
            versions.ready(session, project, "nobody", 1)
    registry.post()
    with unit_of_work(sessions) as session, pytest.raises(Conflict, match="registering"):
        versions.ready(session, project, "digits", 2)


def test_of_the_versions_that_an_endpoint_had_those_that_serve_now_are_distinguished(
    registry: Registry, sessions: SessionFactory
) -> None:
    holder, url = "endpoint sums, deployed model default", "/api/v1/projects/default/endpoints"
    registry.client.post(url, json={"name": "sums"})
    for number in (1, 2):
        registry.register()
        deployed = registry.client.post(
            f"{url}/sums/deployments", json={"model": f"digits@{number}", "command": "serve"}
        )
        assert deployed.status_code == 200, deployed.text

    def serving() -> list[list[str]]:
        shown = registry.get("digits/versions")["items"][::-1]
        assert [one["used_by"] for one in shown] == [[holder], [holder]]  # either may be gone back to
        assert registry.get("digits/versions/1")["served_by"] == shown[0]["served_by"]
        return [one["served_by"] for one in shown]

    def became_stable(revision: int) -> None:
        with unit_of_work(sessions) as session:
            session.execute(update(Deployment).values(stable_revision=revision))

    assert serving() == [[], [holder]]
    became_stable(2)
    assert registry.client.post(f"{url}/sums/deployments/default/rollback", json={"revision": 1}).status_code == 200
    assert serving() == [[holder], [holder]]  # on the way back
    became_stable(1)
    assert serving() == [[holder], []]


def test_a_batch_prediction_goes_on_only_where_its_own_model_began(registry: Registry, settings: Settings) -> None:
    (registry.output / "model" / "model.py").write_text("")  # without it weights alone are no model
    for content in (WEIGHTS, b"other"):
        (registry.output / "model" / "weights.pt").write_bytes(content)
        digest = registry.register()["digest"]
    (registry.output / "questions.jsonl").write_text("1\n")
    output = settings.home / "output/default/answers"
    body = {"input": f"output/default/{registry.job}/questions.jsonl", "output": "output/default/answers"}

    def ask(model: str, **more: Any) -> Any:
        return registry.client.post(
            "/api/v1/projects/default/batch-predictions", json={"model": model, "trust_code": True, **body, **more}
        )

    job = ask("digits@2").json()
    reported = {"model": job["spec"]["env"]["AIP_MODEL_NAME"], "model_digest": job["spec"]["env"]["AIP_MODEL_DIGEST"]}
    assert reported == {"model": "digits@2", "model_digest": digest}
    output.mkdir(parents=True, exist_ok=True)
    (output / "batch.json").write_text(json.dumps({**reported, "shard_size": 10_000, "csv_rows": "object"}))
    assert ask("digits@2", batch_size=1).status_code == 201
    for model in ("digits@1", f"output/default/{registry.job}/model"):
        refused = ask(model)
        assert (refused.status_code, refused.json()["field"]) == (409, "output")
        printed = (
            f"output/default/answers has predictions of model digits@2, but this is {model}; choose another output"
        )
        assert printed in refused.json()["detail"]
    other = ask("digits@2", shard_size=5)
    assert (other.status_code, other.json()["field"]) == (409, "shard_size")
    assert "made with --shard-size 10000, not 5" in other.json()["detail"]
    # By the content of its files: the replicas look.
    (output / "batch.json").write_text(
        json.dumps({"model_digest": "content:1", "shard_size": 10_000, "csv_rows": "object"})
    )
    assert [ask(model).status_code for model in (f"output/default/{registry.job}/model", "digits@2")] == [201, 409]
    (output / "batch.json").write_text("nonsense")
    assert ask("digits@1").status_code == 201


def test_jobs_read_registered_models_and_never_write_to_them(registry: Registry, client: TestClient) -> None:
    volume, _, path = registry.register()["location"].partition("/")
    spec = {"name": "tune", "command": "true", "mounts": [{"volume": volume, "path": path, "at": "/data/base"}]}
    spec["mounts"][0]["read_only"] = False
    refused = client.post("/api/v1/jobs", json={"spec": spec})
    assert (refused.status_code, "immutable" in refused.text) == (422, True)
    spec["mounts"][0]["read_only"] = True
    assert client.post("/api/v1/jobs", json={"spec": spec, "dry_run": True}).status_code == 200


def test_a_checkpoint_that_is_being_registered_is_not_deleted(
    registry: Registry, sessions: SessionFactory, start: Any, clock: Any, set_job: Any
) -> None:
    (registry.output / "checkpoints").mkdir()
    (registry.output / "checkpoints" / "step-1.pt").write_bytes(b"weights")
    set_job(registry.job, state="running")
    registry.post(checkpoint="checkpoints/step-1.pt")
    where = f"/api/v1/jobs/{registry.job}/checkpoints?path=checkpoints/step-1.pt"
    assert registry.client.delete(where).status_code == 409
    registry.registrar.work()
    assert registry.get("digits/versions/1")["state"] == "ready"
    assert registry.client.delete(where).status_code == 204


def test_the_hook_works_in_the_callers_transaction(registry: Registry, sessions: SessionFactory, clock: Any) -> None:
    by = versions.Author("", "automl", "scheduler")
    with unit_of_work(sessions) as session:
        job = session.get_one(Job, registry.job)
        by = versions.Author(job.user_id, "automl", "scheduler")
        versions.register_from_job(session, clock.now, job, "best", by, versions.SourceRequest(), volume="output")
    registry.registrar.work()
    found = registry.get("best/versions/latest")
    assert (found["state"], found["lineage"]["user"]) == ("ready", "automl")
