"""What Prometheus makes of the platform: names, alerts, dashboard, and a real Prometheus that scrapes."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import yaml
from fastapi import FastAPI
from prometheus_client import generate_latest
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import BudgetRow, Project, StorageUsage, Volume
from scheduler.process_metrics import ProcessMetrics

ROOT = Path(__file__).parents[4]
MONITORING = ROOT / "deploy" / "helm" / "trainmaster" / "monitoring"
RULES_TEST = ROOT / "tests" / "unit" / "deploy" / "alerts_test.yaml"

needs_prometheus = pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")


def scrape(app: FastAPI, client: TestClient) -> str:
    """All that an API and a scheduler report, each kind at least once."""
    recording = app.state.context.request_metrics.predictions.begin("default", "digits")
    recording.answered("deployment", 200)
    recording.mark_interrupted()
    recording.not_read()
    client.get("/api/v1/jobs")
    control = ProcessMetrics()
    control.tasks.labels("tick", "done").inc()
    control.beat_messages.labels("tick").inc()
    with control.timed("tick"):
        pass
    return f"{client.get('/metrics').text}{generate_latest(control.registry).decode()}"


def promtool(*arguments: str | Path, text: str = "") -> None:
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@needs_prometheus
def test_metrics_follow_the_conventions_of_prometheus(app: FastAPI, client: TestClient) -> None:
    promtool("check", "metrics", text=scrape(app, client))


@needs_prometheus
def test_each_alert_is_raised_by_its_fault_alone(tmp_path: Path) -> None:
    promtool("check", "rules", MONITORING / "alerts.yaml")
    test = tmp_path / "test.yaml"
    test.write_text(RULES_TEST.read_text().replace("{rules}", str(MONITORING / "alerts.yaml")))
    promtool("test", "rules", test)


def queries() -> list[str]:
    """Of the alerts, then of the dashboard."""
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    found = [rule["expr"] for group in groups for rule in group["rules"]]
    return found + [target["expr"] for panel in panels for target in panel["targets"]]


@needs_prometheus
def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries())
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", path)


def test_alerts_and_dashboard_ask_for_metrics_that_exist(
    app: FastAPI, client: TestClient, sessions: SessionFactory, clock: Any
) -> None:
    exported = set(re.findall(r"^# TYPE (\w+)", scrape(app, client), re.MULTILINE))
    main = (ROOT / "scheduler" / "__main__.py").read_text()
    exported |= {f"trainmaster_{name}" for name in re.findall(r'add_gauge\(\s*"(\w+)"', main)}
    # These appear once a scheduler has run.
    exported |= {"trainmaster_tick_done_age_seconds", "trainmaster_beat_lease_expired_seconds"}
    used = {name.removesuffix("_bucket") for query in queries() for name in re.findall(r"trainmaster_\w+", query)}
    assert used - exported == set()


def test_what_runs_out_is_reported_as_a_part_of_its_limit(
    client: TestClient, sessions: SessionFactory, tmp_path: Path, clock: Any
) -> None:
    with unit_of_work(sessions) as session:
        project = session.query(Project).one()
        project.quota = {"limit": {"storage": "1Gi"}}
        session.merge(StorageUsage(project_id=project.id, used_bytes=2**28, due_at=clock.now, measured_at=clock.now))
        session.add(
            BudgetRow(
                project_id=project.id, micros_per_month=10**6, action="warn", updated_by="admin", updated_at=clock.now
            )
        )
        root = session.query(Volume).filter(Volume.root.is_not(None)).first()
        assert root is not None
        name = root.name
    text = client.get("/metrics").text
    assert 'trainmaster_project_storage_used_ratio{project="default"} 0.25' in text
    assert 'trainmaster_project_budget_spent_ratio{project="default"} 0.0' in text
    label = f'{{volume="{name}"}}'
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if label in line)
    size, free = (float(values[f"trainmaster_volume_{kind}_bytes{label}"]) for kind in ("size", "free"))
    assert size == shutil.disk_usage(tmp_path).total
    assert 0 < free < size
    assert re.search(r"^trainmaster_home_free_bytes \S+", text, re.MULTILINE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def port(app: FastAPI, client: TestClient) -> Iterator[int]:
    """Of a real server with the application."""
    assert client
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(timeout=30)


@needs_prometheus
def test_a_real_prometheus_scrapes_the_platform_with_its_alerts(port: int, admin_token: str, tmp_path: Path) -> None:
    target = {
        "job_name": "trainmaster-api",
        "scrape_interval": "1s",
        "authorization": {"credentials": admin_token},
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
    }
    config = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "alerts.yaml")],
        "scrape_configs": [target],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    url = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={url}"], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{url}/api/v1") as prometheus:
            assert _answer(prometheus, "/query", query="trainmaster_database_up")[0]["value"][1] == "1"
            assert _answer(prometheus, "/query", query='trainmaster_jobs{state="queued"}')[0]["value"][1] == "0"
            groups = prometheus.get("/rules").json()["data"]["groups"]
            assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    finally:
        process.terminate()
        process.wait(30)


def _answer(prometheus: httpx.Client, path: str, **params: str) -> list[Any]:
    """The first result that is not empty."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            found: list[Any] = prometheus.get(path, params=params).json()["data"]["result"]
        except (httpx.TransportError, ValueError, KeyError):
            found = []
        if found:
            return found
        assert time.monotonic() < deadline_s, "Prometheus has no answer"
        time.sleep(0.1)
