"""What starting a gang costs the platform itself: CPU per pod of scheduler and API, without the cluster's own cost.

    python3 dev.py bench gang_start [--nodes 500] [--pods 4000] [--gang 8] [--rounds 3] [--database URL] [--json]

The platform is whole (embedded; with ``--database`` over PostgreSQL) and drives Kubernetes as it always does, but the
API server is a pretended one, which takes everything and binds each pod at once. What is counted goes from the first
submission to the last bound pod, and then from the first cancel to the last job's end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
from trainmaster import Client
from trainmaster.client import RetryPolicy

from benchmarks.support.embedded import Embedded, command_line, cpu_s, embedded_platform, pids_of, show, wait_for


def main() -> None:
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=4000)
    parser.add_argument("--gang", type=int, default=8)
    parser.add_argument("--database", default="", help="empty: SQLite")
    options = parser.parse_args()
    rounds = [measure(options) for _ in range(options.rounds)]
    rows = {name: [measured[name] for measured in rounds] for name in rounds[0]}
    title = f"gangs of {options.gang} on {options.nodes} nodes, {options.pods} pods"
    per_pod = {name: round(1000 * statistics.median(values) / options.pods, 2) for name, values in rows.items()}
    show(title, rows, {"median, ms per pod": per_pod}, as_json=options.json)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Seconds, and CPU seconds of API and scheduler, of one round on a platform of its own."""
    with pretended(options.nodes) as url, platform(url, options.database) as running:
        client = Client(running.url, running.token, retry=RetryPolicy(tries=8))
        wait_for(lambda: len(list(client.list_nodes())) >= options.nodes, "the platform sees the nodes")
        pids = {name: pid for name in ("api", "scheduler") for pid in pids_of(running, name)}
        spec = {
            "name": "gang",
            "image": "nowhere.invalid/pause:1",
            "command": ["sleep", "3600"],
            "roles": {"worker": {"replicas": options.gang, "resources": {"cpu": "100m", "memory": "128Mi", "gpus": 1}}},
        }
        gangs = options.pods // options.gang
        figures: dict[str, float] = {}

        def timed(what: str, work: Any) -> Any:
            before, begin_s = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
            result = work()
            figures[what] = time.monotonic() - begin_s
            for name, pid in pids.items():
                figures[f"{what}, CPU of {name}"] = cpu_s(pid) - before[name]
            return result

        def start() -> list[str]:
            with ThreadPoolExecutor(4) as pool:
                made = list(pool.map(lambda _: client.submit(spec).id, range(gangs)))
            wait_for(lambda: bound(url) >= gangs * options.gang, "all pods are bound", 600)
            return made

        jobs = timed("start", start)

        def stop() -> None:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(client.cancel_job, jobs))
            wait_for(lambda: not pods(url), "all pods are gone", 600)

        timed("stop", stop)
        client.close()
        return figures


@contextmanager
def pretended(nodes: int) -> Iterator[str]:
    """The pretended cluster's address."""
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "fake_cluster.py"), str(nodes), "16"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield f"http://127.0.0.1:{(server.stdout.readline() if server.stdout else '').strip()}"
        finally:
            server.kill()


@contextmanager
def platform(url: str, database: str) -> Iterator[Embedded]:
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {"token": "any"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
        }
        kubeconfig.write_bytes(orjson.dumps(document))
        os.environ |= {
            "KUBECONFIG": str(kubeconfig),
            "TRAINMASTER_EXECUTOR": "kubernetes",
            "TRAINMASTER_KUBERNETES_QPS": "100000",
            "TRAINMASTER_REPLICA_API_URL": "http://127.0.0.1:1",
        }
        if database:
            os.environ["TRAINMASTER_DATABASE_URL"] = database
        with embedded_platform() as running:
            yield running


def pods(url: str) -> list[dict[str, Any]]:
    time.sleep(0.2)  # listing thousands is work
    found: list[dict[str, Any]] = orjson.loads(httpx.get(f"{url}/api/v1/pods", trust_env=False, timeout=30).content)[
        "items"
    ]
    return found


def bound(url: str) -> int:
    return sum("nodeName" in pod["spec"] for pod in pods(url))


if __name__ == "__main__":
    main()
