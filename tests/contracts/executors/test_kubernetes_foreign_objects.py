"""What others bring to a real cluster: claims that many nodes share, and admission webhooks. Marked ``kubernetes``."""

from __future__ import annotations

import base64
import json
import os
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from core.domain.errors import ExecutorRefused
from executors.base import MountOrder, Phase, VolumeSource
from executors.kubernetes.api_server.client import path as url

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.skipif(
        not os.environ.get("TRAINMASTER_TEST_POD_HOST"),
        reason="TRAINMASTER_TEST_POD_HOST names no address of this machine that the API server reaches",
    ),
]
_WEBHOOKS = "admissionregistration.k8s.io/v1"


@pytest.fixture
def bench(make_kubernetes_bench):
    return make_kubernetes_bench()


@pytest.fixture
def claim(bench, tmp_path: Path) -> Iterator[str]:
    """A claim that any node may write to, bound to a folder that all of them see."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    name = f"shared-{uuid.uuid4().hex[:8]}"
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "metadata": {"name": name},
        "spec": {
            **common,
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": bench.namespace, "name": name},
        },
    }
    wanted = {"metadata": {"name": name}, "spec": {**common, "resources": {"requests": {"storage": "1Gi"}}}}
    bench.executor.create(bench.order(command=("true",)))  # for the namespace
    bench.engine.post(url("persistentvolumes"), {"apiVersion": "v1", "kind": "PersistentVolume", **volume})
    claims = url("persistentvolumeclaims", bench.namespace)
    try:
        bench.engine.post(claims, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **wanted})
        yield name
    finally:
        bench.engine.delete(f"{claims}/{name}")
        bench.engine.delete(url("persistentvolumes", name=name))


def test_replicas_on_all_nodes_share_a_claim_by_folders_of_it(bench, claim, tmp_path):
    def mount(path: str, target: str, *, read_only: bool) -> MountOrder:
        return MountOrder("", target, read_only, VolumeSource("shared", "pvc", {"claim": claim}, path))

    for folder in ("in", "out"):
        (tmp_path / "shared" / folder).mkdir()
        (tmp_path / "shared" / folder).chmod(0o777)
    (tmp_path / "shared/in/word").write_text("hello")
    mounts = (mount("out", "/data/output", read_only=False), mount("in", "/data/data", read_only=True))
    script = "cp /data/data/word /data/output/$TRAINMASTER_INDEX; ! touch /data/data/mine"
    first, second = (bench.order(command=script, mounts=mounts, env={"TRAINMASTER_INDEX": str(n)}) for n in (0, 1))
    second = replace(second, key=replace(first.key, index=1), node=bench.nodes[-1])
    assert bench.executor.create_all([first, second]) == [None, None]
    for order in (first, second):
        assert bench.ended(order).phase is Phase.SUCCEEDED
    assert [(tmp_path / "shared/out" / name).read_text() for name in "01"] == ["hello", "hello"]
    # Nothing but the two folders was there for them.
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == ["in", "out"]


def test_what_an_admission_webhook_refuses_is_reported_in_its_words(bench):
    order = bench.order(command=("true",))

    with refusal(bench, "Images come from our own registry only."), pytest.raises(ExecutorRefused) as reported:
        bench.executor.create(order)
    assert "Images come from our own registry only." in str(reported.value)
    # It was the webhook alone that stood against it.
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED


@contextmanager
def refusal(bench: Any, words: str) -> Iterator[None]:
    """While it lasts a webhook refuses each new pod of the bench's platform."""
    host = os.environ["TRAINMASTER_TEST_POD_HOST"]
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reported = {"uid": review["request"]["uid"], "allowed": False, "status": {"code": 403, "message": words}}
            body = json.dumps(
                {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": reported}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"test-{uuid.uuid4().hex[:8]}.trainmaster.dev"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": name,
        "rules": [rule],
        "objectSelector": {"matchLabels": {"trainmaster/instance": bench.instance}},
        "clientConfig": {
            "url": f"https://{host}:{server.server_port}/",
            "caBundle": base64.b64encode(authority.cert_pem.bytes()).decode(),
        },
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 10,
    }
    configuration = {
        "apiVersion": _WEBHOOKS,
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [hook],
    }
    hooks = url("validatingwebhookconfigurations", group=_WEBHOOKS)
    bench.engine.post(hooks, configuration)
    try:
        _await(bench)
        yield
    finally:
        bench.engine.delete(f"{hooks}/{name}")
        server.shutdown()
        server.server_close()


def _await(bench: Any) -> None:
    """The API server hears of a new webhook within a second or so; a try that changes nothing tells when it has."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tried", "labels": {"trainmaster/instance": bench.instance}},
        "spec": {"containers": [{"name": "main", "image": bench.image}]},
    }
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            bench.engine.post(url("pods", bench.namespace), pod, params={"dryRun": "All"})
        except ExecutorRefused:
            return
        time.sleep(0.1)
    raise AssertionError("The API server never asked the webhook.")
