"""Each headline figure of docs/benchmarks.md once, in small: ours against its peer in the same minutes.

    python3 dev.py bench --smoke [--only NAME …]

The settings are the defaults that a user gets. The bounds are generous: a busy machine stays within them, but a feature
that no longer engages (no start is warm, a batch is no batch) does not. Exits with 1 where a check fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainmaster import Client

from benchmarks.support.embedded import ROOT, Embedded, embedded_platform

MLFLOW = ROOT / ".frameworks" / "mlflow" / "bin" / "mlflow"
WARM = "forked from a preloaded parent"


@dataclass(frozen=True)
class Measured:
    """The platform's and the peer's figure in the same unit; ``max_ratio``: the greatest ratio that
    passes.
    """

    platform: float
    peer: float
    max_ratio: float
    unit: str
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.platform / self.peer


class Skipped(Exception):
    """The peer is not installed; the message says how to have it."""


class Failed(Exception):
    """A feature did not engage; the message says which."""


def first_line(running: Embedded, client: Client) -> Measured:
    """Submission to the first line of the script, against starting it by hand: 0.11 s against 0.02 s."""
    from benchmarks.control.submit_latency import by_hand, by_submit

    del running
    by_submit(client, workers=1)
    platform = [by_submit(client, workers=1) for _ in range(5)]
    return Measured(statistics.median(platform), statistics.median(by_hand() for _ in range(5)), 30, "s")


def warm_start(running: Embedded, client: Client) -> Measured:
    """First step of two DDP ranks from the second job on, against a job that starts cold: 0.18 s against 2.6 s."""
    from benchmarks.training.warm_start import by_submit, wait_for_parent

    by_submit(client, number=-1, warm="auto")
    wait_for_parent(running)
    cold, warm = [], []
    for number in range(3):
        cold.append(by_submit(client, number=number, warm="never"))
        warm.append(by_submit(client, number=number, warm="auto"))
    starts = [facts.get("start") for facts in facts_of_newest_jobs(client, 6)]
    if starts.count(WARM) < 2:
        raise Failed(f"of three jobs with `warm: auto`, at least two are to start warm; the starts were {starts}")
    return Measured(statistics.median(warm), statistics.median(cold), 0.6, "s")


def facts_of_newest_jobs(client: Client, count: int) -> list[dict[str, str]]:
    """What the executor noted of the first replica of each of the newest jobs."""
    facts = []
    for summary in client.list_jobs_page(limit=count).items:
        attempt = client.job(summary.id).view.attempt
        facts.append(dict(attempt.replicas[0].facts or {}) if attempt is not None and attempt.replicas else {})
    return facts


def restart(running: Embedded, client: Client) -> Measured:
    """kill -9 of a worker to the next step, against torchrun's own restart: 3.0 s against 2.8 s."""
    from benchmarks.control.restart_latency import by_platform, by_torchrun

    return Measured(by_platform(running, client), by_torchrun(), 3, "s")


def parameter_server_step(_running: Embedded, _client: Client) -> Measured:
    """CPU time of a step with one parameter server, against torch's RPC tutorial: 50 ms against 75 ms."""
    from benchmarks.training.ps_cost import KINDS

    platform, peer = sum(KINDS["ours"](32, 12)), sum(KINDS["torch RPC, batch"](32, 12))
    return Measured(platform * 1e3, peer * 1e3, 1.1, "ms of CPU")


def checkpoint_stall(_running: Embedded, _client: Client) -> Measured:
    """What a checkpoint costs the training thread, against torch.save: 0.025 s against 2.4 s for 400 MB."""
    from benchmarks.training.checkpoint_stall import measure

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        os.environ["TRAINMASTER_OUTPUT_DIR"] = folder
        try:
            options = argparse.Namespace(rounds=2, megabytes=80, batch=64, threads=1)
            stalls, _, _ = measure(Path(folder), options)
        finally:
            del os.environ["TRAINMASTER_OUTPUT_DIR"]
    platform, peer = (statistics.median(stalls[name]) for name in ("Saver, optimizer=", "torch.save"))
    return Measured(platform, peer, 0.5, "s")


def ingest(running: Embedded, _client: Client) -> Measured:
    """Seconds per million points of metrics, against MLflow's server: 20 s against 490 s on SQLite."""
    from benchmarks.watching import metrics_ingest as bench

    if not MLFLOW.exists():
        raise Skipped("MLflow is not installed: python3 dev.py frameworks mlflow")
    job, token = bench.start_job(running, 2)
    platform = [bench.Client(running.url, {"Authorization": f"Bearer {token}"}) for _ in range(2)]
    with bench.mlflow_server(str(MLFLOW), "") as url:
        peers = [bench.Client(url, {}) for _ in range(2)]
        path = "/api/2.0/mlflow/runs/create"
        runs = [peer.ask("POST", path, b'{"experiment_id": "0"}')["run"]["info"]["run_id"] for peer in peers]
        platform_rate = bench.points_per_s(platform, "/api/v1/runtime/metrics", bench.platform_body, 3)
        path = "/api/2.0/mlflow/runs/log-batch"
        peer_rate = bench.points_per_s(peers, path, lambda n, request: bench.mlflow_body(runs[n], request), 3)
    bench.Client(running.url, {"Authorization": f"Bearer {running.token}"}).ask("POST", f"/api/v1/jobs/{job}/cancel")
    return Measured(1e6 / platform_rate, 1e6 / peer_rate, 0.5, "s per million points")


def post(running: Embedded, client: Client) -> Measured:
    """POST of a job that waits, against a GET of the API's health on the same connection."""
    spec = {"name": "posted", "command": ["true"], "gpus": 8, "workers": 2}

    def seconds(call: Callable[[], object]) -> float:
        began_s = time.perf_counter()
        call()
        return time.perf_counter() - began_s

    jobs = []
    platform = [seconds(lambda: jobs.append(client.submit(spec))) for _ in range(20)]
    peer = [seconds(client.get_health) for _ in range(20)]
    for job in jobs:
        job.cancel(reason="measured")
    del running
    return Measured(statistics.median(platform) * 1e3, statistics.median(peer) * 1e3, 10, "ms")


CHECKS: dict[str, Callable[[Embedded, Client], Measured]] = {
    "first-line": first_line,
    "warm-start": warm_start,
    "restart": restart,
    "post": post,
    "ingest": ingest,
    "ps-step": parameter_server_step,
    "checkpoint-stall": checkpoint_stall,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(CHECKS), default=list(CHECKS))
    options = parser.parse_args()
    failed = 0
    with embedded_platform() as running, Client(running.url, running.token) as client:
        for name in options.only:
            began_s = time.monotonic()
            verdict, passes = judge(partial(CHECKS[name], running, client))
            failed += not passes
            print(f"{name:>17}  {verdict}  ({time.monotonic() - began_s:.0f} s)", flush=True)
    print(f"{len(options.only) - failed} passed, {failed} failed")
    return 1 if failed else 0


def judge(check: Callable[[], Measured]) -> tuple[str, bool]:
    """The check's verdict in words, and whether it passes."""
    try:
        found = check()
    except Skipped as reason:
        return f"skipped: {reason}", True
    except Failed as reason:
        return f"FAILED: {reason}", False
    passes = found.ratio <= found.max_ratio
    ratio = f"{found.ratio:.2g} ×, at most {found.max_ratio:g} ×"
    figures = f"{found.platform:.3g} against {found.peer:.3g} {found.unit}: {ratio}"
    return f"{'passed' if passes else 'FAILED'}: {figures}", passes


if __name__ == "__main__":
    sys.exit(main())
