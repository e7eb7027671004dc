"""Projects, members, users, tokens, secrets, volumes, nodes."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, update

from core.db.engine import unit_of_work
from core.db.tables import Attempt, Endpoint, Event, Membership, Model, ModelVersion, Node, Replica, Secret, Study, User
from core.domain.errors import InvalidSpec
from core.secrets import UnreadableSecret, open_secrets, unseal
from tests.databases import POSTGRES


def kinds(house: Any) -> list[str]:
    with unit_of_work(house.sessions, read_only=True) as session:
        return list(session.scalars(select(Event.kind).order_by(Event.id)))


# --- projects --------------------------------------------------------------------------------------------------------


def test_users_see_themselves_and_those_of_their_projects_and_admins_see_all(house: Any) -> None:
    def seen(who: str) -> list[str]:
        return [user["name"] for user in house.call(who, "GET", "/users").json()["items"]]

    assert seen("viewer") == ["member", "owner", "viewer"]
    assert seen("stranger") == ["stranger"]
    assert seen("nobody") == ["nobody"]
    assert seen("root") == ["member", "nobody", "owner", "root", "stranger", "viewer"]


def test_everybody_sees_their_own_projects_and_a_platform_admin_all(house: Any) -> None:
    def seen(who: str) -> dict[str, str | None]:
        return {p["name"]: p["my_role"] for p in house.call(who, "GET", "/projects").json()["items"]}

    assert seen("viewer") == {"vision": "viewer"}
    assert seen("nobody") == {}
    assert seen("root") == {"other": None, "vision": None}
    assert house.call("viewer", "GET", "/projects/vision").json()["my_role"] == "viewer"
    assert house.call("viewer", "GET", "/projects/other").status_code == 404


def test_a_project_is_made_changed_and_deleted(house: Any) -> None:
    assert house.call("root", "POST", "/projects", json={"name": "speech"}).json()["my_role"] == "admin"
    again = house.call("root", "POST", "/projects", json={"name": "speech"})
    assert (again.status_code, again.json()["field"]) == (409, "name")
    assert house.call("root", "PATCH", "/projects/speech", json={"weight": 3}).json()["weight"] == 3
    assert house.call("root", "DELETE", "/projects/speech").status_code == 204
    assert house.call("root", "GET", "/projects/speech").status_code == 404
    assert house.call("root", "POST", "/projects", json={"name": "speech"}).status_code == 201
    assert kinds(house) == ["project.created", "project.changed", "project.deleted", "project.created"]


def test_the_share_of_a_project_is_not_its_own_to_set(house: Any) -> None:
    assert house.call("owner", "PATCH", "/projects/vision", json={"description": "x"}).status_code == 200
    answer = house.call("owner", "PATCH", "/projects/vision", json={"weight": 1000})
    assert (answer.status_code, answer.json()["field"]) == (403, "weight")


def test_a_project_with_live_jobs_is_not_deleted(house: Any) -> None:
    answer = house.call("owner", "DELETE", "/projects/vision")
    assert answer.status_code == 409
    assert "1 job that has not ended" in answer.json()["detail"]
    house.set_state("job-1", "succeeded")
    assert house.call("owner", "DELETE", "/projects/vision").status_code == 204


def test_a_project_is_not_deleted_under_what_lives_in_it(house: Any) -> None:
    house.set_state("job-1", "succeeded")
    now = house.now
    by = {"project_id": "project-vision", "user_id": "user-owner", "created_at": now, "updated_at": now}
    search = Study(id="study-1", name="search", spec={}, seed=1, state="paused", started_at=now, **by)
    model = Model(id="model-1", name="digits", **by)
    version = ModelVersion(
        id="version-1", model_id="model-1", number=1, state="registering", job_id="job-1", source={}, volume="output",
        path=".models/vision/version-1", **by,
    )  # fmt: skip
    doors = [Endpoint(id=f"endpoint-{name}", name=name, **by) for name in ("a", "b", "c", "d", "gone")]
    doors[-1].deleted_at = now
    with unit_of_work(house.sessions) as session:
        session.add_all([search, model, *doors])
        session.flush()
        session.add(version)
    answer = house.call("owner", "DELETE", "/projects/vision")
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith(
        "Project vision has 1 study that has not ended (search), 1 model being registered (digits) and "
        "4 endpoints (a, b, c, …); "
    )
    with unit_of_work(house.sessions) as session:
        session.get_one(Study, "study-1").state = "cancelled"
        session.get_one(ModelVersion, "version-1").state = "ready"
        session.execute(
            update(Endpoint).where(Endpoint.deleted_at.is_(None), Endpoint.name != "a").values(deleted_at=now)
        )
    assert "has 1 endpoint (a); " in house.call("owner", "DELETE", "/projects/vision").json()["detail"]
    with unit_of_work(house.sessions) as session:
        session.get_one(Endpoint, "endpoint-a").deleted_at = now
    assert house.call("owner", "DELETE", "/projects/vision").status_code == 204


def test_members_are_set_and_removed_and_the_last_admin_stays(house: Any) -> None:
    path = "/projects/vision/members"
    assert house.call("owner", "PUT", f"{path}/nobody", json={"role": "viewer"}).status_code == 200
    assert house.call("nobody", "GET", "/projects/vision").status_code == 200
    for call in (("PUT", {"json": {"role": "member"}}), ("DELETE", {})):
        answer = house.call("root", call[0], f"{path}/owner", **call[1])
        assert answer.status_code == 409
        assert "last admin" in answer.json()["detail"]
    assert house.call("owner", "PUT", f"{path}/member", json={"role": "admin"}).status_code == 200
    assert house.call("owner", "DELETE", f"{path}/owner").status_code == 204
    assert house.call("owner", "GET", "/projects/vision").status_code == 404
    members = {m["user"]: m["role"] for m in house.call("viewer", "GET", path).json()["items"]}
    assert members == {"member": "admin", "nobody": "viewer", "viewer": "viewer"}
    assert house.call("member", "PUT", f"{path}/ghost", json={"role": "viewer"}).status_code == 404
    assert house.call("member", "DELETE", f"{path}/stranger").status_code == 404


# --- users and tokens ------------------------------------------------------------------------------------------------


def test_a_disabled_user_is_out_at_once_and_comes_back(house: Any) -> None:
    assert house.call("member", "GET", "/me").status_code == 200
    assert house.call("root", "PATCH", "/users/member", json={"is_disabled": True}).json()["disabled_at"]
    answer = house.call("member", "GET", "/me")
    assert answer.status_code == 401
    assert "disabled" in answer.json()["detail"]
    house.call("root", "PATCH", "/users/member", json={"is_disabled": False})
    assert house.call("member", "GET", "/me").status_code == 200


@pytest.mark.parametrize("change", [{"is_admin": False}, {"is_disabled": True}])
def test_the_last_platform_admin_stays(house: Any, change: dict[str, bool]) -> None:
    answer = house.call("root", "PATCH", "/users/root", json=change)
    assert answer.status_code == 409
    house.call("root", "POST", "/users", json={"name": "second", "is_admin": True})
    assert house.call("root", "PATCH", "/users/root", json=change).status_code == 200
    assert house.call("root", "POST", "/users", json={"name": "third"}).status_code in (401, 403)


def test_a_users_name_is_taken_once(house: Any) -> None:
    assert house.call("root", "POST", "/users", json={"name": "member"}).status_code == 409
    assert house.call("root", "POST", "/users", json={"name": "Not A Name"}).status_code == 422
    assert house.call("root", "PATCH", "/users/ghost", json={"is_admin": True}).status_code == 404


def test_a_token_is_shown_once_works_and_ends_when_revoked(house: Any) -> None:
    made = house.call("member", "POST", "/tokens", json={"name": "laptop", "scopes": ["read"]})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    token = made.json()["token"]
    assert house.call(token, "GET", "/me").json()["user"] == "member"
    assert house.call(token, "POST", "/tokens", json={"name": "x"}).status_code == 403
    listed = house.call("member", "GET", "/tokens").json()["items"]
    assert {t["name"] for t in listed} == {"laptop", "test"}
    assert token not in house.call("member", "GET", "/tokens").text
    token_id = made.json()["id"]
    assert house.call("stranger", "DELETE", f"/tokens/{token_id}").status_code == 404
    assert house.call("member", "DELETE", f"/tokens/{token_id}").status_code == 204
    assert house.call("member", "DELETE", f"/tokens/{token_id}").status_code == 204
    assert house.call(token, "GET", "/me").status_code == 401


@pytest.mark.parametrize(
    ("who", "body", "status", "field"),
    [
        ("member", {"name": "x", "scopes": ["admin"]}, 403, "scopes"),
        ("member", {"name": "x", "user": "owner"}, 403, "user"),
        ("root", {"name": "x", "user": "owner", "scopes": ["admin"]}, 403, "scopes"),
        ("root", {"name": "x", "user": "ghost"}, 404, "user"),
        ("member", {"name": "x", "expires_in_s": 1e300}, 422, "expires_in_s"),
        ("member", {"name": "x", "expires_in_s": 0}, 422, "expires_in_s"),
        ("member", {"name": "x", "scopes": []}, 422, "scopes"),
        ("member", {"name": ""}, 422, "name"),
    ],
)
def test_a_token_gives_nothing_that_its_maker_lacks(
    house: Any, who: str, body: dict[str, Any], status: int, field: str
) -> None:
    answer = house.call(who, "POST", "/tokens", json=body)
    assert (answer.status_code, answer.json()["field"]) == (status, field)


def test_a_token_expires(house: Any) -> None:
    token = house.call("member", "POST", "/tokens", json={"name": "short", "expires_in_s": 60}).json()["token"]
    assert house.call(token, "GET", "/me").status_code == 200
    house.now += timedelta(seconds=61)
    answer = house.call(token, "GET", "/me")
    assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")


def test_a_platform_admin_makes_tokens_for_others(house: Any) -> None:
    made = house.call("root", "POST", "/tokens", json={"name": "first", "user": "nobody"}).json()
    assert house.call(made["token"], "GET", "/me").json()["user"] == "nobody"
    listed = house.call("root", "GET", "/tokens", params={"user": "nobody"}).json()["items"]
    assert {t["name"] for t in listed} == {"first", "test"}
    assert house.call("member", "GET", "/tokens", params={"user": "nobody"}).status_code == 403


def test_a_platform_admin_sees_everybodys_tokens(house: Any) -> None:
    listed = house.call("root", "GET", "/tokens", params={"all_users": True}).json()["items"]
    assert {"root", "member", "nobody"} <= {token["user"] for token in listed}
    assert house.call("member", "GET", "/tokens", params={"all_users": True}).status_code == 403
    assert house.call("root", "GET", "/tokens", params={"all_users": True, "user": "nobody"}).status_code == 422


def test_a_token_without_a_scope_is_not_informed_to_do_what_needs_it(house: Any) -> None:
    reader = house.call("member", "POST", "/tokens", json={"name": "laptop", "scopes": ["read"]}).json()["token"]
    refused = house.call(reader, "POST", "/tokens", json={"name": "x"}).json()["detail"]
    assert refused == "This needs a token of scope write; yours has read. Log in with another token."


def test_a_wrong_name_is_reported_in_words(house: Any) -> None:
    reported = house.call("owner", "PUT", "/projects/vision/secrets/my-key", json={"value": "x"})
    assert (reported.status_code, reported.json()["field"]) == (422, "name")
    assert (
        "'my-key' is not a variable name: letters, digits and '_', not starting with a digit"
        in reported.json()["detail"]
    )
    assert "^[" not in reported.text


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_a_secret_is_set_named_replaced_and_removed_and_never_shown(house: Any) -> None:
    path = "/projects/vision/secrets"
    for value in ("first-value", "grüße-second-value"):
        answer = house.call("owner", "PUT", f"{path}/WANDB_KEY", json={"value": value})
        assert answer.status_code == 200
        assert value not in answer.text
    listed = house.call("viewer", "GET", path)
    assert [s["name"] for s in listed.json()["items"]] == ["WANDB_KEY"]
    key = house.app.state.context.key
    with unit_of_work(house.sessions, read_only=True) as session:
        assert open_secrets(session, key, "project-vision", ["WANDB_KEY"]) == {"WANDB_KEY": "grüße-second-value"}
        with pytest.raises(InvalidSpec, match="MISSING"):
            open_secrets(session, key, "project-vision", ["WANDB_KEY", "MISSING"])
        row = session.execute(select(Secret)).scalar_one()
        assert b"value" not in row.ciphertext
        wrongs: tuple[tuple[bytes, str, str], ...] = (
            (b"x" * 32, "project-vision", "WANDB_KEY"),
            (key, "project-other", "WANDB_KEY"),
            (key, "project-vision", "B"),
        )
        for other_key, project_id, name in wrongs:
            with pytest.raises(UnreadableSecret):
                unseal(other_key, project_id, name, row.ciphertext)
    assert house.call("owner", "DELETE", f"{path}/WANDB_KEY").status_code == 204
    assert house.call("owner", "DELETE", f"{path}/WANDB_KEY").status_code == 404


@pytest.mark.parametrize(
    ("name", "value"), [("1BAD", "x"), ("a-b", "x"), ("A" * 257, "x"), ("OK", "x" * 65_537), ("OK", "a\0b")]
)
def test_what_no_environment_can_hold_is_refused(house: Any, name: str, value: str) -> None:
    assert house.call("owner", "PUT", f"/projects/vision/secrets/{name}", json={"value": value}).status_code == 422


# --- volumes and nodes -----------------------------------------------------------------------------------------------


def test_a_volume_is_registered_seen_and_forgotten(house: Any, tmp_path: Any) -> None:
    root = tmp_path / "sets"
    root.mkdir()
    made = house.call("root", "POST", "/volumes", json={"name": "sets", "root": str(root), "is_read_only": True})
    assert (made.status_code, made.json()["root"]) == (201, str(root))
    assert house.call("member", "GET", "/volumes/sets").status_code == 404
    assert [v["name"] for v in house.call("member", "GET", "/volumes").json()["items"]] == ["data", "output"]
    assert house.call("root", "PUT", "/volumes/sets/grants/vision", json={"access": "read"}).status_code == 200
    seen = house.call("member", "GET", "/volumes/sets").json()
    assert (seen["root"], seen["config"], seen["grants"]) == (None, {}, [])
    assert seen["parts"] == [{"prefix": "", "access": "read"}]
    assert [v["name"] for v in house.call("member", "GET", "/volumes").json()["items"]] == ["data", "output", "sets"]
    assert house.call("root", "POST", "/volumes", json={"name": "sets", "root": str(root)}).status_code == 409
    assert house.call("root", "DELETE", "/volumes/sets").status_code == 204
    assert house.call("root", "DELETE", "/volumes/sets").status_code == 404
    assert root.is_dir()


@pytest.mark.parametrize("root", [None, "relative/path", "/no/such/folder", "/", "HOME", "HOME/run", "HOME/archives/x"])
def test_a_local_volume_needs_a_folder_that_shows_nothing_of_the_platform(house: Any, root: str | None) -> None:
    home = house.settings.home
    for name in ("run", "archives/x"):
        (home / name).mkdir(parents=True)
    given = root.replace("HOME", str(home)) if root else None
    answer = house.call("root", "POST", "/volumes", json={"name": "v", "root": given})
    assert (answer.status_code, answer.json()["field"]) == (422, "root")


@pytest.mark.parametrize("root", ["", ".models", ".models/vision"])
def test_a_volume_that_holds_registered_models_is_read_only(house: Any, root: str) -> None:
    (house.output / ".models" / "vision").mkdir(parents=True)
    body = {"name": "v", "root": str(house.output / root)}
    answer = house.call("root", "POST", "/volumes", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "root")
    assert "registered models of volume 'output'" in answer.json()["detail"]
    assert house.call("root", "POST", "/volumes", json={**body, "is_read_only": True}).status_code == 201


def test_a_volume_elsewhere_needs_no_root(house: Any) -> None:
    body = {"name": "claim", "kind": "pvc", "config": {"claim": "data"}}
    assert house.call("root", "POST", "/volumes", json=body).status_code == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "nfs", "config": {"path": "/export"}}, "config.server"),
        ({"kind": "nfs", "config": {"server": "nfs", "path": "export"}}, "config.path"),
        ({"kind": "nfs", "config": {"server": "nfs", "path": "/export/../etc"}}, "config.path"),
        ({"kind": "nfs", "config": {"server": "nfs,x", "path": "/export"}}, "config.server"),
        ({"kind": "pvc"}, "config"),
        ({"kind": "pvc", "config": {"claim": "Data"}}, "config.claim"),
        (
            {"kind": "csi", "config": {"driver": "csi.example.org", "attributes": {"bucket": {}}}},
            "config.attributes.bucket",
        ),
        ({"kind": "csi", "config": {"driver": "csi.example.org", "claim": "x"}}, "config.claim"),
        ({"kind": "local", "root": "/tmp", "config": {"path": "tmp"}}, "config.path"),
    ],
)
def test_what_containers_need_to_mount_it_is_queried_at_once(house: Any, body: dict[str, Any], field: str) -> None:
    answer = house.call("root", "POST", "/volumes", json={"name": "v", **body})
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_an_unknown_kind_of_volume_names_the_known_ones(house: Any) -> None:
    answer = house.call("root", "POST", "/volumes", json={"name": "v", "kind": "ftp"})
    assert answer.status_code == 422
    assert "local, nfs, pvc or csi" in answer.json()["detail"] + str(answer.json()["errors"])


def test_a_volumes_config_is_retained_as_it_was_given(house: Any) -> None:
    config = {"driver": "csi.example.org", "attributes": {"bucket": "sets"}, "secret": "keys"}
    house.call("root", "POST", "/volumes", json={"name": "bucket", "kind": "csi", "config": config})
    assert house.call("root", "GET", "/volumes/bucket").json()["config"] == config


@pytest.mark.parametrize(
    "spec", [{"input": "sets/digits"}, {"mounts": [{"volume": "sets", "at": "/mnt/x"}]}, {"output": "sets/out"}]
)
def test_a_volume_in_use_is_not_forgotten(house: Any, tmp_path: Any, spec: dict[str, Any]) -> None:
    (tmp_path / "sets").mkdir()
    house.call("root", "POST", "/volumes", json={"name": "sets", "root": str(tmp_path / "sets")})
    with unit_of_work(house.sessions) as session:
        house.add_job(session, "job-2", state="queued", **spec)
    answer = house.call("root", "DELETE", "/volumes/sets")
    assert answer.status_code == 409
    assert "job-2" in answer.json()["detail"]
    house.set_state("job-2", "cancelled")
    assert house.call("root", "DELETE", "/volumes/sets").status_code == 204
    assert house.call("root", "DELETE", "/volumes/output").status_code == 409


def test_a_node_shows_as_used_what_the_planner_does_not_give(house: Any) -> None:
    node = house.call("viewer", "GET", "/nodes/node-a").json()
    assert node["used"] == {"cpu_milli": 1000, "memory_bytes": 2**31, "gpus": {"H200": 2}}
    assert node["replicas"] == 2
    with unit_of_work(house.sessions) as session:
        replica = session.get(Replica, "replica-0")
        assert replica is not None
        replica.state = "failed"  # it may be started again where it was
    node = house.call("viewer", "GET", "/nodes").json()["items"][0]
    assert node["used"] == {"cpu_milli": 1000, "memory_bytes": 2**31, "gpus": {"H200": 2}}
    assert node["replicas"] == 1
    with unit_of_work(house.sessions) as session:
        session.execute(update(Replica).where(Replica.id == "replica-0").values(state="succeeded"))
    node = house.call("viewer", "GET", "/nodes/node-a").json()
    assert node["used"] == {"cpu_milli": 500, "memory_bytes": 2**30, "gpus": {"H200": 1}}
    with unit_of_work(house.sessions) as session:
        session.execute(update(Attempt).values(state="ended"))
    assert house.call("viewer", "GET", "/nodes/node-a").json()["used"]["gpus"] == {}
    assert house.call("viewer", "GET", "/nodes/ghost").status_code == 404


def test_a_node_is_cordoned_with_a_reason_and_the_history_tells(house: Any) -> None:
    node = house.call("root", "POST", "/nodes/node-a/cordon", json={"reason": "disk is loud"}).json()
    assert (node["is_cordoned"], node["cordon_reason"]) == (True, "disk is loud")
    house.call("root", "POST", "/nodes/node-a/cordon", json={"reason": "disk is loud"})
    node = house.call("root", "POST", "/nodes/node-a/uncordon").json()
    assert (node["is_cordoned"], node["cordon_reason"]) == (False, "")
    assert kinds(house) == ["node.cordoned", "node.uncordoned"]


def test_a_node_is_drained_and_opened_again(house: Any) -> None:
    node = house.call("root", "POST", "/nodes/node-a/drain", json={"reason": "new disks"}).json()
    assert (node["is_cordoned"], node["is_draining"], node["cordon_reason"]) == (True, True, "new disks")
    node = house.call("root", "POST", "/nodes/node-a/cordon", json={"reason": "new disks"}).json()
    assert (node["is_cordoned"], node["is_draining"]) == (True, False)  # what runs there may stay after all
    house.call("root", "POST", "/nodes/node-a/drain")
    node = house.call("root", "POST", "/nodes/node-a/uncordon").json()
    assert (node["is_cordoned"], node["is_draining"], node["cordon_reason"]) == (False, False, "")
    assert kinds(house) == ["node.draining", "node.cordoned", "node.draining", "node.uncordoned"]


def quarantine(house: Any, **more: Any) -> dict[str, Any]:
    """Put node-a into quarantine as the control loop does."""
    at = house.now
    cause = {"job_id": "job-0", "job": "secret-name", "at": at.isoformat(), "error": "uncorrectable ECC error"}
    retained = {"error": "uncorrectable ECC error in job secret-name", "causes": [cause]}
    values = {"quarantine": retained, "quarantined_at": at, "quarantine_count": 2, **more}
    with unit_of_work(house.sessions) as session:
        session.execute(update(Node).where(Node.name == "node-a").values(**values))
    return cause


def test_a_quarantine_is_shown_with_its_jobs_and_released_and_the_history_tells(house: Any) -> None:
    quarantine(house, quarantined_until=house.now + timedelta(hours=4))
    found = house.call("root", "GET", "/nodes/node-a").json()["quarantine"]
    assert found["why"] == "uncorrectable ECC error in job secret-name"
    assert (found["jobs"][0]["job_id"], found["jobs"][0]["error"]) == ("job-0", "uncorrectable ECC error")
    assert found["until"] > found["since"]
    node = house.call("root", "POST", "/nodes/node-a/release", json={"reason": "new board"}).json()
    assert (node["quarantine"], node["is_cordoned"]) == (None, False)
    house.call("root", "POST", "/nodes/node-a/release")  # again: nothing
    assert kinds(house) == ["node.released"]
    with unit_of_work(house.sessions) as session:
        row = session.get(Node, "node-a")
        assert (row.trusted_since, row.quarantine_count) == (house.now, 0)


def test_a_quarantine_names_no_job_to_anyone_it_is_not_for(house: Any) -> None:
    quarantine(house)
    reported = house.call("stranger", "GET", "/nodes").text
    assert "uncorrectable ECC error in a job of another project" in reported
    assert "secret-name" not in reported
    assert "job-0" not in reported


def test_a_suspicion_is_shown_and_dismissed(house: Any) -> None:
    cause = quarantine(house, quarantined_at=None, quarantine=None)
    retained = {
        "sentence": "…",
        "why_not": "it is the last node",
        "until": "2026-11-22T14:00:00+00:00",
        "causes": [cause],
    }
    with unit_of_work(house.sessions) as session:
        session.execute(update(Node).where(Node.name == "node-a").values(suspicion=retained))
    found = house.call("root", "GET", "/nodes/node-a").json()["suspicion"]
    assert (found["why"], found["why_not"]) == ("uncorrectable ECC error in job secret-name", "it is the last node")
    assert house.call("root", "POST", "/nodes/node-a/release").json()["suspicion"] is None


def put_labels(house: Any, **labels: Any) -> Any:
    return house.call("root", "PUT", "/nodes/node-a/labels", json={"labels": labels})


def test_an_admins_labels_lie_over_those_of_the_executor(house: Any) -> None:
    notified: list[str] = []
    house.app.state.context = replace(
        house.app.state.context, wakeup=SimpleNamespace(notify=lambda *a: notified.append(a[0]))
    )
    node = put_labels(house, pool="fast", zone="b").json()
    assert node["labels"] == {"zone": "b", "pool": "fast"}
    assert node["admin_labels"] == {"zone": "b", "pool": "fast"}
    assert put_labels(house, pool="fast", zone="b").status_code == 200
    assert notified == ["tick"]
    node = put_labels(house, **{"topology/rack": "r1"}).json()
    assert node["labels"] == {"zone": "a", "topology/rack": "r1"}
    assert house.call("viewer", "GET", "/nodes").json()["items"][0] == node
    assert kinds(house) == ["node.labelled", "node.labelled"]
    assert house.call("root", "PUT", "/nodes/ghost/labels", json={"labels": {}}).status_code == 404


@pytest.mark.parametrize("labels", [{"a b": "x"}, {"a": "x y"}, {"-a": "x"}, {"a": ["x"]}, {"a": "x" * 64}, {"": "x"}])
def test_what_is_no_label_is_refused_with_its_place(house: Any, labels: dict[str, Any]) -> None:
    answer = put_labels(house, **labels)
    assert answer.status_code == 422
    assert "label" in answer.text or "must be text" in answer.text
    assert house.call("root", "GET", "/nodes/node-a").json()["admin_labels"] == {}


def test_a_node_is_forgotten_when_it_is_gone_and_holds_nothing(house: Any) -> None:
    ready = house.call("root", "DELETE", "/nodes/node-a")
    assert (ready.status_code, "is ready" in ready.json()["detail"]) == (409, True)
    with unit_of_work(house.sessions) as session:
        session.execute(update(Node).values(is_ready=False))
        session.execute(update(Replica).values(state="lost"))
    holds = house.call("root", "DELETE", "/nodes/node-a")
    assert (holds.status_code, "job-1" in holds.json()["detail"]) == (409, True)
    with unit_of_work(house.sessions) as session:
        session.execute(update(Attempt).values(state="ended"))
    assert house.call("root", "DELETE", "/nodes/node-a").status_code == 204
    assert house.call("root", "DELETE", "/nodes/node-a").status_code == 404
    assert house.call("viewer", "GET", "/nodes").json()["items"] == []
    assert kinds(house) == ["node.removed"]


def test_a_ready_node_that_nobody_has_seen_for_long_is_gone_too(house: Any) -> None:
    with unit_of_work(house.sessions) as session:
        session.execute(update(Attempt).values(state="ended"))
        session.execute(update(Node).values(seen_at=house.now - timedelta(minutes=11)))
    assert house.call("root", "DELETE", "/nodes/node-a").status_code == 204


# --- the schema and checkpoints --------------------------------------------------------------------------------------


def test_the_schema_of_the_spec_is_served(house: Any) -> None:
    answer = house.call("viewer", "GET", "/spec/schema")
    assert answer.json()["type"] == "object"
    assert (
        house.call("viewer", "GET", "/spec/schema", headers={"If-None-Match": answer.headers["etag"]}).status_code
        == 304
    )


def test_checkpoints_reported_and_found_are_one_list(house: Any) -> None:
    from core.db.tables import Checkpoint

    folder = house.output / "vision/job-1/checkpoints"
    (folder / "step-20").mkdir(parents=True)
    (folder / "step-20" / ".complete").touch()
    (folder / "step-10.pt").write_bytes(b"123")
    (folder / "step-30").mkdir()
    with unit_of_work(house.sessions) as session:
        for number, step in enumerate((5, 20)):
            session.add(
                Checkpoint(
                    id=f"c{number}",
                    job_id="job-1",
                    attempt_id="attempt-1",
                    path=f"checkpoints/step-{step}",
                    step=step,
                    metrics={"loss": 0.5},
                    size_bytes=9,
                    created_at=house.now,
                )
            )
    found = house.call("viewer", "GET", "/jobs/job-1/checkpoints").json()["items"]
    assert [(c["path"], c["attempt_number"], c["size_bytes"]) for c in found] == [
        ("checkpoints/step-20", 1, 9),
        ("checkpoints/step-10.pt", 1, 3),  # untold, but that attempt ran when it was written
    ]


@pytest.mark.skipif(not POSTGRES, reason="SQLite has one writer; TRAINMASTER_TEST_DATABASE_URL names no PostgreSQL")
@pytest.mark.parametrize("round_", range(5))
def test_two_admins_cannot_take_each_other_away_at_once(house: Any, round_: int) -> None:
    house.call("owner", "PUT", "/projects/vision/members/member", json={"role": "admin"})
    house.call("root", "PATCH", "/users/owner", json={"is_admin": True})
    statuses: list[int] = []
    start = threading.Barrier(4)

    def go(who: str, method: str, path: str, body: dict[str, Any] | None) -> None:
        start.wait()
        statuses.append(house.call(who, method, path, json=body).status_code)

    calls = [
        ("owner", "DELETE", "/projects/vision/members/member", None),
        ("member", "DELETE", "/projects/vision/members/owner", None),
        ("root", "PATCH", "/users/root", {"is_admin": False}),
        ("root", "PATCH", "/users/owner", {"is_admin": False}),
    ]
    threads = [threading.Thread(target=go, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with unit_of_work(house.sessions, read_only=True) as session:
        admins = session.scalars(
            select(Membership.user_id).where(Membership.role == "admin", Membership.project_id == "project-vision")
        )
        assert len(list(admins)) == 1
        assert len(list(session.scalars(select(User.id).where(User.is_admin)))) == 1
    assert all(status < 500 for status in statuses)
