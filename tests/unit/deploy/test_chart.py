"""The chart as Helm renders it; skipped where Helm's library is not installed."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "trainmaster"
STORAGE = {
    "home": {"claim": "home"},
    "output": {"hostPath": "/srv/output"},
    "data": {"nfs": {"server": "nas", "path": "/data"}},
}

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")


@cache
def _rendered(values: str, namespace: str, release: str) -> str:
    with helm.Chart.load(str(CHART)) as chart:
        merged = json.loads(values)
        chart.validate_schema(merged)
        found = chart.render(merged, name=release, namespace=namespace)
    texts = [text for name, text in found.items() if not name.endswith(".txt")]
    return json.dumps([document for text in texts for document in yaml.safe_load_all(text) if document])


def render(namespace: str = "trainmaster", release: str = "trainmaster", **values: Any) -> list[dict[str, Any]]:
    rendered: list[dict[str, Any]] = json.loads(
        _rendered(json.dumps({"storage": STORAGE, **values}), namespace, release)
    )
    return rendered


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}


def rules_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        f"{kind} {name.removeprefix('trainmaster-').removeprefix('trainmaster-')}": d["rules"]
        for kind in ("Role", "ClusterRole")
        for name, d in of_kind(documents, kind).items()
    }


@pytest.mark.parametrize("per_project", [False, True])
def test_the_scheduler_gets_the_rights_of_the_plain_manifest_and_no_more(per_project: bool) -> None:
    files = ["rbac.yaml", "rbac-per-project.yaml"] if per_project else ["rbac.yaml"]
    plain = [d for f in files for d in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / f).read_text()) if d]
    wanted = rules_of(plain)
    if per_project:
        wanted.pop("Role jobs")  # the same rules everywhere
    assert rules_of(render(jobs={"namespacePerProject": per_project})) == wanted


def test_where_the_namespaces_of_projects_are_there_the_platform_makes_none() -> None:
    documents = render(jobs={"namespacePerProject": True, "projects": ["vision", "speech"]})
    roles = [d for d in documents if d["kind"] == "Role"]
    namespaces = [f"trainmaster-jobs{project}" for project in ("", "-vision", "-speech")]
    assert [role["metadata"]["namespace"] for role in roles] == namespaces
    assert [d["metadata"]["namespace"] for d in documents if d["kind"] == "RoleBinding"] == namespaces
    plain = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rbac.yaml").read_text())
    wanted = next(d["rules"] for d in plain if d and d["kind"] == "Role")
    assert all(role["rules"] == wanted for role in roles)
    (wide,) = of_kind(documents, "ClusterRole").values()
    assert {verb for rule in wide["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_helm_test_asks_the_api_as_the_parts_run_and_nothing_is_pushed_aside_for_a_job() -> None:
    documents = render(api={"service": {"port": 80}})
    (pod,) = of_kind(documents, "Pod").values()
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["args"][-1] == "http://trainmaster-api.trainmaster.svc:80/api/v1/health"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    (made,) = of_kind(documents, "PriorityClass")
    pods = [pod, *(d["spec"]["template"] for d in documents if d["kind"] in ("Deployment", "StatefulSet", "Job"))]
    assert {each["spec"]["priorityClassName"] for each in pods} == {made}
    own = render(priorityClass={"name": "system-cluster-critical"})
    assert not of_kind(own, "PriorityClass")
    budgets = of_kind(documents, "PodDisruptionBudget")
    assert set(budgets) == {"trainmaster-api", "trainmaster-scheduler", "trainmaster-beat"}


def test_only_the_scheduler_holds_a_token_of_the_cluster() -> None:
    documents = render()
    workloads = [d for kind in ("Deployment", "StatefulSet", "Job") for d in of_kind(documents, kind).values()]
    holders = [
        d["metadata"]["name"]
        for d in workloads
        if d["spec"]["template"]["spec"].get("automountServiceAccountToken", True)
    ]
    assert len(workloads) == 6
    assert holders == ["trainmaster-scheduler"]


def test_liveness_asks_the_process_alone_and_readiness_the_database_too() -> None:
    paths = {
        name: (c["livenessProbe"]["httpGet"]["path"], c["readinessProbe"]["httpGet"]["path"])
        for name, d in of_kind(render(), "Deployment").items()
        for c in d["spec"]["template"]["spec"]["containers"]
        if "httpGet" in c["livenessProbe"]
    }
    assert paths == {
        "trainmaster-api": ("/api/v1/live", "/api/v1/ready"),
        "trainmaster-scheduler": ("/live", "/ready"),
        "trainmaster-beat": ("/live", "/ready"),
    }


def test_the_first_volumes_are_registered_as_the_storage_is() -> None:
    (container,) = of_kind(render(), "Deployment")["trainmaster-api"]["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert json.loads(env["TRAINMASTER_FIRST_VOLUMES"]) == [
        {"name": "output", "kind": "local", "root": "/srv/output"},
        {
            "name": "data",
            "kind": "nfs",
            "root": "/var/lib/trainmaster/data",
            "config": {"server": "nas", "path": "/data"},
        },
    ]
    assert {m["mountPath"] for m in container["volumeMounts"]} == {
        "/tmp",
        "/srv/output",
        "/var/lib/trainmaster",
        "/var/lib/trainmaster/data",
    }


def env_of_the_scheduler(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (scheduler,) = (d for name, d in of_kind(documents, "Deployment").items() if name.endswith("-scheduler"))
    (container,) = scheduler["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_no_two_releases_share_an_instance() -> None:
    long = "n" * 40
    releases = [("a", "tm"), ("b", "tm"), ("a-b", "c"), ("a", "b-c"), (long, "tm-1"), (long, "tm-2")]
    found = [env_of_the_scheduler(render(ns, name))["TRAINMASTER_INSTANCE"] for ns, name in releases]
    assert len(set(found)) == len(releases)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", instance) for instance in found)
    assert env_of_the_scheduler(render(instance="mine"))["TRAINMASTER_INSTANCE"] == "mine"


def test_the_region_that_jobs_are_reported_is_a_value() -> None:
    assert env_of_the_scheduler(render())["TRAINMASTER_REGION"] == "local"
    assert env_of_the_scheduler(render(jobs={"region": "eu-1"}))["TRAINMASTER_REGION"] == "eu-1"


def test_jobs_may_mount_only_the_volumes_folders_of_the_nodes() -> None:
    name = "TRAINMASTER_HOST_PATHS"
    assert env_of_the_scheduler(render())[name] == "/srv/output"
    both = {"home": {"hostPath": "/srv/home"}, "output": {"hostPath": "/srv/o"}, "data": {"hostPath": "/srv/d"}}
    assert env_of_the_scheduler(render(storage=both))[name] == "/srv/o:/srv/d"
    claims = {part: {"claim": part} for part in ("home", "output", "data")}
    assert env_of_the_scheduler(render(storage=claims))[name] == ""
    assert env_of_the_scheduler(render(env={name: "/mnt"}))[name] == "/mnt"


def test_with_a_database_of_ones_own_migrations_run_before_all_else_and_no_key_is_made() -> None:
    own = {"postgresql": {"enabled": False}, "redis": {"enabled": False}}
    documents = render(existingSecret="keys", bundled=own)
    (job,) = of_kind(documents, "Job").values()
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert not of_kind(documents, "Secret")
    assert "keys" in json.dumps(job["spec"]["template"]["spec"]["volumes"])


def test_every_container_runs_without_root_and_capabilities_and_with_limits() -> None:
    for name, deployment in of_kind(render(), "Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"], name
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"storage": {}}, "storage.home: say where it is"),
        ({"bundled": {"postgresql": {"enabled": False}}}, "existingSecret: name a Secret"),
        ({"storage": {**STORAGE, "home": {"memory": True}}}, "replicas: set it to 1"),
        ({"api": {"replica": 3}}, "replica"),
        ({"storage": {**STORAGE, "data": {"hostPath": "srv"}}}, "hostPath"),
        ({"beat": {"replicas": 0}}, "replicas"),
        ({"storage": {**STORAGE, "more": {"home": {"claim": "a"}}}}, "'home'"),
        ({"storage": {**STORAGE, "more": {"Sets": {"claim": "a"}}}}, "'Sets'"),
        ({"storage": {**STORAGE, "more": {"sets": {"path": "/a"}}}}, "/storage/more/sets"),
        ({"storage": {**STORAGE, "more": {"sets": {}}}}, "storage.more.sets: say where it is"),
        ({"jobs": {"defaultImage": "Python Slim"}}, "/jobs/defaultImage"),
        ({"jobs": {"tolerations": "a=b=c"}}, "/jobs/tolerations"),
        ({"jobs": {"namespace": "trainmaster"}}, "jobs.namespace: name another one"),
        ({"env": {"TRAINMASTER_NODE_GRACE_S": "abc"}}, "TRAINMASTER_NODE_GRACE_S"),
        ({"ingress": {"enabled": True, "host": "train.example.com"}}, "url: say how people reach"),
    ],
)
def test_values_that_make_no_sense_are_refused_and_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        render(**copy.deepcopy(values))
    assert words in str(refused.value)


def test_each_value_is_in_the_schema_and_each_property_of_the_schema_in_the_values() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert set(schema) - {"global"} == set(values)
    for part in ("jobs", "api", "scheduler", "beat", "migrate", "ingress", "image", "storage"):
        assert set(schema[part]["properties"]) == set(values[part]), part


def test_more_volumes_are_mounted_and_registered() -> None:
    more = {"sets": {"nfs": {"server": "nas", "path": "/sets"}}, "disk": {"hostPath": "/mnt/disk"}}
    documents = render(storage={**STORAGE, "more": more})
    for part in ("api", "scheduler"):
        pod = of_kind(documents, "Deployment")[f"trainmaster-{part}"]["spec"]["template"]["spec"]
        sources = {volume["name"]: volume for volume in pod["volumes"]}
        assert sources["more-sets"]["nfs"] == {"server": "nas", "path": "/sets"}
        assert sources["more-disk"]["hostPath"]["path"] == "/mnt/disk"
        (container,) = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert (mounts["more-sets"], mounts["more-disk"]) == ("/var/lib/trainmaster/sets", "/mnt/disk")
        env = {one["name"]: one.get("value") for one in container["env"]}
        assert env["TRAINMASTER_HOST_PATHS"] == "/srv/output:/mnt/disk"
        first = {volume["name"]: volume for volume in json.loads(env["TRAINMASTER_FIRST_VOLUMES"])}
        assert first["sets"] == {
            "name": "sets",
            "kind": "nfs",
            "root": "/var/lib/trainmaster/sets",
            "config": {"server": "nas", "path": "/sets"},
        }
        assert first["disk"] == {"name": "disk", "kind": "local", "root": "/mnt/disk"}


def test_the_prometheus_operator_gets_what_is_asked_for_and_only_that() -> None:
    kinds = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert not kinds & {d["kind"] for d in render()}
    documents = render(monitoring={"scrape": True, "alerts": True, "dashboard": True, "labels": {"release": "stack"}})
    monitors = [d for d in documents if d["kind"] in kinds]
    assert {d["kind"] for d in monitors} == kinds
    assert all(d["metadata"]["labels"]["release"] == "stack" for d in monitors)
    by_kind = {d["kind"]: d["spec"] for d in monitors}
    (service,) = [d for d in of_kind(documents, "Service").values() if d["metadata"]["name"] == "trainmaster-api"]
    wanted = by_kind["ServiceMonitor"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (endpoint,) = by_kind["ServiceMonitor"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    secret = of_kind(documents, "Secret")[endpoint["authorization"]["credentials"]["name"]]
    assert endpoint["authorization"]["credentials"]["key"] in secret["data"]
    pods = [d["spec"]["template"] for d in of_kind(documents, "Deployment").values()]
    scraped = [
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in pods
        if by_kind["PodMonitor"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        and pod["metadata"]["labels"]["app.kubernetes.io/component"]
        in by_kind["PodMonitor"]["selector"]["matchExpressions"][0]["values"]
    ]
    assert sorted(scraped) == ["beat", "scheduler"]
    alerts = yaml.safe_load((CHART / "monitoring" / "alerts.yaml").read_text())
    assert by_kind["PrometheusRule"] == alerts
    (dashboard,) = [
        d for d in of_kind(documents, "ConfigMap").values() if "grafana_dashboard" in d["metadata"]["labels"]
    ]
    assert json.loads(dashboard["data"]["trainmaster.json"])["title"] == "Trainmaster"
