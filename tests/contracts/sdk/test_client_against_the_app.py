from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from trainmaster import AsyncClient, Client
from trainmaster.errors import Conflict, InvalidRequest, InvalidSpec, NotFound, Unauthenticated
from trainmaster.packing import pack_folder

SPEC = {"name": "mnist", "command": ["python", "train.py"], "workers": 2, "ps": 1, "labels": {"team": "vision"}}


def test_a_submitted_job_comes_back_with_its_canonical_spec(sdk: Client) -> None:
    job = sdk.submit(SPEC)
    assert (job.name, job.state) == ("mnist", "queued")
    assert {role: spec.replicas for role, spec in job.view.spec.roles.items()} == {"worker": 2, "ps": 1}
    assert sdk.get_job("mnist").id == job.id
    assert job.detail().queue_position == 1


def test_the_same_key_never_makes_a_second_job(sdk: Client) -> None:
    first = sdk.submit(SPEC, idempotency_key="once")
    second = sdk.submit(SPEC, idempotency_key="once")
    assert first.id == second.id
    assert len(list(sdk.list_jobs())) == 1


def test_all_mistakes_of_a_spec_come_at_once_with_their_paths(sdk: Client) -> None:
    with pytest.raises(InvalidSpec) as caught:
        sdk.submit({"name": "Bad Name", "comand": "x", "workers": 1})
    paths = {mistake.path for mistake in caught.value.mistakes}
    assert {"name", "comand"} <= paths
    assert all(path in str(caught.value) for path in paths)


def test_a_dry_run_gives_the_canonical_spec_and_submits_nothing(sdk: Client) -> None:
    spec = sdk.check_spec(SPEC)
    assert spec.roles["worker"].replicas == 2
    assert list(sdk.list_jobs()) == []


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with one script. The database lies beside it."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n" * 100)
    return folder


def test_a_folder_is_packed_uploaded_and_named_in_the_spec(sdk: Client, code: Path) -> None:
    reported: list[tuple[int, int]] = []
    command = ["python", "train.py"]
    job = sdk.run(code, command, name="packed", progress=lambda done, total: reported.append((done, total)))
    packed = pack_folder(code)
    assert job.view.spec.code == packed.digest
    assert sdk.get_archive(packed.digest).is_complete
    assert reported[-1] == (packed.size_bytes, packed.size_bytes)


def test_an_upload_goes_on_where_an_earlier_one_stopped(sdk: Client, code: Path) -> None:
    packed = pack_folder(code)
    sdk.start_archive(packed.digest, packed.size_bytes)
    sdk.append_archive(packed.digest, 0, packed.path.read_bytes()[:50])
    reported: list[int] = []
    view = sdk.upload_archive(packed.path, digest=packed.digest, progress=lambda done, _: reported.append(done))
    assert view.is_complete
    assert reported[0] == 50


def test_a_chunk_at_the_wrong_place_is_a_conflict(sdk: Client, code: Path) -> None:
    packed = pack_folder(code)
    sdk.start_archive(packed.digest, packed.size_bytes)
    with pytest.raises(Conflict):
        sdk.append_archive(packed.digest, 7, b"late")


def test_pages_are_walked_to_the_end(sdk: Client) -> None:
    for number in range(5):
        sdk.submit({**SPEC, "name": f"job-{number}"})
    names = [job.name for job in sdk.list_jobs(project="default", state=["queued"], label=["team=vision"])]
    assert sorted(names) == [f"job-{number}" for number in range(5)]
    assert len(list(sdk.list_jobs(limit=3))) == 3
    first = sdk.list_jobs_page(limit=2)
    assert len(first.items) == 2
    assert first.next_cursor is not None


def test_a_job_is_paused_resumed_cancelled_and_its_handle_knows(sdk: Client) -> None:
    job = sdk.submit(SPEC)
    job.pause(reason="lunch")
    assert job.state == "paused"
    job.resume()
    assert job.state == "queued"
    job.cancel(reason="wrong data")
    assert job.wait().state == "cancelled"
    assert job.has_ended
    assert not job.has_succeeded
    kinds = [event.kind for event in job.events()]
    assert kinds[0] == "job.queued"
    assert any("lunch" in event.reason for event in job.events())
    job.delete()
    with pytest.raises(NotFound):
        job.detail()


def test_a_clone_has_the_changes(sdk: Client) -> None:
    clone = sdk.submit(SPEC).clone(changes={"name": "again", "env": {"LR": "0.1"}})
    assert clone.name == "again"
    assert clone.view.spec.env == {"LR": "0.1"}
    assert clone.view.cloned_from is not None


def test_following_the_events_of_an_ended_job_ends(sdk: Client) -> None:
    job = sdk.submit(SPEC)
    job.cancel()
    assert [event.kind for event in job.follow_events()] == [event.kind for event in job.events()]


def test_logs_are_read_as_lines_and_as_text(sdk: Client, job_output: Any, end_job: Any) -> None:
    job = sdk.submit(SPEC)
    folder = job_output(job.id) / ".trainmaster/logs" / job.id / "1"
    folder.mkdir(parents=True)
    (folder / "worker-0.log").write_text("2026-11-21T07:00:00.000001Z one\n2026-11-21T07:00:02.000001Z three\n")
    (folder / "worker-1.log").write_text("2026-11-21T07:00:01.000001Z two\n")
    end_job(job.id, "succeeded")
    assert [source.name for source in job.log_sources()] == ["worker-0", "worker-1"]
    assert [(line.role, line.index, line.text) for line in job.logs()] == [
        ("worker", 0, "one"),
        ("worker", 1, "two"),
        ("worker", 0, "three"),
    ]
    assert [line.text for line in job.logs(follow=True, index=1)] == ["two"]
    assert [line.text for line in job.logs(search="^t")] == ["two", "three"]
    assert job.read_log("worker-1").endswith("two\n")


def test_files_are_listed_read_and_downloaded(sdk: Client, job_output: Any, tmp_path: Path) -> None:
    job = sdk.submit(SPEC)
    folder = job_output(job.id)
    (folder / "model").mkdir()
    (folder / "model" / "weights.bin").write_bytes(bytes(range(256)) * 100)
    (folder / "empty").write_bytes(b"")
    assert [(entry.path, entry.is_dir) for entry in job.files()] == [("empty", False), ("model", True)]
    assert [entry.path for entry in job.files("model")] == ["model/weights.bin"]
    target = job.download("model/weights.bin", tmp_path)
    assert target == tmp_path / "weights.bin"
    assert target.read_bytes() == bytes(range(256)) * 100
    assert job.download("empty", tmp_path / "nothing").read_bytes() == b""
    assert job.read_file("model/weights.bin")[:3] == b"\x00\x01\x02"
    assert not list(tmp_path.glob(".*.part"))
    with pytest.raises(NotFound):
        job.download("absent", tmp_path)


def test_projects_members_users_tokens_and_secrets(sdk: Client) -> None:
    assert sdk.get_me().user == "admin"
    sdk.create_user("ann")
    sdk.create_project("vision", description="eyes", weight=2)
    assert sdk.update_project("vision", weight=3).weight == 3
    assert sdk.get_project("vision").description == "eyes"
    sdk.set_member("vision", "ann", "member")
    assert ("ann", "member") in {(member.user, member.role) for member in sdk.list_members("vision")}
    sdk.set_secret("vision", "API_KEY", "hush")
    assert [secret.name for secret in sdk.list_secrets("vision")] == ["API_KEY"]
    sdk.delete_secret("vision", "API_KEY")
    token = sdk.create_token("laptop", scopes=["read"], expires_in_s=3600, user="ann")
    assert token.token.startswith("tm_")
    assert token.id in {found.id for found in sdk.list_tokens(user="ann")}
    sdk.revoke_token(token.id)
    sdk.remove_member("vision", "ann")
    assert sdk.update_user("ann", is_disabled=True).disabled_at is not None
    assert {"admin", "ann"} <= {user.name for user in sdk.list_users()}
    sdk.delete_project("vision")
    assert [project.name for project in sdk.list_projects()] == ["default"]


def test_volumes_and_nodes_and_the_server_itself(sdk: Client, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    volume = sdk.create_volume("sets", root=str(tmp_path / "sets"), is_read_only=True)
    assert sdk.get_volume("sets") == volume
    assert {"data", "output", "sets"} <= {found.name for found in sdk.list_volumes()}
    sdk.delete_volume("sets")
    assert list(sdk.list_nodes()) == []
    with pytest.raises(NotFound):
        sdk.cordon_node("absent", reason="dust")
    with pytest.raises(NotFound):
        sdk.drain_node("absent", reason="dust")
    with pytest.raises(NotFound):
        sdk.release_node("absent", reason="new board")
    with pytest.raises(NotFound):
        sdk.set_node_labels("absent", {"pool": "fast"})
    with pytest.raises(NotFound):
        sdk.delete_node("absent")
    assert sdk.get_health().version
    assert sdk.get_spec_schema()["type"] == "object"


def test_an_argument_that_no_server_would_take_is_reported_without_asking(sdk: Client) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sdk.create_user("Not A Name")
    assert "name" in str(caught.value)


def test_without_a_token_the_error_says_so(app: Any, sdk: Client) -> None:
    transport = sdk.runner._http._transport
    with Client("http://platform", transport=transport) as nobody, pytest.raises(Unauthenticated):
        nobody.get_me()


@pytest.mark.anyio
async def test_the_asynchronous_client_does_the_same(async_sdk: AsyncClient, code: Path) -> None:
    job = await async_sdk.run(code, ["python", "train.py"], name="awaited", workers=2)
    assert [found.name async for found in async_sdk.list_jobs()] == ["awaited"]
    await job.cancel()
    assert (await job.wait()).state == "cancelled"
    kinds = [event.kind async for event in job.follow_events()]
    assert kinds[0] == "job.queued"
    assert [line async for line in job.logs(follow=True)] == []
    assert (await (await async_sdk.job("awaited")).detail()).id == job.id


def test_the_archive_that_arrives_is_the_one_that_was_packed(sdk: Client, code: Path, settings: Any) -> None:
    sdk.run(code, "python train.py", name="kept")
    (retained,) = [path for path in settings.archive_dir.rglob("*") if path.is_file() and path.stat().st_size]
    with tarfile.open(retained) as archive:
        assert archive.getnames() == ["train.py"]
