"""What each source of a metric brought: counted where the trial runs, kept bounded, and said in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from trainmaster_runtime.metrics.collector import Collector, HypertuneFile
from trainmaster_runtime.metrics.collector import SourceCounts as Counted
from trainmaster_runtime.metrics.patterns import LinePatterns
from trainmaster_runtime.reports.reporter import Reporter

from core.domain.studies.metric_sources import KEY, MetricSources, parse_sources


def reporter(tmp_path: Path, report: str = "") -> Reporter:
    """Of a trial whose hypertune file and log had something, and whose report file says ``report``."""
    (tmp_path / "output.metric").write_text('{"timestamp": 1.0, "trial": "1", "acc": "0.5", "global_step": "3"}\n')
    (tmp_path / "reports").write_text(report)
    made = Reporter(
        api_url="http://127.0.0.1:9", token="t", replica={}, source=str(tmp_path / "reports"),
        spool_path=str(tmp_path / "spool"),
        say=lambda _text: None,
    )  # fmt: skip
    made.queue.close()  # what is added is caught by the tests
    made.metrics.collector = Collector(
        hypertune=HypertuneFile(str(tmp_path / "output.metric")), patterns=LinePatterns([]), sources=Counted()
    )
    return made


def reported_by(made: Reporter) -> Any:
    """What it says of its sources at its end."""
    added: list[dict[str, Any]] = []
    cast("Any", made).queue.add = added.append
    made.read_reports(True)
    made.metrics.collect(True)
    return next(item["data"]["metric_sources"] for item in added if "metric_sources" in item["data"])


def test_a_trial_tells_at_its_end_what_came_from_each_source(tmp_path: Path) -> None:
    made = reporter(tmp_path, json.dumps({"kind": "progress", "step": 1, "metrics": {"loss": 0.1, "lr": 1}}) + "\n")
    made.note([b"hello", b"loss=0.5 step=1", b"nothing of it"])
    sources = MetricSources.of([{KEY: parse_sources(reported_by(made))}])
    assert sources.is_known
    assert sources.words(["acc", "loss", "lr", "auc"], more=False) == (
        "training library: `loss`, `lr`, 2 values; hypertune's file: `acc`, 1 value; MLflow: `auc`; "
        "TensorBoard's event files: nothing; log: 1 of 3 lines matched, with `loss`"
    )


def test_a_job_that_is_no_trial_counts_nothing(tmp_path: Path) -> None:
    made = reporter(tmp_path)
    assert made.metrics.collector is not None
    made.metrics.collector.sources = None
    added: list[dict[str, Any]] = []
    cast("Any", made).queue.add = added.append
    made.metrics.collect(True)
    assert [item["kind"] for item in added] == ["metrics"]


def test_many_names_take_few_words_and_what_is_no_count_is_none() -> None:
    counted = Counted()
    for number in range(5_000):
        counted.count_value("events", f"layer/{number}/{'x' * 300}")
    reported = parse_sources({**counted.summary(), "log": {"lines": "many", "names": [3, "a"]}, "unheard": {}})
    assert reported is not None
    assert len(json.dumps(reported)) < 1_500
    sources = MetricSources.of([{KEY: reported}, {KEY: reported}, {}])
    words = sources.words([f"layer/{number}" for number in range(8)], more=True)
    assert "and 78 more, 10,000 values" in words
    assert "MLflow: not known" in words
    assert "log: 0 of 0 lines matched, with `a`" in words
    assert len(words) < 800
    assert parse_sources([]) is None
    assert not MetricSources.of([{}]).is_known
