"""Hyperparameter tuning jobs as the SDK sends them: each is a study; tests/frameworks has the real SDK."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Job, Study, Trial
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.studies.study_loop import StudyLoop
from tests.unit.api_vertex.test_jobs import PARENT, POOL, error_of, refused, sent

KIND = "hyperparameterTuningJobs"
RATE = {"parameterId": "lr", "doubleValueSpec": {"minValue": 0.0001, "maxValue": 0.1}, "scaleType": 2}
UNITS = {"parameterId": "units", "integerValueSpec": {"minValue": "4", "maxValue": "128"}, "scaleType": 3}
KINDS = {"parameterId": "kind", "categoricalValueSpec": {"values": ["relu", "selu"]}}
BATCH = {"parameterId": "batch", "discreteValueSpec": {"values": [16.0, 32.0, 48.5]}, "scaleType": 1}
METRIC = {"metricId": "accuracy", "goal": 1}


def tuning(*parameters: Any, spec: Any = None, **fields: Any) -> dict[str, Any]:
    study = {"metrics": [METRIC], "parameters": list(parameters or (RATE, UNITS, KINDS, BATCH)), **(spec or {})}
    pool = {**POOL, "machineSpec": {}}
    return {
        "displayName": "My search",
        "labels": {"team": "x"},
        "maxTrialCount": 4,
        "parallelTrialCount": 2,
        "studySpec": study,
        "trialJobSpec": {"workerPoolSpecs": [pool]},
        **fields,
    }


@pytest.fixture
def study_loop(sessions: SessionFactory, clock: Any) -> StudyLoop:
    return StudyLoop(ControlContext(sessions, FakeExecutor(FakeEngine()), NoWakeup(), clock, "test", b"k" * 32))


def study_of(client: TestClient, reply: Any) -> Any:
    return client.get(f"/api/v1/studies/{reply['name'].rpartition('/')[2]}").json()["spec"]


def place(reply: Any) -> str:
    return f"/v1/{reply['name']}"


# --- what it becomes -------------------------------------------------------------------------------------------------


def test_it_becomes_a_study(client: TestClient) -> None:
    reply = sent(client, tuning(maxFailedTrialCount=3, spec={"measurementSelectionType": 2}), KIND)
    assert reply["name"].startswith(PARENT.removeprefix("/v1/") + f"/{KIND}/study-")
    assert (reply["state"], reply["displayName"], reply["labels"]) == (
        "JOB_STATE_QUEUED",
        "My search",
        {"team": "x"},
    )
    assert (reply["maxTrialCount"], reply["studySpec"]["parameters"][0]) == (4, RATE)
    assert "trials" not in reply
    study = study_of(client, reply)
    assert study["name"] == "my-search"
    assert study["budget"] | {"trials": 4, "parallel": 2, "failed_trials": 2} == study["budget"]
    assert (study["algorithm"], study["measurement"]) == ("auto", "best")
    assert study["metrics"] == [{"name": "accuracy", "goal": "maximize"}]
    shown = {
        name: (one["type"], one["min"], one["max"], one["scale"], one["values"])
        for name, one in study["parameters"].items()
    }
    assert shown == {
        "lr": ("float", 0.0001, 0.1, "log", []),
        "units": ("integer", 4, 128, "reverse-log", []),
        "kind": ("categorical", None, None, "linear", ["relu", "selu"]),
        "batch": ("discrete", None, None, "linear", [16, 32, 48.5]),
    }
    assert study["template"]["labels"] == {"team": "x"}
    assert study["template"]["env"]["CLOUD_ML_HP_METRIC_TAG"] == "accuracy"


def test_it_is_cloned_as_any_study(client: TestClient) -> None:
    reply = sent(client, tuning(), KIND)
    url = f"/api/v1/studies/{reply['name'].rpartition('/')[2]}/clone"
    made = client.post(url, json={"changes": {"budget": {"trials": 2}}})
    assert made.status_code == 201, made.text
    spec = made.json()["spec"]
    assert (spec["name"], spec["budget"]["trials"], spec["metrics"][0]["name"]) == ("my-search-2", 2, "accuracy")
    assert spec["parameters"] == study_of(client, reply)["parameters"]
    shown = client.get(f"{PARENT}/{KIND}").json()[KIND]
    assert [one["name"] for one in shown] == [reply["name"]]


def test_zeros_are_left_out_and_the_last_measurement_is_the_default(client: TestClient) -> None:
    study = study_of(client, sent(client, tuning({"parameterId": "x", "doubleValueSpec": {"maxValue": 1.0}}), KIND))
    assert (study["parameters"]["x"]["min"], study["parameters"]["x"]["max"]) == (0, 1)
    assert study["measurement"] == "last"


def test_conditional_parameters_have_conditions(client: TestClient) -> None:
    momentum = {"parameterId": "momentum", "doubleValueSpec": {"maxValue": 0.9}}
    decay = {"parameterId": "decay", "integerValueSpec": {"maxValue": "3"}}
    under = {"parameterSpec": momentum, "parentCategoricalValues": {"values": ["sgd"]}}
    again = {"parameterSpec": momentum, "parentCategoricalValues": {"values": ["rms"]}}
    deep = {"parameterSpec": {**decay}, "parentDiscreteValues": {"values": [16.0]}}
    optimizer = {
        "parameterId": "optimizer",
        "categoricalValueSpec": {"values": ["sgd", "rms", "adam"]},
        "conditionalParameterSpecs": [under, again],
    }
    study = study_of(client, sent(client, tuning(optimizer, {**BATCH, "conditionalParameterSpecs": [deep]}), KIND))
    whens = {name: one["when"] for name, one in study["parameters"].items()}
    assert whens == {"optimizer": {}, "momentum": {"optimizer": ["sgd", "rms"]}, "batch": {}, "decay": {"batch": [16]}}


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"medianAutomatedStoppingSpec": {}}, {"rule": "median"}),
        ({"decayCurveStoppingSpec": {"useElapsedDuration": False}}, {"rule": "decay-curve"}),
        (
            {"convexAutomatedStoppingSpec": {"maxStepCount": "50", "minStepCount": "5", "minMeasurementCount": "2"}},
            {"rule": "decay-curve", "max_steps": 50, "min_steps": 5, "min_trials": 3},
        ),
    ],
)
def test_stopping_rules_are_mapped(client: TestClient, given: Any, ours: Any) -> None:
    study = study_of(client, sent(client, tuning(spec=given), KIND))
    assert study["stopping"] | ours == study["stopping"]


@pytest.mark.parametrize(("number", "ours"), [(2, "grid"), ("RANDOM_SEARCH", "random"), (0, "auto")])
def test_algorithms_are_mapped(client: TestClient, number: Any, ours: str) -> None:
    assert (
        study_of(client, sent(client, tuning(UNITS, KINDS, BATCH, spec={"algorithm": number}), KIND))["algorithm"]
        == ours
    )


# --- what is refused -------------------------------------------------------------------------------------------------

PARAMETERS = "hyperparameter_tuning_job.study_spec.parameters"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (tuning(maxTrialCount=0), "hyperparameter_tuning_job.max_trial_count: must be above 0"),
        (tuning(parallelTrialCount=9999), "hyperparameter_tuning_job.parallel_trial_count: "),
        (tuning(studySpec=None), "hyperparameter_tuning_job.study_spec: Required field is not set."),
        (tuning(trialJobSpec={}), "hyperparameter_tuning_job.trial_job_spec.worker_pool_specs"),
        (tuning(spec={"metrics": []}), "study_spec.metrics: Required field"),
        (tuning(spec={"metrics": [{"metricId": "a"}]}), "study_spec.metrics[0].goal: Required field"),
        (tuning(spec={"metrics": [{"metricId": "a", "goal": 7}]}), "study_spec.metrics[0].goal': this is one of"),
        (tuning(spec={"algorithm": 1}), "this is one of ALGORITHM_UNSPECIFIED, GRID_SEARCH, RANDOM_SEARCH, not 1"),
        (tuning(spec={"algorithm": 2}), "INTEGER, CATEGORICAL or DISCRETE, and lr is DOUBLE"),
        (tuning(spec={"observationNoise": 2}), "Vertex AI Vizier alone"),
        (tuning(colour="red"), "Unknown name \"colour\" at 'hyperparameter_tuning_job'"),
        (tuning({"parameterId": "x"}), f"{PARAMETERS}[0]: exactly one of double_value_spec"),
        (tuning(KINDS, {**RATE, "scaleType": "LOG"}), f"{PARAMETERS}[1].scale_type': this is one of SCALE_TYPE_UN"),
        (tuning({**RATE, "doubleValueSpec": {"maxValue": 1}}), f"{PARAMETERS}[0]: has scale log and min 0"),
        (tuning({**KINDS, "scaleType": 1}), "leave it unset for the CATEGORICAL parameter kind"),
        (tuning(RATE, RATE), f"{PARAMETERS}[1].parameter_id: there is a parameter lr already"),
        (tuning({"parameterId": "x", "discreteValueSpec": {"values": [2, 1]}}), "must be in increasing order"),
        (tuning({**RATE, "parameterId": "a b"}), f"{PARAMETERS}[0]: is not a parameter name"),
        (tuning({"parameterId": "x", "doubleValueSpec": {"maxValue": "NaN"}}), "a finite number"),
        (
            tuning({"parameterId": "x", "doubleValueSpec": {"maxValue": 1, "defaultValue": 0.5}}),
            "default_value: is served by",
        ),
        (
            tuning(
                {**RATE, "conditionalParameterSpecs": [{"parameterSpec": UNITS, "parentIntValues": {"values": ["1"]}}]}
            ),
            "lr is DOUBLE, and no parameter can depend on it",
        ),
        (
            tuning(
                {**KINDS, "conditionalParameterSpecs": [{"parameterSpec": UNITS, "parentIntValues": {"values": ["1"]}}]}
            ),
            "exactly parent_categorical_values is needed",
        ),
        (
            tuning(
                {
                    **KINDS,
                    "conditionalParameterSpecs": [
                        {"parameterSpec": UNITS, "parentCategoricalValues": {"values": ["x"]}}
                    ],
                }
            ),
            f"{PARAMETERS}[0].conditional_parameter_specs[0].parameter_spec: 'x' is not a value of kind",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(client: TestClient, body: Any, message: str) -> None:
    assert message in refused(client, body, collection=KIND)
    assert client.get(f"{PARENT}/{KIND}").json() == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (tuning(encryptionSpec={"kmsKeyName": "k"}), "hyperparameter_tuning_job.encryption_spec"),
        (tuning(spec={"transferLearningConfig": {"disableTransferLearning": True}}), "transfer learning"),
        (tuning(spec={"studyStoppingConfig": {"maxNumTrials": 3}}), "study_stopping_config"),
        (tuning(spec={"medianAutomatedStoppingSpec": {"useElapsedDuration": True}}), "use_elapsed_duration"),
        (tuning(trialJobSpec={"workerPoolSpecs": [POOL], "network": "n"}), "trial_job_spec.network"),
    ],
)
def test_unsupported_fields_are_refused_by_name(client: TestClient, body: Any, message: str) -> None:
    assert message in refused(client, body, status="UNIMPLEMENTED", collection=KIND)


def test_who_may(client: TestClient, stranger: TestClient, as_user: Any) -> None:
    reply = sent(client, tuning(), KIND)
    viewer, unauthorised = as_user("viewer", role="viewer"), as_user("nobody", role=None)
    assert viewer.get(place(reply)).status_code == 200
    for who, answer in (
        (viewer, viewer.post(f"{PARENT}/{KIND}", json=tuning())),
        (viewer, viewer.post(f"{place(reply)}:cancel")),
        (unauthorised, unauthorised.get(place(reply))),
        (stranger, stranger.get(f"{PARENT}/{KIND}")),
    ):
        error_of(answer, 403, "PERMISSION_DENIED"), who


# --- its life --------------------------------------------------------------------------------------------------------


def test_trials_show_their_results(
    client: TestClient, study_loop: StudyLoop, sessions: SessionFactory, clock: Any
) -> None:
    body = tuning(UNITS, KINDS, spec={"algorithm": 3})
    body["trialJobSpec"]["enableWebAccess"] = True
    reply = sent(client, body, KIND)
    study_id = reply["name"].rpartition("/")[2]
    study_loop.reconcile(study_id)
    waiting = client.get(place(reply)).json()
    assert waiting["state"] == "JOB_STATE_PENDING"
    first, second = waiting["trials"]
    assert [(one["id"], one["state"]) for one in (first, second)] == [("1", "REQUESTED"), ("2", "REQUESTED")]
    assert {one["parameterId"] for one in first["parameters"]} == {"units", "kind"}
    assert "webAccessUris" not in first
    job = client.get(f"/v1/{first['customJob']}").json()
    assert (job["state"], job["displayName"]) == ("JOB_STATE_QUEUED", "my-search-1")
    units = next(one["value"] for one in first["parameters"] if one["parameterId"] == "units")
    ours = client.get(f"/api/v1/jobs/{first['customJob'].rpartition('/')[2]}").json()["spec"]
    assert f"--units={units}" in ours["roles"]["chief"]["args"]
    curve = {"steps": [1, 2, 3], "values": [0.5, 0.75, 0.7], "counted": 2}
    with unit_of_work(sessions) as session:
        jobs = select(Trial.job_id).where(Trial.study_id == study_id)
        session.execute(update(Job).where(Job.id.in_(jobs)).values(state="running", started_at=clock.now))
        ended = {"state": "succeeded", "result": {"accuracy": 0.75}, "curve": curve, "ended_at": clock.now}
        session.execute(update(Trial).where(Trial.number == 1).values(**ended))
    running = client.get(place(reply)).json()
    assert running["state"] == "JOB_STATE_RUNNING"
    assert [one["state"] for one in running["trials"]] == ["SUCCEEDED", "ACTIVE"]
    assert running["trials"][0]["finalMeasurement"] == {
        "stepCount": "2",
        "metrics": [{"metricId": "accuracy", "value": 0.75}],
    }
    assert "webAccessUris" not in running["trials"][0]
    page = running["trials"][1]["webAccessUris"]["workerpool0-0"]
    assert page.endswith(running["trials"][1]["customJob"].rpartition("/")[2])
    with unit_of_work(sessions) as session:
        study = session.execute(select(Study)).scalar_one()
        spec = {**study.spec["vertex"]["body"]["trialJobSpec"], "enableWebAccess": False}
        stored = {**study.spec["vertex"], "body": {**study.spec["vertex"]["body"], "trialJobSpec": spec}}
        study.spec = {**study.spec, "vertex": stored}
    assert not any("webAccessUris" in one for one in client.get(place(reply)).json()["trials"])
    assert running["startTime"] == running["trials"][0]["startTime"]
    with unit_of_work(sessions) as session:
        session.execute(
            update(Trial)
            .where(Trial.number == 2)
            .values(state="failed", reason="It never told accuracy.", ended_at=clock.now)
        )
        session.execute(update(Study).values(state="failed", reason="All 2 trials are done.", finished_at=clock.now))
    failed = client.get(place(reply)).json()
    assert failed["error"] == {"code": 3, "message": "All 2 trials are done."}
    assert failed["trials"][1]["infeasibleReason"] == "It never told accuracy."
    assert (failed["trials"][1]["state"], "finalMeasurement" in failed["trials"][1]) == ("INFEASIBLE", False)
    assert "hyperparameter tuning job" in error_of(
        client.delete(f"/v1/{first['customJob']}"), 400, "FAILED_PRECONDITION"
    )


@pytest.mark.parametrize("kind", ["doubleValueSpec", "integerValueSpec"])
def test_a_parameter_without_a_range_is_refused(client: TestClient, kind: str) -> None:
    message = refused(client, tuning({"parameterId": "x", kind: {}}), collection=KIND)
    assert "parameters[0]" in message
    assert "min_value and max_value are needed" in message
    sent(client, tuning({"parameterId": "x", kind: {"maxValue": 1}}), KIND)  # from zero on, which is left out


def test_the_client_waits_for_a_study_that_is_paused(client: TestClient, sessions: SessionFactory) -> None:
    reply = sent(client, tuning(), KIND)
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="paused"))
    # As it would go on to wait for one that has not begun; it takes PAUSED for the end.
    assert client.get(place(reply)).json()["state"] == "JOB_STATE_QUEUED"


def test_cancel_and_delete(client: TestClient, study_loop: StudyLoop) -> None:
    reply = sent(client, tuning(), KIND)
    study_id = reply["name"].rpartition("/")[2]
    study_loop.reconcile(study_id)
    assert "cancel it first" in error_of(client.delete(place(reply)), 400, "FAILED_PRECONDITION")
    assert client.post(f"{place(reply)}:cancel", json={}).json() == {}
    assert client.get(place(reply)).json()["state"] == "JOB_STATE_CANCELLING"
    for _ in range(3):
        study_loop.reconcile(study_id)
    ended = client.get(place(reply)).json()
    assert (ended["state"], ended["error"]["code"]) == ("JOB_STATE_CANCELLED", 1)
    assert {one["state"] for one in ended["trials"]} == {"INFEASIBLE"}
    assert "ended already" in error_of(client.post(f"{place(reply)}:cancel", json={}), 400, "FAILED_PRECONDITION")
    operation = client.delete(place(reply)).json()
    assert operation["done"]
    error_of(client.get(place(reply)), 404, "NOT_FOUND")
    assert client.get(f"/ui/{operation['name']}").json() == operation


def test_lists_are_filtered_and_paged(client: TestClient, clock: Any) -> None:
    names = []
    for number in range(4):
        clock.advance(1)
        labels = {"n": str(number % 2)}
        names.append(sent(client, {**tuning(), "displayName": f"search {number}", "labels": labels}, KIND)["name"])
    other = client.post(f"/v1/projects/default/locations/europe-west4/{KIND}", json=tuning()).json()["name"]
    own = client.post(  # one that no client of Vertex AI made
        "/api/v1/studies",
        json={
            "spec": {
                "name": "own",
                "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
                "metric": "m",
                "goal": "minimize",
                "budget": {"trials": 1},
            }
        },
    ).json()["id"]
    error_of(client.get(f"{PARENT}/{KIND}/{own}"), 404, "NOT_FOUND")

    def listed(parent: str = PARENT, **query: Any) -> list[str]:
        page = client.get(f"{parent}/{KIND}", params=query)
        assert page.status_code == 200, page.text
        return [one["name"] for one in page.json().get(KIND, [])]

    assert listed() == names[::-1]
    assert listed("/v1/projects/default/locations/-") == [other, *names[::-1]]
    assert listed(filter='display_name="search 3"') == [names[3]]
    assert listed(filter='labels.n="1" AND state="JOB_STATE_QUEUED"') == [names[3], names[1]]
    first = client.get(f"{PARENT}/{KIND}", params={"pageSize": 3}).json()
    second = client.get(f"{PARENT}/{KIND}", params={"pageSize": 3, "pageToken": first["nextPageToken"]}).json()
    assert [one["name"] for page in (first, second) for one in page[KIND]] == names[::-1]
    assert "nextPageToken" not in second


def test_a_logarithm_needs_values_above_zero(client: TestClient) -> None:
    for scale in (2, 3):
        wrong = {"parameterId": "x", "discreteValueSpec": {"values": [-1, 0, 1]}, "scaleType": scale}
        message = refused(client, tuning(wrong), collection=KIND)
        assert "parameters[0].scale_type" in message
        assert "x has -1" in message
    sent(client, tuning({"parameterId": "x", "discreteValueSpec": {"values": [1, 10]}, "scaleType": 2}), KIND)
