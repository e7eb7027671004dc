"""Vertex AI's metadata and TensorBoards in the table of who may do what: users, and a job's own script, which deletes
nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tests.unit.api_files.permissions.rights import NOT_SERVED, VERTEX_MEMBER, VERTEX_READER, Case, case

_PARENT, _LOCATED = "/v1/projects/{project}/locations/{location}", "/v1/projects/vision/locations/us-central1"
_HOME: Final = _LOCATED.removeprefix("/v1/")
_READER = {who: status for who, status in VERTEX_READER.items() if who != "attempt"}
_MEMBER = {who: status for who, status in VERTEX_MEMBER.items() if who != "attempt"}
_NO_SUCH_VERB = {**NOT_SERVED, "attempt": 501}

_STORE = "metadataStores/default"
_RUN = "tensorboards/1/experiments/e/runs/r"
_POINTS = [{"tensorboardTimeSeriesId": "s", "valueType": 1, "values": [{"step": "1", "scalar": {"value": 1.0}}]}]


def _shelf(path: str, parameter: str, *, one: str, body: dict[str, Any], change: dict[str, Any]) -> dict[str, Case]:
    """The routes of one kind. ``path``: of its collection in the routes; ``one``: one that is there."""
    collection = f"{_LOCATED}/{one.rpartition('/')[0]}"
    return {
        f"POST {_PARENT}/{path}": case(_MEMBER, f"{collection}?{parameter}=new", json=body),
        f"GET {_PARENT}/{path}": case(_READER, collection),
        f"GET {_PARENT}/{path}/{{resource}}": case(_READER, f"{_LOCATED}/{one}"),
        f"PATCH {_PARENT}/{path}/{{resource}}": case(_MEMBER, f"{_LOCATED}/{one}", json=change),
        f"DELETE {_PARENT}/{path}/{{resource}}": case(VERTEX_MEMBER, f"{_LOCATED}/{one}"),
        **{
            f"{method} {_PARENT}/{path}{which}:{{action}}": case(_NO_SUCH_VERB, f"{place}:fly", json={})
            for method in ("GET", "POST")
            for which, place in (("", collection), ("/{resource}", f"{_LOCATED}/{one}"))
        },
    }


def _verb(path: str, one: str, action: str, body: dict[str, Any]) -> dict[str, Case]:
    return {f"POST {_PARENT}/{path}:{action}": case(_MEMBER, f"{_LOCATED}/{one}:{action}", json=body)}


_NAMED = {"displayName": "x"}
_TITLED = {**_NAMED, "schemaTitle": "system.Experiment", "schemaVersion": "0.0.1"}
_SERIES = {**_NAMED, "valueType": 1, "pluginName": "scalars"}
_IN_STORE, _OF_RUN = "metadataStores/{store}", "tensorboards/{board}/experiments/{experiment}/runs/{run}/timeSeries"
_CONTEXT, _EXECUTION = f"{_IN_STORE}/contexts/{{resource}}", f"{_IN_STORE}/executions/{{resource}}"
_EXPERIMENT = "tensorboards/{board}/experiments/{resource}"

RECORDS: dict[str, Case] = {
    **_shelf("metadataStores", "metadataStoreId", one=_STORE, body={}, change={"description": "x"}),
    **_shelf(f"{_IN_STORE}/contexts", "contextId", one=f"{_STORE}/contexts/c", body=_TITLED, change=_NAMED),
    **_shelf(f"{_IN_STORE}/artifacts", "artifactId", one=f"{_STORE}/artifacts/a", body=_TITLED, change=_NAMED),
    **_shelf(f"{_IN_STORE}/executions", "executionId", one=f"{_STORE}/executions/x", body=_TITLED, change=_NAMED),
    **_verb(
        _CONTEXT, f"{_STORE}/contexts/c", "addContextArtifactsAndExecutions",
        {"artifacts": [f"{_HOME}/{_STORE}/artifacts/a"]},
    ),
    **_verb(
        _CONTEXT, f"{_STORE}/contexts/c", "addContextChildren", {"childContexts": [f"{_HOME}/{_STORE}/contexts/d"]}
    ),
    **_verb(
        _CONTEXT, f"{_STORE}/contexts/c", "removeContextChildren", {"childContexts": [f"{_HOME}/{_STORE}/contexts/d"]}
    ),
    **_verb(
        _EXECUTION, f"{_STORE}/executions/x", "addExecutionEvents",
        {"events": [{"artifact": f"{_HOME}/{_STORE}/artifacts/a", "type": 2}]},
    ),
    f"GET {_PARENT}/{_CONTEXT}:queryContextLineageSubgraph": case(
        _READER, f"{_LOCATED}/{_STORE}/contexts/c:queryContextLineageSubgraph"
    ),
    f"GET {_PARENT}/{_EXECUTION}:queryExecutionInputsAndOutputs": case(
        _READER, f"{_LOCATED}/{_STORE}/executions/x:queryExecutionInputsAndOutputs"
    ),
    **_shelf("tensorboards", "tensorboardId", one="tensorboards/1", body=_NAMED, change=_NAMED),
    **_shelf(
        "tensorboards/{board}/experiments", "tensorboardExperimentId", one="tensorboards/1/experiments/e",
        body=_NAMED, change=_NAMED,
    ),
    **_shelf(
        "tensorboards/{board}/experiments/{experiment}/runs", "tensorboardRunId", one=_RUN, body=_NAMED, change=_NAMED
    ),
    **_shelf(_OF_RUN, "tensorboardTimeSeriesId", one=f"{_RUN}/timeSeries/s", body=_SERIES, change=_NAMED),
    **_verb(
        _EXPERIMENT, "tensorboards/1/experiments/e", "batchCreate",
        {"requests": [{"parent": f"{_HOME}/{_RUN}", "tensorboardTimeSeries": {**_SERIES, "displayName": "y"}}]},
    ),
    f"POST {_PARENT}/{_EXPERIMENT}/runs:batchCreate": case(
        _MEMBER, f"{_LOCATED}/tensorboards/1/experiments/e/runs:batchCreate",
        json={
            "requests": [
                {
                    "parent": f"{_HOME}/tensorboards/1/experiments/e", "tensorboardRun": _NAMED,
                    "tensorboardRunId": "more",
                }
            ]
        },
    ),
    **_verb(
        _EXPERIMENT, "tensorboards/1/experiments/e", "write",
        {"writeRunDataRequests": [{"tensorboardRun": f"{_HOME}/{_RUN}", "timeSeriesData": _POINTS}]},
    ),
    **_verb(
        "tensorboards/{board}/experiments/{experiment}/runs/{resource}", _RUN, "write", {"timeSeriesData": _POINTS}
    ),
    f"POST {_PARENT}/{_OF_RUN}/{{resource}}:exportTensorboardTimeSeries": case(
        _READER, f"{_LOCATED}/{_RUN}/timeSeries/s:exportTensorboardTimeSeries", json={}
    ),
    f"GET {_PARENT}/{_OF_RUN}/{{resource}}:read": case(_READER, f"{_LOCATED}/{_RUN}/timeSeries/s:read"),
    f"GET {_PARENT}/tensorboards/{{resource}}:batchRead": case(
        _READER, f"{_LOCATED}/tensorboards/1:batchRead", params={"timeSeries": f"{_HOME}/{_RUN}/timeSeries/s"}
    ),
}  # fmt: skip


def furnish_records(house: Any) -> None:
    """One of each kind, as clients make them."""
    for path, body in (
        ("metadataStores?metadataStoreId=default", {}),
        (f"{_STORE}/contexts?contextId=c", _TITLED),
        (f"{_STORE}/contexts?contextId=d", _TITLED),
        (f"{_STORE}/artifacts?artifactId=a", _TITLED),
        (f"{_STORE}/executions?executionId=x", _TITLED),
        ("tensorboards?tensorboardId=1", _NAMED),
        ("tensorboards/1/experiments?tensorboardExperimentId=e", _NAMED),
        ("tensorboards/1/experiments/e/runs?tensorboardRunId=r", _NAMED),
        (f"{_RUN}/timeSeries?tensorboardTimeSeriesId=s", {**_SERIES, "displayName": "first"}),
    ):
        answer = house.client.post(f"{_LOCATED}/{path}", json=body, headers=house.auth("member"))
        assert answer.status_code == 200, answer.text
