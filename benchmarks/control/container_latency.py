"""Submit → first line of the user's code in a container, against starting the same container by hand. Interleaved.

    python3 dev.py bench container_latency [--engine docker] [--rounds 20] [--image python:3.11-slim] [--json]
    KUBECONFIG=… python3 dev.py bench container_latency --engine kubernetes --image … --runtime-image … --pod-host …

The clock starts before the client's call and stops in the first line of the script, which writes the time down.

Docker: by hand is `docker run` with the same image, mount and user, on a network that exists; the platform also makes
the attempt's network. The runtime image is built from worker_images/runtime.

Kubernetes: by hand is `kubectl apply` of as many bare Pods with the same image, mount and user. Its nodes are to see
this machine's files, have both images, and reach this machine at ``--pod-host``.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from trainmaster import Client

from benchmarks.support.embedded import ROOT, command_line, embedded_platform, run_to_end, show, wait_for

TARGET_S = 1.0  # at most this much more than by hand
PAIRS = (("1 by hand", "1 worker"), ("2 by hand, the later one", "2 workers, the later one"))
SCRIPT = """import time; now = time.time()
import os, pathlib
name = "first-line-" + os.environ.get("TRAINMASTER_INDEX", "0")
pathlib.Path("/data/output", name).write_text(repr(now))
"""


def main() -> None:
    parser = command_line(__doc__, rounds=20)
    parser.add_argument("--engine", choices=("docker", "kubernetes"), default="docker")
    parser.add_argument("--image", default="python:3.11-slim")
    parser.add_argument("--runtime-image", help="Kubernetes: the runtime's image as the nodes have it")
    parser.add_argument("--pod-host", default="127.0.0.1", help="Kubernetes: where pods reach this machine")
    options = parser.parse_args()
    instance = f"bench-{uuid.uuid4().hex[:8]}"
    is_docker = options.engine == "docker"
    os.environ |= {
        "TRAINMASTER_EXECUTOR": options.engine,
        "TRAINMASTER_INSTANCE": instance,
        "TRAINMASTER_KUBERNETES_NAMESPACE": instance,
        "TRAINMASTER_RUNTIME_IMAGE": build_runtime() if is_docker else options.runtime_image or "",
        "TRAINMASTER_DEFAULT_IMAGE": options.image,
    }
    by_hand = by_docker if is_docker else by_kubectl
    rows: dict[str, list[float]] = {name: [] for pair in PAIRS for name in pair}
    try:
        with embedded_platform(options.pod_host) as running, Client(running.url, running.token) as client:
            for number in range(-1, options.rounds):  # the first round warms everything up and does not count
                for workers, (hand, platform) in enumerate(PAIRS, start=1):
                    for name, start in (
                        (hand, partial(by_hand, options.image, workers)),
                        (platform, partial(by_submit, client, workers=workers)),
                    ):
                        # Kubelet looks at its containers once a second: without a pause each start would fall on the
                        # same moment of that second, which the end before it has set.
                        time.sleep(random.random())
                        seconds = start()
                        if number >= 0:
                            rows[name].append(seconds)
    finally:
        if is_docker:
            forget(instance)
        else:
            subprocess.run(
                ["kubectl", "delete", "namespace", instance, "--wait=false"], capture_output=True, check=False
            )
    medians = {name: statistics.median(values) for name, values in rows.items()}
    more = {platform: medians[platform] - medians[hand] for hand, platform in PAIRS}
    verdict = {
        "more_than_by_hand_s": {name: round(value, 3) for name, value in more.items()},
        "wanted_at_most_s": TARGET_S,
        "is_reached": all(value <= TARGET_S for value in more.values()),
    }
    show(f"Submit → first line of the user's code on {options.engine}", rows, verdict, as_json=options.json)


def build_runtime() -> str:
    name = "trainmaster/runtime:bench"
    images = ROOT / "worker_images"
    build = ["docker", "build", "-q", "--network", "host", "-t", name, "-f", str(images / "runtime" / "Dockerfile")]
    subprocess.run([*build, str(images)], check=True, capture_output=True)
    return name


def forget(instance: str) -> None:
    """The marks of removed attempts, which the driver itself keeps for a day."""
    wanted = ["docker", "volume", "ls", "-q", "--filter", f"label=trainmaster/instance={instance}"]
    marks = subprocess.run(wanted, capture_output=True, text=True, check=True).stdout.split()
    if marks:
        subprocess.run(["docker", "volume", "rm", *marks], capture_output=True, check=False)


def by_docker(image: str, count: int) -> float:
    """Seconds until as many containers, started at once, are in their first line."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        command = ["docker", "run", "--rm", "--user", "1000:1000", "-v", f"{folder}:/data/output", "-w", "/data"]
        started = time.time()
        running = [
            subprocess.Popen([*command, "-e", f"TRAINMASTER_INDEX={index}", image, "python3", "-c", SCRIPT])
            for index in range(count)
        ]
        if any(process.wait() for process in running):
            sys.exit("docker run failed")
        return _last_line(Path(folder), count) - started


def by_kubectl(image: str, count: int) -> float:
    """The same with bare Pods."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        mark = f"bench-{uuid.uuid4().hex[:8]}"
        pods = {"apiVersion": "v1", "kind": "List", "items": [_pod(mark, image, folder, n) for n in range(count)]}
        started = time.time()
        apply = ["kubectl", "apply", "-f", "-"]
        subprocess.run(apply, input=json.dumps(pods), text=True, check=True, capture_output=True)
        wait_for(lambda: all(Path(folder, f"first-line-{n}").exists() for n in range(count)), "the bare pods")
        time.sleep(0.1)  # the file is there before its content
        seconds = _last_line(Path(folder), count) - started
        delete = ["kubectl", "delete", "pod", "-l", f"bench={mark}", "--grace-period=0", "--force"]
        subprocess.run(delete, check=True, capture_output=True)
        return seconds


def _pod(mark: str, image: str, folder: str, index: int) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", SCRIPT],
        "env": [{"name": "TRAINMASTER_INDEX", "value": str(index)}],
        "volumeMounts": [{"name": "output", "mountPath": "/data/output"}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000},
        "containers": [container],
        "volumes": [{"name": "output", "hostPath": {"path": folder}}],
    }
    metadata = {"name": f"{mark}-{index}", "namespace": "default", "labels": {"bench": mark}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _last_line(folder: Path, count: int) -> float:
    return max(float(Path(folder, f"first-line-{index}").read_text()) for index in range(count))


def by_submit(client: Client, *, workers: int) -> float:
    """Seconds until all workers are in their first line."""
    spec = {"name": "first-line", "workers": workers, "command": ["python3", "-c", SCRIPT], "max_restarts": 0}
    started = time.time()
    job = client.submit(spec)
    run_to_end(job, 120)
    return max(float(job.read_file(f"first-line-{index}")) for index in range(workers)) - started


if __name__ == "__main__":
    main()
