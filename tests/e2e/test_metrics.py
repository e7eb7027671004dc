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
