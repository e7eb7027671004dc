"""The queue, shares, quotas, the planner's settings and reservations, as people and administrators see them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from core.db.engine import unit_of_work
from core.db.tables import Event, Job, Node, PolicyRow, Project, StartForecastRow, Usage
from scheduler.control.planning.planner_inputs import load_settings


@pytest.fixture
def lab(house: Any) -> Any:
    """Jobs of two projects that wait: the planner put the younger one of `vision` first."""
    with unit_of_work(house.sessions) as session:
        for number, (name, project, gpus) in enumerate(
            [("first-come", "vision", 1), ("chosen", "vision", 2), ("strange", "other", 4), ("late", "vision", 1)]
        ):
            job = house.add_job(session, f"job-{name}", project=project, state="queued", name=name, gpus=gpus)
            job.queued_at = house.now + timedelta(seconds=number)
            job.attempt_count = 0
        session.flush()
        soon = house.now + timedelta(minutes=5)
        times = {"earliest": soon, "likely": soon + timedelta(minutes=5), "latest": None}
        words = {"code": "expected", "sentence": "probably at about 07:10 UTC", "nodes": ["node-a"]}
        session.add(StartForecastRow(job_id="job-chosen", position=1, at=house.now, **times, **words))
        later = {"code": "later", "sentence": "after job digits and others"}
        session.add(StartForecastRow(job_id="job-strange", position=2, at=house.now, **later))
        session.add(Usage(project_id="project-vision", user_id="", value=0.5, share=0.5, at=house.now))
    return house


def names(answer: Any) -> list[str | None]:
    return [job["name"] for job in answer.json()["items"]]


def test_the_queue_stands_in_the_planners_order_and_then_by_priority_and_age(lab: Any) -> None:
    whole = lab.call("root", "GET", "/queue")
    assert names(whole) == ["chosen", "strange", "first-come", "late"]
    assert [job["position"] for job in whole.json()["items"]] == [1, 2, 3, 4]
    assert whole.json()["waiting"] == 4
    with unit_of_work(lab.sessions) as session:
        session.get_one(Job, "job-late").priority = 75
    urgent = lab.call("root", "GET", "/queue")
    assert names(urgent) == ["chosen", "strange", "late", "first-come"]
    assert urgent.json()["items"][2]["priority_class"] == "high"


def test_a_job_tells_the_same_place_as_the_queue(lab: Any) -> None:
    for place, name in enumerate(["chosen", "strange", "first-come", "late"], 1):
        assert lab.call("root", "GET", f"/jobs/job-{name}").json()["queue_position"] == place


def test_who_can_never_start_has_no_place(lab: Any) -> None:
    with unit_of_work(lab.sessions) as session:
        for name, code in (("late", "never_fits"), ("first-come", "no_room")):
            session.get_one(Job, f"job-{name}").wait_reason = {"code": code, "sentence": "needs more", "numbers": {}}
        session.get_one(Job, "job-strange").wait_reason = {
            "code": "quota", "sentence": "may never have so much", "numbers": {"is_never": True}
        }  # fmt: skip
    places = {"chosen": 1, "strange": None, "first-come": 3, "late": None}
    whole = lab.call("root", "GET", "/queue").json()["items"]
    assert {job["name"]: job["position"] for job in whole} == places
    for name, place in places.items():
        assert lab.call("root", "GET", f"/jobs/job-{name}").json()["queue_position"] == place
    # Of another project's job that, too, is all there is to say.
    assert [job["position"] for job in lab.call("viewer", "GET", "/queue").json()["items"] if not job["job_id"]] == [
        None
    ]


def test_others_jobs_have_a_place_and_nothing_else(lab: Any) -> None:
    own = lab.call("viewer", "GET", "/queue")
    assert names(own) == ["chosen", None, "first-come", "late"]
    other = own.json()["items"][1]
    assert (other["job_id"], other["project"], other["user"], other["reason"], other["roles"]) == (
        None,
        None,
        None,
        None,
        {},
    )
    assert other["gpus"] == 8
    assert own.json()["items"][0]["reason"]["code"] == "just_queued"
    assert names(lab.call("stranger", "GET", "/queue")) == [None, "strange", None, None]
    assert own.json()["items"][1]["start"]["sentence"] == ""


def test_an_expected_start_is_informed_where_it_was_worked_out_and_not_made_up_elsewhere(lab: Any) -> None:
    first, second, third, _ = lab.call("root", "GET", "/queue").json()["items"]
    assert first["start"]["early_at"] == "2026-11-21T07:05:00Z"
    assert first["start"]["likely_at"] == "2026-11-21T07:10:00Z"
    assert first["start"]["late_at"] is None
    assert first["start"]["sentence"] == "It starts probably at about 07:10 UTC."
    assert first["start"]["nodes"] == ["node-a"]
    assert (second["start"]["code"], second["start"]["likely_at"]) == ("later", None)
    assert third["start"] is None


def test_the_queue_comes_in_pages_and_of_one_project(lab: Any) -> None:
    found: list[str | None] = []
    cursor = None
    while True:
        query = {"limit": 1, **({"cursor": cursor} if cursor else {})}
        page = lab.call("viewer", "GET", "/queue", params={"project": "vision", **query})
        found += names(page)
        cursor = page.json()["next_cursor"]
        if cursor is None:
            break
    assert found == ["chosen", "first-come", "late"]
    last = lab.call("viewer", "GET", "/queue", params={"project": "vision"}).json()["items"][-1]
    assert last["position"] == 4  # among all
    assert lab.call("viewer", "GET", "/queue", params={"project": "other"}).status_code == 404
    assert lab.call("viewer", "GET", "/queue", params={"cursor": "x"}).status_code == 422


def test_those_that_run_tell_what_they_hold_and_until_when(lab: Any) -> None:
    with unit_of_work(lab.sessions) as session:
        session.get_one(Job, "job-1").max_run_time_s = 3600
    (own,) = lab.call("viewer", "GET", "/queue/running").json()["items"]
    assert (own["name"], own["gpus"], own["gpu_models"], own["replicas"]) == ("digits", 2, {"H200": 2}, 2)
    (other,) = lab.call("stranger", "GET", "/queue/running").json()["items"]
    assert (other["name"], other["project"], other["gpus"]) == (None, None, 2)


def test_shares_tell_what_is_held_wanted_and_due(lab: Any) -> None:
    shares = lab.call("root", "GET", "/shares").json()
    vision, other = (next(s for s in shares["projects"] if s["project"] == name) for name in ("vision", "other"))
    assert shares["gpus"] == {"h200": 4}
    assert vision["running"] == 1
    assert vision["waiting"] == 3
    assert vision["usage"] == pytest.approx(0.5)
    assert vision["wanted"] == other["wanted"] == 1.0
    assert vision["entitlement"] == other["entitlement"] == pytest.approx(0.5)
    assert lab.call("root", "PATCH", "/projects/vision/quota", json={"weight": 3}).status_code == 200
    shares = lab.call("viewer", "GET", "/shares").json()
    assert [s["project"] for s in shares["projects"]] == ["vision", None]
    assert [s["entitlement"] for s in shares["projects"]] == [pytest.approx(0.75), pytest.approx(0.25)]
    assert shares["projects"][1]["users"] == []


# --- quotas -----------------------------------------------------------------------------------------------------------


def line(view: dict[str, Any], what: str) -> dict[str, Any]:
    return next(each for each in view["lines"] if each["what"] == what)


def test_a_quota_is_set_in_parts_and_shown_with_what_is_used(house: Any) -> None:
    body = {
        "limit": {"gpus": 3, "gpus/H200": "2.5", "memory": "8Gi", "jobs": 5},
        "guaranteed": {"gpus": 2},
        "user_limit": {"gpus": 1},
        "users": {"member": {"gpus": 2}},
        "user_guaranteed": {"member": {"gpus": 1}},
        "user_weights": {"member": 2},
        "weight": 2,
        "max_priority": "high",
    }
    view = house.call("root", "PATCH", "/projects/vision/quota", json=body).json()
    gpus = line(view, "gpus")
    assert (gpus["used"], gpus["limit"], gpus["guaranteed"], gpus["user_limit"], gpus["capacity"]) == (2, 3, 2, 1, 4)
    assert line(view, "gpus/h200")["limit"] == 2.5
    assert line(view, "memory")["limit"] == 8 * 2**30
    assert line(view, "jobs")["used"] == 1
    assert (view["weight"], view["max_priority"]) == (2, 75)
    (member,) = view["users"]
    assert (member["user"], member["limit"], member["weight"], member["used"]["gpus"]) == ("member", {"gpus": 2}, 2, 2)
    assert (member["guaranteed"], view["warnings"]) == ({"gpus": 1}, [])
    changes = {"limit": {"gpus": None, "gpus/h200": None}, "users": {"member": None}, "max_priority": None}
    changes["user_guaranteed"] = {"member": None}
    view = house.call("root", "PATCH", "/projects/vision/quota", json=changes).json()
    assert line(view, "gpus")["limit"] is None
    assert line(view, "gpus")["guaranteed"] == 2
    assert view["users"][0]["guaranteed"] == {}
    assert line(view, "memory")["limit"] == 8 * 2**30
    assert view["max_priority"] is None
    assert house.call("viewer", "GET", "/projects/vision/quota").json()["lines"] == view["lines"]
    assert [quota["project"] for quota in house.call("viewer", "GET", "/quotas").json()["items"]] == ["vision"]
    with unit_of_work(house.sessions) as session:
        kinds = [event.kind for event in session.query(Event)]
    assert kinds.count("project.quota_set") == 2


@pytest.mark.parametrize(
    ("body", "field", "reported"),
    [
        ({"limit": {"gpu": 4}}, "limit.gpu", "jobs, cpu, memory, storage, gpus, or gpus/<model>"),
        ({"limit": {"gpus": -1}}, "limit.gpus", "negative"),
        ({"limit": {"gpus": "many"}}, "limit.gpus", "not a quantity"),
        ({"limit": {"jobs": 1.5}}, "limit.jobs", "counted whole"),
        ({"limit": {"memory": 512}}, "limit.memory", "write a unit"),
        ({"limit": {"gpus": 0.0001}}, "limit.gpus", "0.0001 is too little; the smallest part of a GPU is 0.001"),
        ({"users": {"member": {"cpu": "0.0009"}}}, "users.member.cpu", "the smallest part of a CPU is 0.001"),
        ({"limit": {"gpus": 2}, "guaranteed": {"gpus": 3}}, "quota.guaranteed.gpus", ("raise the limit, or guarantee "
                                                                                     "less")),
        ({"guaranteed": {"jobs": 3}}, "quota.guaranteed.jobs", "cannot be guaranteed"),
        ({"weight": 0}, "weight", "weight 2 gets twice the share of weight 1"),
        ({"weight": -1}, "weight", "number from 0.001"),
        ({"weight": 1001}, "weight", "number from 0.001 to 1000;"),
        ({"user_weights": {"member": 0}}, "user_weights.member", "number from 0.001"),
        ({"user_weights": {"who-knows": 2}}, "user_weights.who-knows", "there is no user 'who-knows'"),
        ({"users": {"nobody-knows": {"gpus": 1}}}, "users.nobody-knows", "there is no user"),
        ({"user_guaranteed": {"nobody-knows": {"gpus": 1}}}, "user_guaranteed.nobody-knows", "there is no user"),
        ({"max_priority": "hihg"}, "max_priority", "did you mean high?"),
        ({"max_priority": 101}, "max_priority", "at most 100"),
        ({"limits": {"gpus": 1}}, "limits", ""),
    ],
)  # fmt: skip
def test_a_quota_that_makes_no_sense_is_refused_in_words(
    house: Any, body: dict[str, Any], field: str, reported: str
) -> None:
    before = house.call("root", "GET", "/projects/vision/quota").json()
    answer = house.call("root", "PATCH", "/projects/vision/quota", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert reported in answer.json()["detail"]
    assert house.call("root", "GET", "/projects/vision/quota").json() == before


def test_all_mistakes_of_a_quota_are_reported_at_once(house: Any) -> None:
    before = house.call("root", "GET", "/projects/vision/quota").json()
    given = {
        "limit": {"gpu": 4, "cpu": -1, "jobs": 3},
        "users": {"member": {"memory": 512}, "who-knows": {"cpu": 1}},
        "max_priority": "hihg",
    }
    reported = house.call("root", "PATCH", "/projects/vision/quota", json=given).json()
    assert reported["detail"] == "5 parts of the quota cannot be as given, so nothing is changed."
    assert [one["path"] for one in reported["errors"]] == [
        "limit.gpu", "limit.cpu", "users.who-knows", "users.member.memory", "max_priority",
    ]  # fmt: skip
    assert house.call("root", "GET", "/projects/vision/quota").json() == before


@pytest.mark.parametrize("weight", ["0", "0.0005", "1000.5"])
def test_every_weight_has_the_same_rule(house: Any, weight: str) -> None:
    head = {"Content-Type": "application/json"}
    for verb, path, body in (
        ("POST", "/projects", '{"name": "new", "weight": %s}'),
        ("PATCH", "/projects/vision", '{"weight": %s}'),
        ("PATCH", "/projects/vision/quota", '{"weight": %s}'),
        ("PATCH", "/projects/vision/quota", '{"user_weights": {"member": %s}}'),
    ):
        answer = house.call("root", verb, path, content=body % weight, headers=head)
        assert answer.status_code == 422, answer.text
        assert "must be a number from 0.001 to 1000; weight 2" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ({"limit": {"gpus/B200": 4}}, "No node has the GPU model b200; the nodes have h200."),
        ({"guaranteed": {"gpus": 5}}, "gpus: 5 GPUs are guaranteed to vision, but all nodes together have 4 GPUs."),
        ({"guaranteed": {"gpus": 3}}, "the guarantees of all projects add up to 5 GPUs, but the nodes have 4 GPUs"),
        ({"limit": {"gpus": 100}}, "is above the capacity of all nodes (4 GPUs) and has no effect."),
        ({"limit": {"gpus": 0}}, "with a limit of 0 no job with GPUs of this project can start."),
        (
            {"limit": {"gpus": 2}, "user_limit": {"gpus": 3}},
            "each user may use 3 GPUs, but the whole project only 2 GPUs",
        ),
        (
            {"guaranteed": {"gpus": 1}, "user_guaranteed": {"member": {"gpus": 2}}},
            (
                "gpus: the guarantees of vision's users add up to 2 GPUs, but the project is guaranteed 1 GPU; beyond "
                "that they reclaim only from other users of the project."
            ),
        ),
        ({"user_guaranteed": {"member": {"gpus": 2}}}, "add up to 2 GPUs, but the project is guaranteed nothing"),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(house: Any, body: dict[str, Any], reported: str) -> None:
    assert (
        house.call("root", "PATCH", "/projects/other/quota", json={"guaranteed": {"gpus": 2}}).json()["warnings"] == []
    )
    warnings = house.call("root", "PATCH", "/projects/vision/quota", json=body).json()["warnings"]
    assert any(reported in warning for warning in warnings), warnings


def test_a_gpu_model_is_retained_by_the_nodes_own_name_and_one_that_may_be_several_is_refused(house: Any) -> None:
    with unit_of_work(house.sessions) as session:
        for size in ("40gb", "80gb"):
            allocatable = {"cpu_milli": 1, "memory_bytes": 1, "gpus": {f"a100-sxm4-{size}": 8}}
            session.add(
                Node(
                    name=size, executor="fake", labels={}, allocatable=allocatable, gpus=[], is_ready=True,
                    seen_at=house.now,
                )
            )  # fmt: skip
    view = house.call("root", "PATCH", "/projects/vision/quota", json={"limit": {"gpus/A100-80GB": 4}}).json()
    assert line(view, "gpus/a100-sxm4-80gb")["limit"] == 4
    several = house.call("root", "PATCH", "/projects/vision/quota", json={"limit": {"gpus/A100": 4}})
    assert "gpus/a100-sxm4-40gb or gpus/a100-sxm4-80gb; name one of them" in several.json()["detail"]


def test_a_job_of_larger_priority_than_its_project_may_have_is_refused(house: Any) -> None:
    house.call("root", "PATCH", "/projects/vision/quota", json={"max_priority": "normal"})
    spec = {"name": "a", "project": "vision", "command": "true", "workers": 1}
    refused = house.call("member", "POST", "/jobs", json={"spec": {**spec, "priority": "urgent"}})
    assert refused.status_code == 422
    assert refused.json()["field"] == "priority"
    assert "jobs of project vision may have normal (50) at most, not urgent (100)" in refused.json()["detail"]
    assert house.call("member", "POST", "/jobs", json={"spec": {**spec, "priority": "low"}}).status_code == 201


# --- policy -----------------------------------------------------------------------------------------------------------


def setting(view: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in view["settings"] if each["name"] == name)


def test_settings_are_written_as_they_are_shown(house: Any) -> None:
    before = house.call("viewer", "GET", "/policy").json()
    assert setting(before, "time_slice")["text"] == "10m"
    assert before["updated_at"] is None
    given = {"time_slice": "1h30m", "order": "shortest-first", "fair": "off", "levels_gpu": "30m,4h", "grace_s": 45}
    after = house.call("root", "PATCH", "/policy", json={"settings": given}).json()
    assert setting(after, "time_slice")["value"] == 5400
    assert setting(after, "grace")["text"] == "45s"
    assert setting(after, "levels_gpu")["value"] == [1800, 14400]
    assert after["updated_by"] == "root"
    again = {each["name"]: each["text"] for each in after["settings"]}
    assert house.call("root", "PATCH", "/policy", json={"settings": again}).json()["settings"] == after["settings"]
    back = house.call("root", "PATCH", "/policy", json={"settings": dict.fromkeys(again, "default")}).json()
    assert back["settings"] == before["settings"]


@pytest.mark.parametrize(
    ("given", "field", "reported"),
    [
        ({"tim_slice": "1h"}, "settings.tim_slice", "Did you mean time_slice?"),
        ({"time_slice": "soon"}, "settings.time_slice", "not a duration"),
        ({"time_slice": 0}, "settings.time_slice", "more than 0 seconds"),
        ({"grace": "off"}, "settings.grace", "not a duration"),
        ({"order": "random"}, "settings.order", "is one of fifo, shortest-first"),
        ({"fair": "perhaps"}, "settings.fair", "is on or off"),
        ({"usage_weight": 2}, "settings.usage_weight", "between 0 and 1"),
        ({"usage_weight": "nan"}, "settings.usage_weight", "is a number"),
        ({"levels_gpu": "8h,1h"}, "settings.levels_gpu", "each longer than the one before"),
        ({"grace": "1h", "grace_s": 1}, "settings.grace_s", "is given twice"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_in_words(
    house: Any, given: dict[str, Any], field: str, reported: str
) -> None:
    answer = house.call("root", "PATCH", "/policy", json={"settings": given})
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert reported in answer.json()["detail"]
    assert house.call("root", "GET", "/policy").json()["updated_at"] is None


def test_all_mistakes_of_the_settings_are_reported_at_once(house: Any) -> None:
    given = {"order": "random", "grace": "2h", "tim_slice": "1h", "usage_weight": 0.5}
    reported = house.call("root", "PATCH", "/policy", json={"settings": given}).json()
    assert reported["detail"] == "3 of the settings are invalid, so none was changed."
    assert [one["path"] for one in reported["errors"]] == ["settings.order", "settings.grace", "settings.tim_slice"]
    assert "at most 3600 seconds" in reported["errors"][1]["message"]
    assert house.call("root", "GET", "/policy").json()["updated_at"] is None


def test_a_policy_of_another_version_can_be_read_and_mended(house: Any) -> None:
    retained = {"order": "fifo", "time_slice_s": None, "grace_s": "long", "gravity": 9.81}
    with unit_of_work(house.sessions) as session:
        session.add(PolicyRow(name="policy", settings=retained, generation=4, updated_at=house.now, updated_by="root"))
    seen = house.call("root", "GET", "/policy").json()
    texts = {setting["name"]: setting["text"] for setting in seen["settings"]}
    assert (texts["order"], texts["grace"]) == ("fifo", "30s")
    assert "This version cannot read the stored value of grace (grace is a number)" in seen["warnings"][0]
    assert "'gravity'" in seen["warnings"][1]
    with unit_of_work(house.sessions) as session:
        policy = load_settings(session, house.now).policy
        assert (policy.order, policy.grace_s) == ("fifo", 30.0)
    mended = house.call("root", "PATCH", "/policy", json={"settings": {"grace": "45s"}}).json()
    assert mended["warnings"] == []
    with unit_of_work(house.sessions) as session:
        row = session.get_one(PolicyRow, "policy")
        assert (row.settings, row.generation) == (
            {"order": "fifo", "time_slice_s": None, "grace_s": 45.0},
            5,
        )
        row.settings = ["nonsense"]
    assert "no object of settings" in house.call("root", "GET", "/policy").json()["warnings"][0]
    given = {"order": "fifo", "time_slice": "off"}
    assert house.call("root", "PATCH", "/policy", json={"settings": given}).json()["warnings"] == []


def test_settings_that_undo_each_other_are_warned_of(house: Any) -> None:
    given = {"time_slice": "1m", "order": "fifo", "fair": "off", "preempts_shares": "on"}
    warnings = " ".join(house.call("root", "PATCH", "/policy", json={"settings": given}).json()["warnings"])
    assert "time_slice is shorter than min_run_time" in warnings
    assert "less than ten times restart_cost plus grace" in warnings
    assert "only an older waiting job replaces a younger running one" in warnings
    assert "preempts_shares has no effect while fair is off" in warnings


# --- reservations -----------------------------------------------------------------------------------------------------


def ask(**more: Any) -> dict[str, Any]:
    given = {"name": "demo", "project": "vision", "nodes": ["node-a"], "ends_at": "2026-11-22T07:00:00Z", **more}
    return {key: value for key, value in given.items() if value is not None}


def test_a_reservation_is_made_shown_and_deleted(house: Any) -> None:
    made = house.call("root", "POST", "/reservations", json=ask())
    assert made.status_code == 201
    assert made.json()["is_active"] is True
    assert made.json()["nodes"] == ["node-a"]
    (own,) = house.call("viewer", "GET", "/reservations").json()["items"]
    assert (own["name"], own["project"]) == ("demo", "vision")
    (other,) = house.call("stranger", "GET", "/reservations").json()["items"]
    assert (other["name"], other["project"], other["nodes"]) == (None, None, ["node-a"])
    assert house.call("root", "DELETE", f"/reservations/{own['id']}").status_code == 204
    assert house.call("viewer", "GET", "/reservations").json()["items"] == []
    assert house.call("root", "DELETE", f"/reservations/{own['id']}").status_code == 404


def test_a_reservation_is_deleted_by_its_name_where_only_one_has_it(house: Any) -> None:
    later = ask(begins_at="2026-11-23T07:00:00Z", ends_at="2026-11-24T07:00:00Z")
    made = [house.call("root", "POST", "/reservations", json=body).json()["id"] for body in (ask(), later)]
    refused = house.call("root", "DELETE", "/reservations/demo")
    assert refused.status_code == 409
    assert f"2 reservations are named 'demo'; use the id ({', '.join(made)})" in refused.json()["detail"]
    assert house.call("root", "DELETE", f"/reservations/{made[0]}").status_code == 204
    assert house.call("root", "DELETE", "/reservations/demo").status_code == 204
    gone = house.call("root", "DELETE", "/reservations/demo")
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "status", "field", "reported"),
    [
        (ask(nodes=["node-x"]), 422, "nodes", "there is no node 'node-x'"),
        (ask(nodes=None), 422, "nodes", "not both"),
        (ask(node_selector={"zone": "a"}), 422, "nodes", "not both"),
        (ask(nodes=None, node_selector={"pool": "gone"}), 422, "node_selector", "no node has the labels pool=gone"),
        (
            ask(nodes=None, node_selector={"zone": "a"}, count=2),
            422,
            "count",
            "only 1 node matches, but 2 are requested.",
        ),
        (ask(begins_at="2026-11-20T07:00:00Z"), 422, "begins_at", "is in the past"),
        (ask(ends_at="2026-11-21T06:00:00Z"), 422, "ends_at", "is not after the beginning"),
        (ask(ends_at="2030-11-21T06:00:00Z"), 422, "ends_at", "at most 366 days"),
        (ask(project="vizion"), 422, "project", "no project 'vizion'"),
    ],
)
def test_a_reservation_that_makes_no_sense_is_refused_in_words(
    house: Any, body: dict[str, Any], status: int, field: str, reported: str
) -> None:
    answer = house.call("root", "POST", "/reservations", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["field"] == field
    assert reported in answer.json()["detail"]


def test_what_a_deleted_project_had_of_the_planner_goes_with_it(house: Any) -> None:
    assert house.call("root", "POST", "/projects", json={"name": "short"}).status_code == 201
    assert house.call("root", "POST", "/reservations", json=ask(project="short")).status_code == 201
    with unit_of_work(house.sessions) as session:
        project_id = session.execute(select(Project.id).where(Project.name == "short")).scalar_one()
        session.add(Usage(project_id=project_id, user_id="", value=0.5, share=0.0, at=house.now))
    assert house.call("root", "POST", "/reservations", json=ask()).status_code == 409
    assert house.call("root", "DELETE", "/projects/short").status_code == 204
    with unit_of_work(house.sessions) as session:
        event = session.execute(select(Event).where(Event.kind == "project.deleted")).scalar_one()
        assert event.data["reservations"] == ["demo"]
        settings = load_settings(session, house.now)
        assert (settings.bookings, project_id in {one for one, _ in settings.usage}) == ((), False)
        assert all(not account.project.startswith("short") for account in settings.accounts)
    assert house.call("root", "POST", "/reservations", json=ask()).status_code == 201


def test_the_past_of_somebody_who_is_gone_is_not_the_projects(house: Any) -> None:
    with unit_of_work(house.sessions) as session:
        for user, value in (("", 0.5), ("user-gone", 0.25)):
            session.add(Usage(project_id="project-vision", user_id=user, value=value, share=0.0, at=house.now))
        session.flush()
        (account,) = [one for one in load_settings(session, house.now).accounts if one.project == "vision"]
        assert (account.usage, account.user_usage) == (0.5, {})


def test_two_reservations_of_one_node_may_meet_but_not_overlap(house: Any) -> None:
    assert house.call("root", "POST", "/reservations", json=ask()).status_code == 201
    over = house.call(
        "root",
        "POST",
        "/reservations",
        json=ask(name="b", begins_at="2026-11-22T06:59:00Z", ends_at="2026-11-23T07:00:00Z"),
    )
    assert over.status_code == 409
    assert "Node node-a is already reserved from 2026-11-21T07:00:00+00:00" in over.json()["detail"]
    after = ask(name="b", begins_at="2026-11-22T07:00:00Z", ends_at="2026-11-23T07:00:00Z")
    assert house.call("root", "POST", "/reservations", json=after).status_code == 201
    pages = house.call("root", "GET", "/reservations", params={"limit": 1}).json()
    rest = house.call("root", "GET", "/reservations", params={"limit": 1, "cursor": pages["next_cursor"]}).json()
    assert [pages["items"][0]["name"], rest["items"][0]["name"]] == ["demo", "b"]


def test_who_is_stopped_by_a_reservation_and_nodes_that_are_shut_are_warned_of(house: Any) -> None:
    house.call("root", "POST", "/nodes/node-a/cordon")
    warnings = house.call("root", "POST", "/reservations", json=ask(project="other")).json()["warnings"]
    assert warnings == [
        "node-a is cordoned now.",
        "Jobs of other projects that run there may be stopped when it begins: digits.",
    ]


def test_a_future_reservation_lists_only_jobs_that_it_holds_back(
    lab: Any,
) -> None:
    def warnings(name: str) -> list[str]:
        body = ask(name=name, project="other", begins_at="2026-11-23T07:00:00Z", ends_at="2026-11-24T07:00:00Z")
        found: list[str] = lab.call("root", "POST", "/reservations", json=body).json()["warnings"]
        assert lab.call("root", "DELETE", f"/reservations/{name}").status_code == 204
        return found

    with unit_of_work(lab.sessions) as session:
        digits = session.scalars(select(Job).where(Job.name == "digits")).one()
        digits_id, digits.max_run_time_s = digits.id, 3 * 86_400.0
        session.get_one(Job, "job-late").max_run_time_s = 600.0
    held_back = (
        "Until it begins, jobs of other projects start there only if their max_run_time ends by then; "
        "2 waiting jobs have none."
    )
    may_be_stopped = "Jobs of other projects that run there may be stopped when it begins: digits."
    assert warnings("a") == [may_be_stopped, held_back]
    with unit_of_work(lab.sessions) as session:
        session.get_one(Job, digits_id).max_run_time_s = 1200.0
    assert warnings("b") == [held_back]
    with unit_of_work(lab.sessions) as session:
        digits = session.get_one(Job, digits_id)
        digits.max_run_time_s, digits.spec = None, {**digits.spec, "preemptible": False}
    assert warnings("c") == [held_back]
