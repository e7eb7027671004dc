"""What goes wrong on a real cluster, and what is told of it. Marked ``kubernetes``."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from core.domain.errors import AttemptRemoved, ExecutorRefused
from core.domain.jobs.exits import ExitCause, ExitFacts, ExitKind, classify
from core.domain.sharing.resources import ResourceRequest
from executors.base import Phase
from executors.containers import labels
from executors.kubernetes.api_server.client import KubernetesClient, ObjectNotFound
from executors.kubernetes.api_server.client import path as url
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.pods import render
from executors.kubernetes.pods.observe import Patience
from executors.kubernetes.pods.secret import bundle
from tests.contracts.executors.conftest import remove

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]
HASTY = Patience(image=timedelta(seconds=2), scheduling=timedelta(seconds=2), other=timedelta(seconds=25))


@pytest.fixture
def bench(make_kubernetes_bench):
    return make_kubernetes_bench(patience=HASTY)


def kind_of(observation):
    exit_ = observation.exit
    return classify(
        ExitFacts("worker-0", "worker", exit_.cause, exit_.exit_code, exit_.at, exit_.sentence, exit_.log_tail)
    ).kind


def test_a_registry_that_cannot_be_reached_is_named_and_not_the_jobs_fault(bench):
    observation = bench.run(command=("true",), image="no-such-registry.invalid/none:1", limit_s=60)
    assert observation.exit.cause is ExitCause.IMAGE_UNREACHABLE
    assert kind_of(observation) is ExitKind.PLATFORM
    assert observation.exit.sentence.startswith(
        "Image no-such-registry.invalid/none:1 cannot be pulled: registry no-such-registry.invalid does not deliver it"
    )


def test_a_name_that_is_no_image_fails_at_once(bench):
    observation = bench.run(command=("true",), image="Not An Image", limit_s=30)
    assert observation.exit.cause is ExitCause.START_REFUSED
    assert "is no name of an image" in observation.exit.sentence


def test_a_missing_runtime_image_is_the_platforms_fault(make_kubernetes_bench):
    bench = make_kubernetes_bench(patience=replace(HASTY, other=timedelta(seconds=3)))
    bench.executor = bench.another(runtime_image="no-such-registry.invalid/runtime:1")
    observation = bench.run(command=("true",), limit_s=60)
    assert kind_of(observation) is ExitKind.PLATFORM
    assert "Image no-such-registry.invalid/runtime:1 cannot be pulled" in observation.exit.sentence
    assert "the platform's runtime image" in observation.exit.sentence


def test_too_much_memory_is_reported_with_the_limit(bench):
    observation = bench.run(
        command=bench.python("x = bytearray(400 * 2**20); x[:] = b'1' * len(x)"),
        request=ResourceRequest(100, 64 * 2**20),
        memory_limit_bytes=64 * 2**20,
    )
    assert observation.exit.cause is ExitCause.OUT_OF_MEMORY
    assert "64 MiB" in observation.exit.sentence


def test_a_node_without_room_is_reported_in_kube_schedulers_words_and_placed_again(bench):
    observation = bench.run(command=("true",), request=ResourceRequest(cpu_milli=500_000))
    assert observation.exit.cause is ExitCause.ENGINE_REFUSED
    assert kind_of(observation) is ExitKind.PLATFORM
    assert "Insufficient cpu" in observation.exit.sentence


def test_a_node_that_is_not_there_is_reported(bench):
    order = replace(bench.order(command=("true",)), node="no-such-node")
    bench.executor.create(order)
    observation = bench.ended(order)
    assert observation.exit.cause is ExitCause.ENGINE_REFUSED
    assert "no-such-node" in observation.exit.sentence


def test_kubelets_refusal_is_reported_and_placed_again(bench):
    """The pod is bound behind kube-scheduler's back, as when two schedulers meet."""
    order = bench.order(command=("true",), request=ResourceRequest(cpu_milli=500_000))
    options = _options(bench)
    pod = render.render_pod(order, options, bench.namespace)
    pod["spec"]["nodeName"] = order.node
    bench.executor.create(bench.order(command=("true",)))  # for the namespace
    (part,) = bundle([order], options, bench.namespace)
    bench.engine.post(url("secrets", bench.namespace), part.secret)
    bench.engine.post(url("pods", bench.namespace), pod)
    observation = bench.ended(order)
    assert observation.exit.cause is ExitCause.ENGINE_REFUSED
    assert "OutOfcpu" in observation.exit.sentence
    assert kind_of(observation) is ExitKind.PLATFORM


def test_a_folder_that_is_not_on_the_node_is_reported_while_it_waits_and_in_the_end(bench):
    from executors.base import MountOrder, VolumeSource

    source = VolumeSource("datasets", "local", {"path": "/no/such/folder"})
    mounts = (MountOrder("/no/such/folder", "/data/data", True, source),)
    order = bench.order(command=("true",), mounts=mounts)
    bench.executor.create(order)
    waiting = bench.until(order, lambda o: "/no/such/folder" in o.detail, 60)
    assert waiting.phase is Phase.PENDING
    observation = bench.ended(order, 60)
    assert observation.exit.cause is ExitCause.ENGINE_REFUSED
    assert "/no/such/folder" in observation.exit.sentence


def test_too_much_shared_memory_is_reported(bench):
    order = bench.order(
        command=bench.python(
            "import time\nwith open('/dev/shm/x', 'wb') as f:\n f.write(bytes(64 * 2**20))\n f.flush()\n "
            "time.sleep(120)"
        ),
        shm_bytes=8 * 2**20,
    )
    bench.executor.create(order)
    observation = bench.ended(order, 150)
    # A kubelet since 1.22 sizes the volume, and the write fails; an older one evicts the pod.
    assert observation.exit.cause in (ExitCause.OUT_OF_MEMORY, ExitCause.DISK_LIMIT)
    assert "shm" in observation.exit.sentence or observation.exit.cause is ExitCause.DISK_LIMIT


def test_deleted_by_hand_is_lost_and_says_so(bench):
    order = bench.order(command=bench.python("import time\ntime.sleep(600)"))
    bench.executor.create(order)
    bench.until(order, lambda o: o.phase is Phase.RUNNING)
    bench.engine.delete(url("pods", bench.namespace, bench.pod(order)["metadata"]["name"]))
    reported = []
    end = time.monotonic() + 60
    while (observation := bench.executor.observe(order.key.attempt_id)) and time.monotonic() < end:
        reported += [observation[0].detail or (observation[0].exit.sentence if observation[0].exit else "")]
        time.sleep(bench.look_s)
    assert any("it was deleted in the cluster from outside the platform" in text for text in reported)
    assert not bench.executor.observe(order.key.attempt_id, fresh=True)


def test_a_quota_of_the_namespace_refuses_in_the_servers_words(bench):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"requests.memory": "4Gi"}},
    }
    bench.executor.create(bench.order(command=("true",)))
    bench.engine.post(url("resourcequotas", bench.namespace), quota)
    try:
        order = bench.order(command=("true",), request=ResourceRequest(100, 64 * 2**30))
        end = time.monotonic() + 20
        with pytest.raises(ExecutorRefused, match="exceeded quota: none"):
            while time.monotonic() < end:  # the quota counts only after its controller has seen it
                bench.executor.create(replace(order, key=replace(order.key, generation=order.key.generation + 1)))
                order = replace(order, key=replace(order.key, generation=order.key.generation + 1))
    finally:
        bench.engine.delete(url("resourcequotas", bench.namespace, "none"))


def test_the_images_own_command_runs_without_the_runtime(bench):
    """The runtime image has a command of its own, and a shell to replace it by."""
    script = (
        'echo "$GREETING from $(/trainmaster/runtime/busybox id -u)" | /trainmaster/runtime/busybox tee /data/output/x'
    )
    order = bench.order(
        command=None,
        image=bench.runtime_image,
        args=("/trainmaster/runtime/busybox", "sh", "-c", f"{script}; exit 3"),
        env={"GREETING": "hello"},
        token="of-the-attempt",
    )
    bench.executor.create(order)
    observation = bench.ended(order)
    assert (observation.phase, observation.exit.exit_code) == (Phase.FAILED, 3)
    assert observation.exit.log_tail.strip() == "hello from 1000"
    assert bench.text(bench.output / "x") == "hello from 1000"
    pod = bench.pod(order)
    assert "initContainers" not in pod["spec"]
    assert not {"of-the-attempt", "hello"} & set(str(pod["spec"]).split("'"))


def test_a_plain_replica_is_stopped_by_deleting_it(bench):
    order = bench.order(command=None, image=bench.runtime_image, args=("/trainmaster/runtime/busybox", "sleep", "600"))
    bench.executor.create(order)
    bench.until(order, lambda o: o.phase is Phase.RUNNING)
    bench.executor.stop(order.key, grace=timedelta(seconds=1))
    bench.wait_for(lambda: not bench.executor.observe(order.key.attempt_id, fresh=True), 40, "its end")


# Created by two, killed between any two steps, removed in between


def test_a_creator_that_died_after_any_step_is_followed_by_another(bench):
    for step in range(1, 6):
        order = bench.order()
        with pytest.raises(_Killed):
            bench.another().__class__(_Dying(bench.access, step), _options(bench)).create(order)
        bench.executor.create(order)
        assert bench.ended(order).phase is Phase.SUCCEEDED
        assert bench.starts(order) == 1
        remove(bench.executor, order.key.attempt_id)


def gang(bench):
    first = bench.order()
    more = [bench.order(attempt=first.key.attempt_id, index=index) for index in (1, 2)]
    return [first, *more]


def test_a_gang_that_is_created_at_once_runs_each_replica_as_itself(bench):
    orders = gang(bench)
    assert bench.executor.create_all(orders) == [None, None, None]
    assert bench.executor.create_all(orders) == [None, None, None]
    for order in orders:
        assert bench.ended(order).phase is Phase.SUCCEEDED
        assert bench.starts(order) == 1


def test_a_creator_of_a_gang_that_died_after_any_step_is_followed_by_another(bench):
    for step in range(1, 8):
        orders = gang(bench)
        dying = bench.another().__class__(_Dying(bench.access, step), _options(bench))
        with suppress(_Killed):
            dying.create_all(orders)
        # Whoever follows may see a part of it there, and has the rest in another Secret.
        assert bench.executor.create_all(orders[:2]) == [None, None]
        assert bench.executor.create_all(orders) == [None, None, None]
        for order in orders:
            assert bench.ended(order).phase is Phase.SUCCEEDED
            assert bench.starts(order) == 1
        remove(bench.executor, orders[0].key.attempt_id)


def test_one_replica_that_cannot_be_does_not_hold_up_the_others(bench):
    orders = gang(bench)
    wrong = replace(orders[1], command=None, code_digest="0" * 64)
    reported = bench.executor.create_all([orders[0], wrong, orders[2]])
    assert [type(item) for item in reported] == [type(None), ExecutorRefused, type(None)]
    assert bench.ended(orders[2]).phase is Phase.SUCCEEDED


def test_a_gang_that_was_removed_is_not_created_late(bench):
    orders = gang(bench)
    bench.executor.create_all(orders[:1])
    remove(bench.executor, orders[0].key.attempt_id)
    reported = bench.another().create_all(orders)
    assert [type(item) for item in reported] == [AttemptRemoved] * 3
    assert bench.leftovers() == []


def test_a_pod_that_is_posted_after_the_removal_never_starts(bench):
    order = bench.order()
    bench.executor.create(bench.order())  # for the namespace
    cluster = _Held(bench.access)
    creator = bench.another().__class__(cluster, _options(bench))
    thread = threading.Thread(target=creator.create, args=(order,))
    thread.start()
    assert cluster.is_held.wait(20)
    remove(bench.executor, order.key.attempt_id)
    cluster.go.set()
    thread.join(20)
    name = render.names.replica_name(order.key)
    end = time.monotonic() + 8
    while time.monotonic() < end:
        try:
            pod = bench.engine.get(url("pods", bench.namespace, name))
        except ObjectNotFound:
            break  # the garbage collector was quicker
        assert not any("running" in c["state"] for c in pod["status"].get("initContainerStatuses") or ())
        time.sleep(0.2)
    if order.key.attempt_id in bench.executor.attempts():
        remove(bench.executor, order.key.attempt_id)
    assert bench.starts(order) == 0
    cluster.close()


def test_another_control_plane_sees_at_once_when_it_asks_afresh(bench):
    other = bench.another()
    other.attempts()  # its copy is there
    for _ in range(10):
        order = bench.order()
        bench.executor.create(order)
        observation = other.observe(order.key.attempt_id, fresh=True)
        assert [o.key for o in observation] == [order.key]


def test_a_service_of_another_platform_is_not_taken(bench):
    order = bench.order()
    bench.executor.create(bench.order())
    foreign = render.render_service(order, replace(_options(bench), instance="another"), bench.namespace)
    foreign["metadata"]["labels"][labels.INSTANCE] = "another"
    bench.engine.post(url("services", bench.namespace), foreign)
    try:
        with pytest.raises(ExecutorRefused, match="is not this platform's"):
            bench.executor.create(order)
    finally:
        bench.engine.delete(url("services", bench.namespace, foreign["metadata"]["name"]))


class _Killed(BaseException):
    pass


class _Dying(KubernetesClient):
    """Dies after a number of writes of a creation, each done or not yet answered."""

    def __init__(self, access, steps):
        super().__init__(access, qps=1000)
        self._left = steps

    def post(self, url, body, params=None):
        return self._counted(lambda: super(_Dying, self).post(url, body, params))

    def patch(self, url, body, params=None):
        return self._counted(lambda: super(_Dying, self).patch(url, body, params))

    def get(self, url, params=None):
        return self._counted(lambda: super(_Dying, self).get(url, params))

    def _counted(self, call):
        try:
            return call()
        finally:
            self._left -= 1
            if self._left == 0:
                raise _Killed


class _Held(KubernetesClient):
    """Waits before it posts a pod."""

    def __init__(self, access):
        super().__init__(access, qps=1000)
        self.is_held = threading.Event()
        self.go = threading.Event()

    def post(self, url, body, params=None):
        if body["kind"] == "Pod":
            self.is_held.set()
            assert self.go.wait(60)
        return super().post(url, body, params)


def _options(bench):
    return KubernetesOptions(bench.instance, bench.namespace, bench.runtime_image, bench.image, host_paths=("/",))
