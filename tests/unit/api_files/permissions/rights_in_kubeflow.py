"""Kubeflow's routes in the table of who may do what."""

from __future__ import annotations

from typing import Any

from core.db.tables import JobLabel
from tests.unit.api_files.permissions.rights import ANY_READER, MEMBER, PEOPLE, VIEWER, case

TRAIN_JOB: dict[str, Any] = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "fresh"},
    "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"command": ["true"]}},
}
_GROUP = "/kubernetes/apis/trainer.kubeflow.org/v1alpha1"
_OWN, _CORE = f"{_GROUP}/namespaces/{{namespace}}", "/kubernetes/api/v1/namespaces/{namespace}"
_VISION, _PODS = f"{_GROUP}/namespaces/vision", "/kubernetes/api/v1/namespaces/vision"
_SELECTOR = {"labelSelector": "jobset.sigs.k8s.io/jobset-name=digits"}

KUBEFLOW = {
    f"GET {_GROUP}/clustertrainingruntimes": case(ANY_READER),
    f"GET {_GROUP}/clustertrainingruntimes/{{name}}": case(
        ANY_READER, f"{_GROUP}/clustertrainingruntimes/torch-distributed"
    ),
    f"GET {_OWN}/trainingruntimes": case(VIEWER, f"{_VISION}/trainingruntimes"),
    f"GET {_OWN}/trainjobs": case(VIEWER, f"{_VISION}/trainjobs"),
    # Somebody who may not know of the project hears so.
    f"POST {_OWN}/trainjobs": case(MEMBER, f"{_VISION}/trainjobs", json=TRAIN_JOB),
    f"GET {_OWN}/trainjobs/{{name}}": case(VIEWER, f"{_VISION}/trainjobs/digits"),
    f"DELETE {_OWN}/trainjobs/{{name}}": case(MEMBER, f"{_VISION}/trainjobs/digits"),
    f"GET {_CORE}/configmaps/kubeflow-trainer-public": case(
        ANY_READER, "/kubernetes/api/v1/namespaces/kubeflow-system/configmaps/kubeflow-trainer-public"
    ),
    f"GET {_CORE}/pods": case(VIEWER, f"{_PODS}/pods", params=_SELECTOR),
    f"GET {_CORE}/pods/{{name}}/log": case(VIEWER, f"{_PODS}/pods/digits-node-0-0-1/log"),
    f"GET {_CORE}/events": case(VIEWER, f"{_PODS}/events"),
    **{
        f"{method} /kubernetes/{{rest:path}}": case(
            {**dict.fromkeys(PEOPLE, 404), **ANY_READER}, "/kubernetes/apis/apps/v1/deployments"
        )
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
}


def furnish_kubeflow(session: Any) -> None:
    """The project's running job is a TrainJob."""
    session.add(JobLabel(job_id="job-1", key=".trainjob", value="digits"))
