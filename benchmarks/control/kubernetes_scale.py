"""Pods placed per second on a large cluster that is not there: gangs by this platform, against bare pods that
kube-scheduler places alone. Both write to the same real API server, through the same client-side limit.

    KUBECONFIG=… python3 dev.py bench kubernetes_scale [--nodes 500] [--pods 5000] [--gang 8] [--qps 100] [--rounds 1]
    [--json]

The nodes are Node objects without a kubelet, kept ready by leases that this program renews, as kubelets do. A pod
counts as placed when it has been bound to its node. The clock starts with the first request: for a gang that includes
the submission to the platform, planning, its Service, its secrets and policies.

With ``--at-rest`` it also tells what the control plane costs when all pods stand: CPU seconds per minute and memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainmaster import Client
from trainmaster.client import RetryPolicy

from benchmarks.support.embedded import Embedded, command_line, cpu_s, embedded_platform, pids_of, show, wait_for
from core.domain.errors import ExecutorTryAgain
from executors.kubernetes.api_server.client import Gone, KubernetesClient, ObjectExists, ObjectNotFound, path

TARGET = 1.0  # times kube-scheduler's own
LABEL = "trainmaster-bench"
HEARTBEAT_S = 5.0
LEASES = "coordination.k8s.io/v1"
IMAGE = "nowhere.invalid/pause:1"  # no kubelet ever pulls it
REQUESTS = {"cpu": "100m", "memory": "128Mi", "nvidia.com/gpu": "1"}


def main() -> None:
    parser = command_line(__doc__, rounds=1)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--gang", type=int, default=8)
    parser.add_argument("--qps", type=float, default=100.0)
    parser.add_argument("--at-rest", action="store_true")
    options = parser.parse_args()
    mark = f"bench-{uuid.uuid4().hex[:6]}"
    alone: list[float] = []
    by_gangs: list[float] = []
    verdict: dict[str, Any] = {}
    world = World(mark, options.nodes)
    with world.standing():
        for number in range(options.rounds):
            alone.append(by_kube_scheduler(world, options))
            by_gangs.append(by_platform(world, options, verdict, is_last=number == options.rounds - 1))
    ratio = statistics.median(alone) / statistics.median(by_gangs)
    verdict = {
        "kube_scheduler_pods_per_s": round(options.pods / statistics.median(alone), 1),
        "ours_pods_per_s": round(options.pods / statistics.median(by_gangs), 1),
        "ratio": round(ratio, 2),
        "wanted_at_least": TARGET,
        "is_reached": ratio >= TARGET,
        **verdict,
    }
    title = f"{options.pods} pods on {options.nodes} nodes, {options.qps:g} requests per second"
    rows = {"kube-scheduler alone": alone, f"gangs of {options.gang} by the platform": by_gangs}
    show(title, rows, verdict, as_json=options.json)


class World:
    """Nodes without machines, and this program's own eye on the pods there."""

    def __init__(self, mark: str, nodes: int) -> None:
        self.mark = mark
        self.names = [f"{mark}-{number}" for number in range(nodes)]
        self.client = KubernetesClient(qps=500.0)
        self._stop = threading.Event()

    @contextmanager
    def standing(self) -> Iterator[None]:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._make_node, self.names))
        heart = threading.Thread(target=self._beat, daemon=True)
        heart.start()
        try:
            yield
        finally:
            self._stop.set()
            heart.join()
            with suppress(ObjectNotFound):
                self.client.delete(path("namespaces", name=self.mark))
            self.client.delete(path("nodes"), params={"labelSelector": f"{LABEL}={self.mark}"})
            self.client.close()

    def _make_node(self, name: str) -> None:
        labels = {LABEL: self.mark, "kubernetes.io/hostname": name}
        # Other people's pods must not land where nothing runs.
        taints = [{"key": LABEL, "value": self.mark, "effect": "NoSchedule"}]
        made = self.client.post(
            path("nodes"), {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
        )
        self._ready(name)
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": made["metadata"]["uid"]}
        lease = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()}
        metadata = {"name": name, "ownerReferences": [owner]}
        self.client.post(path("leases", "kube-node-lease", group=LEASES), {"metadata": metadata, "spec": lease})

    def _ready(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "200", "nvidia.com/gpu": "16"}
        condition = {"type": "Ready", "status": "True", "reason": "Bench", "lastHeartbeatTime": now}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [condition]}
        self.client.patch(path("nodes", name=f"{name}/status"), {"status": status})

    def _beat(self) -> None:
        while not self._stop.wait(0.5):
            started = time.monotonic()
            for name in self.names:
                if self._stop.wait(max(0.0, HEARTBEAT_S / len(self.names) - 0.004)):
                    return
                url = path("leases", "kube-node-lease", name, group=LEASES)
                with suppress(Exception):
                    self.client.patch(url, {"spec": {"renewTime": _now()}})
            with suppress(Exception):
                self._revive()
            self._stop.wait(max(0.0, HEARTBEAT_S - (time.monotonic() - started)))

    def _revive(self) -> None:
        """A node that was given up because this machine was too busy would stay so."""
        for page in self.client.list_pages(
            path("nodes"), {"labelSelector": f"{LABEL}={self.mark}", "resourceVersion": "0"}
        ):
            for node in page["items"]:
                if any(c["type"] == "Ready" and c["status"] != "True" for c in node["status"]["conditions"]):
                    self._ready(node["metadata"]["name"])


class PodWatcher:
    """Counts the bound pods that a selector names, from before the first one is made."""

    def __init__(self, client: KubernetesClient, selector: str) -> None:
        self._client = client
        self._params = {"labelSelector": selector}
        self.bound: dict[str, float] = {}
        self.gang_of: dict[str, str] = {}
        self._stop = threading.Event()
        version = self._look()
        self._thread = threading.Thread(target=self._watch, args=(version,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()

    def await_all(self, count: int, within_s: float) -> float:
        """The moment at which the last one was bound."""
        wait_for(lambda: len(self.bound) >= count, f"{count} pods bound, {len(self.bound)} are", within_s)
        return max(self.bound.values())

    def split_gangs(self, size: int) -> int:
        """How many gangs are there in part only."""
        members: dict[str, int] = defaultdict(int)
        for pod in self.bound:
            members[self.gang_of[pod]] += 1
        return sum(count != size for count in members.values())

    def _look(self) -> str:
        version = "0"
        for page in self._client.list_pages(path("pods"), self._params):
            version = page["metadata"]["resourceVersion"]
            for pod in page["items"]:
                self._see(pod)
        return version

    def _watch(self, version: str) -> None:
        while not self._stop.is_set():
            with suppress(Exception):
                try:
                    for event in self._client.watch(
                        path("pods"), resource_version=version, params=self._params, timeout_s=30
                    ):
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] in ("ADDED", "MODIFIED"):
                            self._see(event["object"])
                        if self._stop.is_set():
                            return
                except Gone:
                    version = self._look()

    def _see(self, pod: dict[str, Any]) -> None:
        if pod["spec"].get("nodeName"):
            name = pod["metadata"]["name"]
            self.gang_of[name] = pod["metadata"]["labels"].get("trainmaster/attempt", "")
            self.bound.setdefault(name, time.monotonic())


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def by_kube_scheduler(world: World, options: argparse.Namespace) -> float:
    """Seconds until all pods are bound that were posted as fast as the limit lets."""
    client = KubernetesClient(qps=options.qps)
    with suppress(ObjectExists):
        client.post(path("namespaces"), {"metadata": {"name": world.mark}})
    wait_for(lambda: _has_account(client, world.mark), "the namespace's service account")
    mark = f"alone-{uuid.uuid4().hex[:6]}"
    watcher = PodWatcher(world.client, f"{LABEL}={mark}")

    def post(number: int) -> None:
        client.post(path("pods", world.mark), _pod(f"{mark}-{number}", mark, world.mark))

    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(post, range(options.pods)))
    ended = watcher.await_all(options.pods, 1200)
    watcher.close()
    print(f"{options.pods} pods placed in {ended - started:.1f} s by kube-scheduler", file=sys.stderr, flush=True)
    take_down(world.client, world.mark, f"{LABEL}={mark}")
    client.close()
    return ended - started


def by_platform(world: World, options: argparse.Namespace, verdict: dict[str, Any], *, is_last: bool) -> float:
    """The same number of pods as gangs, from the first submission on."""
    instance = f"{world.mark}-{uuid.uuid4().hex[:4]}"
    settings = {
        "TRAINMASTER_EXECUTOR": "kubernetes",
        "TRAINMASTER_INSTANCE": instance,
        "TRAINMASTER_KUBERNETES_NAMESPACE": instance,
        "TRAINMASTER_KUBERNETES_QPS": str(options.qps),
        "TRAINMASTER_REPLICA_API_URL": "http://127.0.0.1:1",
        "TRAINMASTER_RUNTIME_IMAGE": IMAGE,
        "TRAINMASTER_KUBERNETES_TOLERATIONS": LABEL,
    }
    os.environ.update(settings)
    spec = {
        "name": "gang",
        "image": IMAGE,
        "command": ["sleep", "3600"],
        "roles": {"worker": {"replicas": options.gang, "resources": {"cpu": "100m", "memory": "128Mi", "gpus": 1}}},
        "node_selector": {LABEL: world.mark},
    }
    gangs = options.pods // options.gang
    with embedded_platform() as running, Client(running.url, running.token, retry=RetryPolicy(tries=8)) as client:
        wait_for(lambda: len(list(client.list_nodes())) >= options.nodes, "the platform sees the nodes")
        watcher = PodWatcher(world.client, f"trainmaster/instance={instance}")
        pids = {name: pid for name in ("api", "scheduler") for pid in pids_of(running, name)}
        spent = {name: cpu_s(pid) for name, pid in pids.items()}
        started = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: client.submit(spec), range(gangs)))
        submitted = time.monotonic()
        ended = watcher.await_all(gangs * options.gang, 1800)
        verdict["submitting_s"] = round(submitted - started, 1)
        spent = {name: cpu_s(pid) - spent[name] for name, pid in pids.items()}
        verdict["cpu_ms_per_pod"] = {name: round(1000 * value / options.pods, 1) for name, value in spent.items()}
        verdict["gangs_in_part"] = watcher.split_gangs(options.gang)
        watcher.close()
        # Taking it all down again takes longer.
        print(f"{options.pods} pods placed in {ended - started:.1f} s: {verdict}", file=sys.stderr, flush=True)
        if is_last and options.at_rest:
            be_kubelet(world.client, instance)
            wait_for(lambda: _are_running(client, gangs), "all jobs run", 900)
            verdict |= at_rest(running)
    # With the platform down nobody makes them again.
    take_down(world.client, instance, f"trainmaster/instance={instance}")
    with suppress(ObjectNotFound):
        world.client.delete(path("namespaces", name=instance))
    return ended - started


def take_down(client: KubernetesClient, namespace: str, selector: str) -> None:
    """End pods that no kubelet would end. It takes the API server longer than it lets anybody wait for an answer."""

    def is_done() -> bool:
        with suppress(ExecutorTryAgain):
            client.delete(
                path("pods", namespace), params={"labelSelector": selector}, options={"gracePeriodSeconds": 0}
            )
            return not _count(client, selector)
        return False

    wait_for(is_done, "the pods are gone", 900)


def be_kubelet(client: KubernetesClient, namespace: str) -> None:
    """Say of each pod that it runs, as its node's kubelet would."""
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    common = {"image": IMAGE, "imageID": "", "restartCount": 0}
    main = {"name": "main", "ready": True, "state": {"running": {"startedAt": started}}, **common}
    status = {"phase": "Running", "startTime": started, "containerStatuses": [main]}

    def run(name: str) -> None:
        client.patch(path("pods", namespace, f"{name}/status"), {"status": status})

    names = [pod["metadata"]["name"] for page in client.list_pages(path("pods", namespace)) for pod in page["items"]]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, names))


def _are_running(client: Client, count: int) -> bool:
    return sum(1 for _ in client.list_jobs(state=["running"])) >= count


def at_rest(running: Embedded, minutes: float = 1.0) -> dict[str, Any]:
    """What API and scheduler cost while nothing happens."""
    pids = {name: pid for name in ("api", "scheduler") for pid in pids_of(running, name)}
    time.sleep(20)  # let what is still moving come to rest
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    time.sleep(60 * minutes)
    spent = {name: (cpu_s(pid) - before[name]) / minutes for name, pid in pids.items()}
    return {
        "cpu_s_per_minute_at_rest": {name: round(value, 2) for name, value in spent.items()},
        "memory_mib": {name: round(_rss_mib(pid)) for name, pid in pids.items()},
    }


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _pod(name: str, mark: str, node_mark: str) -> dict[str, Any]:
    container = {"name": "main", "image": IMAGE, "resources": {"requests": REQUESTS, "limits": {"nvidia.com/gpu": "1"}}}
    spec = {
        "containers": [container],
        "nodeSelector": {LABEL: node_mark},
        "tolerations": [{"key": LABEL, "operator": "Exists"}],
        "automountServiceAccountToken": False,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {LABEL: mark}}, "spec": spec}


def _count(client: KubernetesClient, selector: str) -> int:
    page = client.list_page(path("pods"), {"labelSelector": selector}, limit=1)
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)


def _has_account(client: KubernetesClient, namespace: str) -> bool:
    with suppress(ObjectNotFound):
        return bool(client.get(path("serviceaccounts", namespace, "default")))
    return False


if __name__ == "__main__":
    if not os.environ.get("KUBECONFIG"):
        sys.exit("Set KUBECONFIG to a cluster that may be filled with 5,000 pods.")
    main()
