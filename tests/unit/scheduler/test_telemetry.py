from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core import telemetry
from core.settings import BadSettings
from core.telemetry import SpanPlace

ROOT = Path(__file__).parents[3]
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
NOW = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _off_again(monkeypatch: pytest.MonkeyPatch) -> object:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    yield
    monkeypatch.undo()
    telemetry.configure("test")


def test_without_a_collector_nothing_is_imported_and_nothing_recorded() -> None:
    code = (
        "import sys; from core import telemetry; telemetry.configure('api');"
        "from core.telemetry import SpanPlace;"
        "assert telemetry.traceparent(SpanPlace('job-1')) is None and not telemetry.is_sampled('job-1');"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules), 'imported'"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "sdk")])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_missing_package_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(BadSettings, match=r"OTEL_EXPORTER_OTLP_ENDPOINT is set, but .* pip install"):
        telemetry.configure("api")


def test_all_processes_decide_alike_which_part_of_the_jobs_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk")
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.2")
    jobs = [f"job-{number}" for number in range(1000)]
    chosen = []
    for part in ("api", "worker"):
        telemetry.configure(part)
        chosen.append([job for job in jobs if telemetry.is_sampled(job)])
    assert chosen[0] == chosen[1]
    assert 100 < len(chosen[0]) < 300
    sampled, other = chosen[0][0], next(job for job in jobs if job not in chosen[0])
    assert str(telemetry.traceparent(SpanPlace(sampled, "att-1"))).endswith("-01")
    assert str(telemetry.traceparent(SpanPlace(other, "att-1"))).endswith("-00")
    place = SpanPlace(other)
    telemetry.record("job", NOW, NOW, place=place, parent=None)  # reaches no exporter, which would warn
    with telemetry.span("executor.create", place):
        pass
