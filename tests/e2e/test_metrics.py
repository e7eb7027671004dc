"""A script without a line for us: its metrics, its progress and what its machine did are seen while it trains."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

# Numbers in its log, a TensorBoard file whose bytes it writes itself (no TensorFlow here), and hypertune's file.
SCRIPT = textwrap.dedent(
    """
    import json, os, struct, sys, time

    sys.path.insert(0, os.environ["RUNTIME"])
    from trainmaster_runtime.metrics.tfevents import masked_crc

    def record(data):
        head = struct.pack("<Q", len(data))
        return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))

    def scalar(tag, step, value):
        inner = b"\\x0a" + bytes([len(tag)]) + tag + b"\\x15" + struct.pack("<f", value)
        summary = b"\\x0a" + bytes([len(inner)]) + inner
        at = b"\\x09" + struct.pack("<d", time.time()) + b"\\x10" + bytes([step])
        return at + b"\\x2a" + bytes([len(summary)]) + summary

    folder = os.environ["TRAINMASTER_OUTPUT_DIR"] + "/logs"
    os.makedirs(folder, exist_ok=True)
    told = os.environ["CLOUD_ML_HP_METRIC_FILE"]
    os.makedirs(os.path.dirname(told), exist_ok=True)
    with open(folder + "/events.out.tfevents.1", "wb") as events:
        for step in range(1, 101):
            print("Epoch %d/100 - loss %.3f" % (step, 1 / step), flush=True)
            events.write(record(scalar(b"accuracy", step, step / 128)))
            events.flush()
            time.sleep(0.01)
        with open(told, "w") as stream:
            entry = {"auc": "0.75", "checkpoint_path": "", "global_step": "9", "timestamp": time.time(), "trial": "0"}
            stream.write(json.dumps(entry) + "\\n")
    time.sleep(3)
    """
)


def test_what_a_script_prints_and_writes_is_on_the_chart(platform: Any, tmp_path: Any) -> None:

    (tmp_path / "train.py").write_text(SCRIPT)
    runtime = Path(__file__).parents[2] / "worker_images/runtime"
    client = platform.client
    job = client.run(
        tmp_path,
        ["python3", "train.py"],
        name="watched",
        env={"RUNTIME": str(runtime)},
        more={"metric_patterns": ["Epoch {epoch}/{epochs} - loss {loss}"]},
    )
    detail = job.wait(timeout_s=120)
    assert detail.state == "succeeded"
    found = {series.name: series for series in job.metrics()}
    assert (found["loss"].count, found["loss"].last_step, found["loss"].last_value) == (100, 100, 0.01)
    assert (found["accuracy"].count, found["accuracy"].last_value) == (100, 100 / 128)
    assert (found["auc"].count, found["auc"].last_step, found["auc"].last_value) == (1, 9, 0.75)
    assert found["system/memory_bytes"].last_value > 0
    (chart,) = job.chart(names=["accuracy"]).series
    assert chart.points is not None
    assert chart.points.steps == list(range(1, 101))
    assert detail.progress["fraction"] == 1.0
    (use,) = job.resources().replicas
    assert use.memory_bytes is not None


# What programs of the field print, a line of each; the metric that is read, with its last step and value.
PRINTED = {
    "epoch 3 f1 0.15": ("f1", 3, 0.15),
    "Train Epoch: 2 [640/750 (83%)]\tLoss: 0.250000": ("Loss", 1390, 0.25),
    "iter 2100: loss 2.4700, time 12.30ms, mfu 1.20%": ("mfu", 2100, 1.2),
    "INFO:tensorflow:total_loss = 2.95, step = 2101": ("total_loss", 2101, 2.95),
    "[0]\ttrain-logloss:0.48\teval-auc:0.90": ("eval-auc", 0, 0.9),
    "[1]\tvalid_0's l2: 0.24": ("valid_0/l2", 1, 0.24),
    "7:\tlearn: 0.6\ttest: 0.7\tbest: 0.7 (7)\ttotal: 149ms\tremaining: 1.34s": ("learn", 7, 0.6),
    "epoch     train_loss  valid_loss  accuracy  time    \n3         0.5         0.6         0.7       00:01": (
        "valid_loss",
        3,
        0.6,
    ),
    '{"step": 2200, "grad_norm": 0.5}': ("grad_norm", 2200, 0.5),
    "2026-11-27 10:00:00,123 - INFO - step 2300: val_loss: 0.75": ("val_loss", 2300, 0.75),
}


def test_what_programs_print_anyway_is_on_the_chart(platform: Any, tmp_path: Any) -> None:
    (tmp_path / "train.py").write_text(f"print({chr(10).join(PRINTED)!r}, flush=True)\n")
    job = platform.client.run(tmp_path, ["python3", "train.py"], name="printed")
    assert job.wait(timeout_s=120).state == "succeeded"
    found = {series.name: (series.last_step, series.last_value) for series in job.metrics(system=False)}
    assert {name: found.get(name) for name, *_ in PRINTED.values()} == {
        name: (step, value) for name, step, value in PRINTED.values()
    }
    assert not {"time", "Time", "total", "remaining", "best"} & set(found)
    assert platform.client.suggest_metric_patterns(job.id).suggestions == []


def test_the_api_suggests_metric_patterns_for_a_job_without_metrics(platform: Any, tmp_path: Any) -> None:
    (tmp_path / "train.py").write_text("print('result so far: accuracy 0.75 of all')\n")
    job = platform.client.run(tmp_path, ["python3", "train.py"], name="silent")
    assert job.wait(timeout_s=120).state == "succeeded"
    (suggestion,) = platform.client.suggest_metric_patterns(job.id).suggestions
    assert suggestion.line == "result so far: accuracy 0.75 of all"
    again = platform.client.run(
        tmp_path, ["python3", "train.py"], name="named", more={"metric_patterns": [suggestion.pattern]}
    )
    assert again.wait(timeout_s=120).state == "succeeded"
    assert [(series.name, series.last_value) for series in again.metrics(system=False)] == [("accuracy", 0.75)]
    assert platform.client.suggest_metric_patterns(again.id).suggestions == []
