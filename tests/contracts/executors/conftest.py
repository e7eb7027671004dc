"""One bench per driver: how a test says what a replica does, waits for it, and counts its starts."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.base import Executor, MountOrder, Observation, Phase, ReplicaKey, ReplicaOrder
from executors.docker import DockerExecutor
from executors.docker.engine import DockerEngine
from executors.docker.render import REMOVED, ContainerSettings
from executors.fake import FakeEngine, FakeExecutor, Script
from executors.kubernetes import KubernetesExecutor
from executors.kubernetes.api_server.access import Access
from executors.kubernetes.api_server.client import Json, KubernetesClient, ObjectNotFound
from executors.kubernetes.api_server.client import path as url
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.pods.observe import Patience
from executors.process import ProcessExecutor, procfs
from tests.integration.kubernetes.permissions import CLUSTER_WIDE, IN_THE_NAMESPACE, Limited, right_of
from tests.orders import bare_order

ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.LOST})


@dataclass(frozen=True)
class Behaviour:
    """``run_s`` of ``None``: until it is stopped."""

    run_s: float | None = 0.05
    exit_code: int = 0
    hears_term: bool = True


class Bench(Protocol):
    """``capabilities`` names what only some drivers have."""

    capabilities: frozenset[str]
    executor: Executor

    def another(self) -> Executor:
        """The driver in another control plane, over the same engine."""

    def order(self, behaviour: Behaviour = Behaviour(), **fields: Any) -> ReplicaOrder: ...

    def until(self, order: ReplicaOrder, condition: Callable[[Observation], bool]) -> Observation:
        """Let time pass until ``condition`` holds for the replica."""

    def starts(self, order: ReplicaOrder) -> int:
        """How often the replica's command was started."""


# Ids are as unique as the platform's own: the driver finds processes on the whole machine by them, and several suites
# may run there at once.
_SUITE = uuid.uuid4().hex[:12]
_numbers = itertools.count(1)


def remove(executor: Executor, attempt_id: AttemptId) -> None:
    """Remove it as the control loop does: an engine that is slow to end something is asked again."""
    end = time.monotonic() + 120
    while True:
        try:
            return executor.remove(attempt_id)
        except ExecutorTryAgain:
            assert time.monotonic() < end
            time.sleep(0.05)


def plain_order(node: str, **fields: Any) -> ReplicaOrder:
    """An order with fresh names."""
    attempt = fields.pop("attempt", None) or f"att-{_SUITE}-{next(_numbers)}"
    return bare_order(attempt, node=node, **fields)


class ProcessBench:
    capabilities = frozenset({"plain processes", "real time"})
    look_s = 0.02  # between two looks of who waits
    limit_s = 20.0  # of waiting

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.output = folder / "output"
        self.input = folder / "input"
        self.input.mkdir(parents=True)
        self.output.mkdir()
        self.options = options
        self.executor = ProcessExecutor(self.run_dir, gpus=(), **options)
        self.node = self.executor.nodes()[0].name

    def another(self, driver: type[ProcessExecutor] = ProcessExecutor) -> ProcessExecutor:
        return driver(self.run_dir, gpus=(), **self.options)

    def order(self, behaviour: Behaviour = Behaviour(), **fields: Any) -> ReplicaOrder:
        mounts = (MountOrder(str(self.output), "/data/output", False), MountOrder(str(self.input), "/data/data", True))
        order = plain_order(self.node, **{"mounts": mounts, **fields})
        if "command" in fields:
            return order
        steps = [f"echo started >> /data/output/{self._count_name(order)}"]
        if not behaviour.hears_term:
            steps.insert(0, "trap '' TERM")
        if behaviour.run_s is None:
            steps.append("while :; do sleep 0.05; done")
        else:
            steps.append(f"sleep {behaviour.run_s}; exit {behaviour.exit_code}")
        return replace(order, command="; ".join(steps))

    def until(
        self, order: ReplicaOrder, condition: Callable[[Observation], bool], limit_s: float = 30.0
    ) -> Observation:
        end = time.monotonic() + limit_s
        while True:
            observation = [o for o in self.executor.observe(order.key.attempt_id) if _same(o.key, order.key)]
            if observation and condition(observation[0]):
                return observation[0]
            assert time.monotonic() < end, f"{limit_s} s passed; last seen: {observation}; {self.log(order)}"
            time.sleep(self.look_s)

    def ended(self, order: ReplicaOrder, limit_s: float = 30.0) -> Observation:
        return self.until(order, lambda o: o.phase in ENDED, limit_s)

    def run(self, limit_s: float = 30.0, **fields: Any) -> Observation:
        """Create and see the end."""
        order = self.order(**fields)
        self.executor.create(order)
        return self.ended(order, limit_s)

    def starts(self, order: ReplicaOrder) -> int:
        path = self.output / self._count_name(order)
        return len(path.read_text().splitlines()) if path.exists() else 0

    def log(self, order: ReplicaOrder) -> str:
        """The replica's log without the times."""
        path = (
            self.output
            / f".trainmaster/logs/{order.key.job_id}/{order.attempt_number}/{order.key.role}-{order.key.index}.log"
        )
        if not path.exists():
            return ""
        return "\n".join(line.partition(" ")[2] for line in path.read_text(errors="replace").splitlines())

    def state(self, order: ReplicaOrder) -> Path:
        key = order.key
        return self.run_dir / "attempts" / key.attempt_id / f"{key.role}-{key.index}.{key.generation}"

    @staticmethod
    def python(code: str) -> tuple[str, ...]:
        """A command that runs ``code``."""
        return ("python", "-c", textwrap.dedent(code))

    @classmethod
    def wait_for(cls, condition: Callable[[], Any], limit_s: float | None = None, what: str = "it") -> Any:
        """The first true answer of ``condition``."""
        limit_s = limit_s or cls.limit_s
        end = time.monotonic() + limit_s
        while not (found := condition()):
            assert time.monotonic() < end, f"{what} did not happen within {limit_s} s"
            time.sleep(cls.look_s)
        return found

    @staticmethod
    def is_alive(pid: int) -> bool:
        return procfs.start_ticks(pid) is not None

    @staticmethod
    def text(path: Path) -> str:
        """Content of a file that may not be there yet."""
        return path.read_text().strip() if path.exists() else ""

    def close(self) -> None:
        if not self.run_dir.exists():
            return
        for attempt in self.executor.attempts():
            self.end_last_call(attempt)
            remove(self.executor, attempt)

    def end_last_call(self, attempt_id: AttemptId) -> None:
        """As if the platform had asked for its end a minute ago: it no longer waits for the last reports."""
        call = self.run_dir / "attempts" / attempt_id / "last_call"
        call.touch()
        os.utime(call, (0, 0))

    def _count_name(self, order: ReplicaOrder) -> str:
        return f"starts-{order.key.attempt_id}-{order.key.role}-{order.key.index}-{order.key.generation}"


class DockerBench(ProcessBench):
    """Containers on the engine of this machine; every bench is a platform of its own."""

    capabilities = frozenset({"containers", "real time"})
    look_s = 0.1  # a look costs an engine's processor time, and the containers have less of it
    limit_s = 90.0  # and an engine on a busy machine takes its time to end something
    image = os.environ.get("TRAINMASTER_TEST_IMAGE", "python:3.11-slim")

    def __init__(self, folder: Path, runtime_image: str, **options: Any) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.input = folder / "input"
        self.input.mkdir(parents=True)
        self.output.mkdir()
        self.output.chmod(0o777)
        for path in (folder, *folder.parents):
            path.chmod(path.stat().st_mode | 0o011) if path.is_relative_to("/tmp") and path != Path("/tmp") else None
        self.instance = f"test-{uuid.uuid4().hex[:8]}"
        self.runtime_image = runtime_image
        self.options = options
        self.engine = self._make_engine()
        self._drivers: list[Any] = []
        self.executor = self.another()
        self.node = self.executor.nodes()[0].name

    def another(self, *, engine: DockerEngine | None = None, **options: Any) -> DockerExecutor:
        rules = ContainerSettings(self.instance, **options.pop("rules", {}))
        given = {"runtime_image": self.runtime_image, "default_image": self.image, **self.options, **options}
        self._drivers.append(DockerExecutor(engine or DockerEngine(), rules, **given))
        return self._drivers[-1]

    def _make_engine(self) -> Any:
        return DockerEngine()

    def container(self, order: ReplicaOrder) -> dict[str, Any]:
        """What the engine says of the replica's container."""
        key = order.key
        found = self.engine.container(f"{key.attempt_id}-{key.role}-{key.index}-g{key.generation}")
        assert found is not None
        return found

    def leftovers(self) -> list[str]:
        """Containers, networks and volumes of this bench, but for the marks of attempts that were removed."""
        own = {"trainmaster/instance": self.instance}
        volumes = [v["Name"] for v in self.engine.volumes(own) if REMOVED not in v["Labels"]]
        containers = [name for c in self.engine.containers(own) for name in c["Names"]]
        return [*containers, *(n["Name"] for n in self.engine.networks(own)), *volumes]

    def close(self) -> None:
        for attempt in self.executor.attempts():
            self.executor.remove(attempt)
        left = self.leftovers()
        for mark in self.engine.volumes({"trainmaster/instance": self.instance}):
            self.engine.remove_volume(mark["Name"])
        for driver in self._drivers:
            driver.close()
        self.engine.close()
        assert left == []


class KubernetesBench(DockerBench):
    """Pods on the cluster of KUBECONFIG, whose nodes see this machine's files at the same paths.

    Every bench is a platform of its own in the namespace of all. The driver has the rights of ``deploy/kubernetes``
    alone; what the bench itself looks at it sees as an administrator.
    """

    capabilities = frozenset({"containers", "real time"})

    def __init__(self, folder: Path, runtime_image: str, namespace: str, access: Access, **options: Any) -> None:
        self.namespace = namespace
        self.access = access
        self.note: Callable[[str, str], None] = options.pop("note", _note_right)
        super().__init__(folder, runtime_image, **options)
        # Nodes that another test has only written down have no kubelet, which would renew a lease.
        leases = self.engine.get(url("leases", "kube-node-lease", group="coordination.k8s.io/v1"))["items"]
        alive = {lease["metadata"]["name"] for lease in leases}
        self.nodes = [node.name for node in self.executor.nodes() if node.is_ready and node.name in alive]
        self.node = self.nodes[0]

    def _make_engine(self) -> KubernetesClient:
        return KubernetesClient(qps=1000)

    def another(self, **options: Any) -> KubernetesExecutor:
        given = {"patience": self.options.get("patience", Patience())}
        access = options.pop("access", self.access)
        fields = {"runtime_image": self.runtime_image, "default_image": self.image, "host_paths": ("/",), **options}
        cluster = KubernetesClient(access, qps=1000, note=self.note)
        made = KubernetesExecutor(cluster, KubernetesOptions(self.instance, self.namespace, **fields), **given)
        self._drivers.append(made)
        return made

    def until(
        self, order: ReplicaOrder, condition: Callable[[Observation], bool], limit_s: float = 60.0
    ) -> Observation:
        return super().until(order, condition, limit_s)

    def pod(self, order: ReplicaOrder) -> Json:
        """The replica's pod as the API server shows it."""
        return self.engine.get(url("pods", self.namespace, self._pod_name(order)))

    def leftovers(self) -> list[str]:
        """All that this bench has made, but for the tombstones of attempts that were removed."""
        query = {"labelSelector": f"trainmaster/instance={self.instance},trainmaster/attempt"}
        urls = [url(kind, self.namespace) for kind in ("pods", "services", "secrets", "configmaps")]
        urls.append(url("networkpolicies", self.namespace, group="networking.k8s.io/v1"))
        return [
            f"{entry_.rpartition('/')[2]}/{item['metadata']['name']}"
            for entry_ in urls
            for item in self.engine.get(entry_, query)["items"]
        ] + [f"pods/{pod['metadata']['name']}" for pod in self.placeholders()]

    def placeholders(self) -> list[Json]:
        """The pods that hold shared GPUs."""
        query = {"labelSelector": f"trainmaster/instance={self.instance},trainmaster/reservation"}
        pods: list[Json] = self.engine.get(url("pods", self.namespace), query)["items"]
        return pods

    def close(self) -> None:
        for attempt in self.executor.attempts():
            remove(self.executor, attempt)
        for pod in self.placeholders():  # what kubelet still holds is no matter of the driver
            if "deletionTimestamp" in pod["metadata"]:
                where = url("pods", self.namespace, pod["metadata"]["name"])
                with suppress(ObjectNotFound):
                    self.engine.delete(where, options={"gracePeriodSeconds": 0})
        # The garbage collector takes what the Service owned.
        end = time.monotonic() + self.limit_s
        while self.leftovers() and time.monotonic() < end:
            time.sleep(0.1)
        left = self.leftovers()
        for driver in self._drivers:
            driver.close()
        self.engine.close()
        assert left == []

    @staticmethod
    def _pod_name(order: ReplicaOrder) -> str:
        key = order.key
        return f"{key.attempt_id}-{key.role}-{key.index}-g{key.generation}"


class FakeBench:
    capabilities = frozenset({"node loss"})

    def __init__(self) -> None:
        self.engine = FakeEngine(script_for=self._script)
        self.executor = FakeExecutor(self.engine)
        self._scripts: dict[ReplicaKey, Script] = {}

    def another(self) -> FakeExecutor:
        return FakeExecutor(self.engine)

    def order(self, behaviour: Behaviour = Behaviour(), **fields: Any) -> ReplicaOrder:
        order = plain_order("node-0", **fields)
        self._scripts[order.key] = Script(
            start_after=timedelta(milliseconds=30),
            run_for=None if behaviour.run_s is None else timedelta(seconds=behaviour.run_s),
            exit_code=behaviour.exit_code,
            ends_after_term=timedelta() if behaviour.hears_term else None,
        )
        return order

    def until(self, order: ReplicaOrder, condition: Callable[[Observation], bool]) -> Observation:
        for _ in range(10_000):
            observation = [o for o in self.executor.observe(order.key.attempt_id) if _same(o.key, order.key)]
            if observation and condition(observation[0]):
                return observation[0]
            self.engine.advance(timedelta(milliseconds=10))
        raise AssertionError(f"never so; last seen: {observation}")

    def starts(self, order: ReplicaOrder) -> int:
        return sum(key == order.key for _, key in self.engine.starts)

    def _script(self, order: ReplicaOrder) -> Script:
        return self._scripts[order.key]


def _same(entry_: ReplicaKey, other: ReplicaKey) -> bool:
    return (entry_.role, entry_.index) == (other.role, other.index)


@pytest.fixture
def make_process_bench(tmp_path: Path) -> Iterator[Callable[..., ProcessBench]]:
    """Makes benches in folders of their own; what still runs at the end is removed."""
    made = []

    def make(name: str, **options: Any) -> ProcessBench:
        made.append(ProcessBench(tmp_path / name, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def process_bench(make_process_bench: Callable[..., ProcessBench]) -> ProcessBench:
    return make_process_bench("bench")


@pytest.fixture(scope="session")
def runtime_image() -> str:
    """The runtime image as the repository builds it."""
    answered = (
        subprocess.run(["docker", "version"], capture_output=True, check=False) if shutil.which("docker") else None
    )
    if answered is None or answered.returncode != 0:
        pytest.skip("no Docker engine answers")
    given = os.environ.get("TRAINMASTER_TEST_RUNTIME_IMAGE")
    if given:
        return given
    name = "trainmaster/runtime:test"
    images = Path(__file__).parents[3] / "worker_images"
    built = subprocess.run(
        ["docker", "build", "-q", "--network", "host", "-t", name, "-f", images / "runtime/Dockerfile", images],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert built.returncode == 0, built.stderr
    return name


@pytest.fixture
def make_docker_bench(tmp_path: Path, runtime_image: str) -> Iterator[Callable[..., DockerBench]]:
    """Makes benches in folders of their own; nothing of them is left at the end, or the test fails."""
    made = []

    def make(name: str = "docker", **options: Any) -> DockerBench:
        made.append(DockerBench(tmp_path / name, runtime_image, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def docker_bench(make_docker_bench: Callable[..., DockerBench]) -> DockerBench:
    return make_docker_bench()


@pytest.fixture(scope="session")
def cluster_namespace() -> Iterator[str]:
    """A namespace of this run's own. The nodes must have the images, or be able to pull them."""
    missing = [name for name in ("KUBECONFIG", "TRAINMASTER_TEST_RUNTIME_IMAGE") if not os.environ.get(name)]
    if missing:
        pytest.skip(f"needs a cluster: set {' and '.join(missing)}")
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster = KubernetesClient()
    yield name
    try:
        cluster.delete(url("namespaces", name=name))
    except ObjectNotFound:
        pass
    cluster.close()


@pytest.fixture(scope="session")
def cluster_access(cluster_namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """As a service account that may do in this namespace what the manifests say, and nothing else."""
    admin = KubernetesClient()
    limited = Limited(admin, cluster_namespace, cluster_namespace, "rbac.yaml")
    try:
        yield limited.kubeconfig(tmp_path_factory.mktemp("access"))
    finally:
        limited.close()
        admin.close()


def _note_right(method: str, called: str) -> None:
    is_cluster_wide, right = right_of(method, called)
    assert right in CLUSTER_WIDE | (set() if is_cluster_wide else IN_THE_NAMESPACE), f"{method} {called}"


@pytest.fixture
def make_kubernetes_bench(
    tmp_path: Path, cluster_namespace: str, cluster_access: Access
) -> Iterator[Callable[..., KubernetesBench]]:
    """Makes benches in folders of their own; nothing of them is left at the end, or the test fails."""
    made = []

    def make(name: str = "cluster", **options: Any) -> KubernetesBench:
        image = os.environ["TRAINMASTER_TEST_RUNTIME_IMAGE"]
        made.append(KubernetesBench(tmp_path / name, image, cluster_namespace, cluster_access, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def kubernetes_bench(make_kubernetes_bench: Callable[..., KubernetesBench]) -> KubernetesBench:
    return make_kubernetes_bench()


@pytest.fixture
def fake_bench() -> FakeBench:
    return FakeBench()


@pytest.fixture(
    params=[
        "process",
        "fake",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("kubernetes", marks=(pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes"))),
    ]
)
def bench(request: pytest.FixtureRequest) -> Bench:
    return request.getfixturevalue(f"{request.param}_bench")


@pytest.fixture
def needs(bench: Bench) -> Callable[[str], None]:
    """Skip unless the driver has a capability."""

    def check(capability: str) -> None:
        if capability not in bench.capabilities:
            pytest.skip(f"this driver has no {capability}")

    return check
