"""What only the Docker driver does, on a real engine."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from core.domain.errors import AttemptRemoved, ExecutorRefused, ExecutorTryAgain
from core.domain.jobs.layout import Layout, Ports, ReplicaAddress
from executors.base import ExitCause, MountOrder, Phase
from executors.docker import DockerExecutor
from executors.docker.engine import DockerEngine
from executors.docker.render import ContainerSettings
from tests.contracts.executors.conftest import remove

pytestmark = [pytest.mark.docker]

FOREVER = ("sleep", "1000")


class Killed(BaseException):
    """The control plane dies at this point."""


def dying(engine: DockerEngine, call: str, *, after: bool) -> DockerEngine:
    """``engine`` whose first ``call`` kills the caller, before or after it took effect."""
    real = getattr(engine, call)

    def die(*args, **kwargs):
        if after:
            real(*args, **kwargs)
        raise Killed(call)

    setattr(engine, call, die)
    return engine


def gang(bench, count, **fields):
    """Orders of one attempt, as the control loop makes them."""
    first = bench.order(**fields)
    orders = [replace(first, key=replace(first.key, index=index)) for index in range(count)]
    layout = Layout(tuple(ReplicaAddress("worker", i, "", Ports(), bench.node) for i in range(count)))
    placed = bench.executor.assign_addresses(layout, frozenset(), first.key.attempt_id)
    return [replace(order, peer_hosts=tuple(r.host for r in placed.replicas)) for order in orders]


# Network


def test_replicas_find_each_other_by_name_and_talk(docker_bench):
    code = """
        import os, socket, sys
        me, other = sys.argv[1:]
        server = socket.create_server(("0.0.0.0", 2222))
        assert socket.gethostname() == me, socket.gethostname()
        if me == "worker-0":
            with server.accept()[0] as peer:
                print("heard", peer.recv(100).decode())
        else:
            import time
            for _ in range(100):
                try:
                    with socket.create_connection((other, 2222), 5) as peer:
                        peer.sendall(b"hello from " + me.encode())
                    break
                except ConnectionRefusedError:
                    time.sleep(0.1)
    """
    orders = gang(docker_bench, 2, command=docker_bench.python(code))
    orders = [replace(o, args=(f"worker-{n}", f"worker-{1 - n}")) for n, o in enumerate(orders)]
    for order in orders:
        docker_bench.executor.create(order)
    for order in orders:
        assert docker_bench.ended(order, 60).phase is Phase.SUCCEEDED, docker_bench.log(order)
    assert "heard hello from worker-1" in docker_bench.log(orders[0])


def test_attempts_do_not_see_each_other(docker_bench):
    item = docker_bench.order(command=FOREVER)
    docker_bench.executor.create(item)
    docker_bench.until(item, lambda observation: observation.phase is Phase.RUNNING)
    address = next(iter(docker_bench.container(item)["NetworkSettings"]["Networks"].values()))["IPAddress"]
    code = f"import socket; socket.create_connection(('{address}', 2222), 2)"
    observation = docker_bench.run(60, command=("python", "-c", code))
    assert observation.phase is Phase.FAILED


def test_twenty_replicas_at_once_share_one_network_and_leave_nothing(docker_bench):
    orders = gang(docker_bench, 20, command=("sh", "-c", "echo here"))
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(docker_bench.executor.create, orders))
    docker_bench.wait_for(
        lambda: all(o.exit for o in docker_bench.executor.observe(orders[0].key.attempt_id)), 120, "the end of all"
    )
    observation = docker_bench.executor.observe(orders[0].key.attempt_id)
    assert len(observation) == 20
    assert {o.phase for o in observation} == {Phase.SUCCEEDED}, [
        o for o in observation if o.phase is not Phase.SUCCEEDED
    ]
    assert len(docker_bench.engine.networks({"trainmaster/instance": docker_bench.instance})) == 1
    remove(docker_bench.executor, orders[0].key.attempt_id)
    assert docker_bench.leftovers() == []


# Limits, users, files


def test_limits_are_really_set(docker_bench):
    code = """
        import os
        def read(*paths):
            for path in paths:
                if os.path.exists("/sys/fs/cgroup/" + path):
                    return open("/sys/fs/cgroup/" + path).read().split()
        print("cpu", read("cpu.max", "cpu/cpu.cfs_quota_us")[0], read("cpu/cpu.cfs_period_us", "cpu.max")[-1])
        print("memory", read("memory.max", "memory/memory.limit_in_bytes")[0])
        print("pids", read("pids.max", "pids/pids.max")[0])
        shm = os.statvfs("/dev/shm")
        print("shm", shm.f_frsize * shm.f_blocks)
        status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
        print("privileges", status["NoNewPrivs"].strip(), int(status["CapEff"], 16), os.getuid(), os.getgid())
    """
    order = docker_bench.order(
        command=docker_bench.python(code),
        cpu_limit_milli=500,
        memory_limit_bytes=256 * 2**20,
        shm_bytes=32 * 2**20,
        pids_limit=77,
    )
    docker_bench.executor.create(order)
    assert docker_bench.ended(order).phase is Phase.SUCCEEDED, docker_bench.log(order)
    log = docker_bench.log(order).splitlines()
    assert {
        "cpu 50000 100000",
        f"memory {256 * 2**20}",
        "pids 77",
        f"shm {32 * 2**20}",
        "privileges 1 0 1000 1000",
    } <= set(log)


def test_what_needs_more_memory_than_it_may_gets_a_message(docker_bench):
    observation = docker_bench.run(
        60, command=("python", "-c", "x = bytearray(400 * 2**20)"), memory_limit_bytes=64 * 2**20, role="chief"
    )
    assert observation.exit is not None
    assert observation.exit.cause is ExitCause.OUT_OF_MEMORY
    assert "64 MiB" in observation.exit.sentence


def test_no_secret_shows_on_the_engine(docker_bench):
    order = docker_bench.order(command=FOREVER, env={"KEY": "s3cret-value"}, token="t0ken-value")
    docker_bench.executor.create(order)
    docker_bench.until(order, lambda observation: observation.phase is Phase.RUNNING)
    shown = json.dumps(docker_bench.container(order))
    assert "s3cret-value" not in shown
    assert "t0ken-value" not in shown


def test_the_output_belongs_to_the_containers_user_and_the_log_is_in_it(docker_bench):
    order = docker_bench.order(command=("sh", "-c", "echo hello; echo made > /data/output/file; id -u"))
    docker_bench.executor.create(order)
    assert docker_bench.ended(order).phase is Phase.SUCCEEDED, docker_bench.log(order)
    assert {"hello", "1000"} <= set(docker_bench.log(order).splitlines())
    assert (docker_bench.output / "file").stat().st_uid == 1000


def test_input_is_read_only(docker_bench):
    (docker_bench.input / "there").write_text("data")
    order = docker_bench.order(command=("sh", "-c", "cat /data/data/there; ! touch /data/data/new"))
    docker_bench.executor.create(order)
    assert docker_bench.ended(order).phase is Phase.SUCCEEDED, docker_bench.log(order)


def test_a_folder_that_is_not_there_is_refused_and_not_made(docker_bench):
    missing = docker_bench.folder / "missing"
    order = docker_bench.order(command=("true",), mounts=(MountOrder(str(missing), "/data/data", True),))
    with pytest.raises(ExecutorRefused, match=r"/data/data: the folder .*/missing does not exist"):
        docker_bench.executor.create(order)
    assert not missing.exists()


def test_the_images_own_command_runs_with_the_orders_arguments(docker_bench):
    order = docker_bench.order(command=None, args=("python", "-c", "print('by argument')"))
    docker_bench.executor.create(order)
    assert docker_bench.ended(order).phase is Phase.SUCCEEDED, docker_bench.log(order)
    assert "by argument" in docker_bench.log(order)


def test_a_replica_runs_as_the_images_own_user_where_the_platform_says_so(make_docker_bench):
    bench = make_docker_bench("own")
    executor = bench.another(rules={"uid": 0, "gid": 0})
    order = bench.order(command=("sh", "-c", "id -u"))
    executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED, bench.log(order)
    assert "0" in bench.log(order).splitlines()


# Ends by other hands


def test_a_container_that_was_removed_by_hand_is_not_seen_any_more(docker_bench):
    order = docker_bench.order(command=FOREVER)
    docker_bench.executor.create(order)
    docker_bench.until(order, lambda observation: observation.phase is Phase.RUNNING)
    docker_bench.engine.remove_container(docker_bench.container(order)["Id"])
    assert list(docker_bench.executor.observe(order.key.attempt_id)) == []


def test_a_container_that_was_killed_by_hand_failed_of_a_signal(docker_bench):
    order = docker_bench.order(command=FOREVER)
    docker_bench.executor.create(order)
    docker_bench.until(order, lambda observation: observation.phase is Phase.RUNNING)
    docker_bench.engine.kill(docker_bench.container(order)["Id"], "SIGKILL")
    observation = docker_bench.ended(order)
    assert observation.exit is not None
    assert (observation.phase, observation.exit.cause, observation.exit.exit_code) == (
        Phase.FAILED,
        ExitCause.SIGNALLED,
        137,
    )
    assert "docker kill" in observation.exit.sentence


def test_a_container_that_the_engine_stopped_counts_as_the_machines_doing(docker_bench):
    """As when the engine shuts down: SIGTERM without our mark."""
    order = docker_bench.order(command=FOREVER)
    docker_bench.executor.create(order)
    docker_bench.until(order, lambda observation: observation.phase is Phase.RUNNING)
    docker_bench.engine.kill(docker_bench.container(order)["Id"], "SIGTERM")
    observation = docker_bench.ended(order)
    assert observation.exit is not None
    assert observation.exit.cause is ExitCause.NODE_LOST


# Images


def test_an_image_that_cannot_be_pulled_is_reported_in_words(docker_bench):
    with pytest.raises((ExecutorTryAgain, ExecutorRefused), match=r"Image nowhere\.invalid/x:1 cannot be pulled: "):
        for _ in range(50):
            try:
                docker_bench.executor.create(docker_bench.order(image="nowhere.invalid/x:1", command=("true",)))
            except ExecutorTryAgain as error:
                if not error.sentence.startswith("Pulling"):
                    raise
                time.sleep(0.2)
    assert docker_bench.leftovers() == []


def test_a_job_without_an_image_is_refused_where_there_is_no_default(make_docker_bench):
    bench = make_docker_bench("none", default_image="")
    with pytest.raises(ExecutorRefused, match="set `image`"):
        bench.executor.create(bench.order(command=("true",)))


# Windows


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("create_network", True),
        ("create_container", True),
        ("put", True),
        ("rename", False),
        ("rename", True),
        ("start", False),
        ("start", True),
    ],
)
def test_whoever_dies_while_creating_is_followed_by_one_who_starts_it_once(docker_bench, call, after):
    order = docker_bench.order()
    engine = DockerEngine()
    dead = docker_bench.another(engine=engine)
    dead.create(docker_bench.order(command=("true",)))  # which reads the runtime image
    dying(engine, call, after=after)
    with pytest.raises(Killed):
        dead.create(order)
    if (call, after) != ("start", True):
        assert list(docker_bench.executor.observe(order.key.attempt_id)) == []
        assert order.key.attempt_id in docker_bench.executor.attempts()
    docker_bench.executor.create(order)
    assert docker_bench.ended(order).phase is Phase.SUCCEEDED
    assert docker_bench.starts(order) == 1
    for attempt in docker_bench.executor.attempts():
        remove(docker_bench.executor, attempt)
    assert docker_bench.leftovers() == []


@pytest.mark.parametrize("call", ["create_network", "create_container", "put", "rename", "start"])
def test_a_creator_that_is_late_at_any_step_starts_nothing_of_a_removed_attempt(docker_bench, call):
    order = docker_bench.order()
    engine = DockerEngine()
    late = docker_bench.another(engine=engine)
    warm = docker_bench.order(command=("true",))
    late.create(warm)  # which reads the runtime image
    remove(late, warm.key.attempt_id)
    real, reached, go_on = getattr(engine, call), threading.Event(), threading.Event()

    def wait(*args, **kwargs):
        reached.set()
        assert go_on.wait(60)
        return real(*args, **kwargs)

    setattr(engine, call, wait)
    errors = []

    def create():
        try:
            late.create(order)
        except Exception as error:  # noqa: BLE001 - it belongs to the test
            errors.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    assert reached.wait(60)
    remove(docker_bench.executor, order.key.attempt_id)
    go_on.set()
    thread.join(60)
    assert [type(error) for error in errors] == [AttemptRemoved]
    assert list(docker_bench.executor.observe(order.key.attempt_id)) == []
    assert docker_bench.starts(order) == 0
    assert docker_bench.leftovers() == []


def test_a_container_that_ended_is_not_started_again_by_a_creator_that_is_late(docker_bench):
    """It looked while the other had not started it yet."""
    order = docker_bench.order()
    with pytest.raises(Killed):
        docker_bench.another(engine=dying(DockerEngine(), "start", after=False)).create(order)
    engine = DockerEngine()
    real, reached, go_on = engine.start, threading.Event(), threading.Event()

    def wait(container):
        reached.set()
        assert go_on.wait(60)
        real(container)

    engine.start = wait
    late = docker_bench.another(engine=engine)
    thread = threading.Thread(target=late.create, args=(order,))
    thread.start()
    assert reached.wait(60)
    docker_bench.executor.create(order)
    before = docker_bench.ended(order)
    go_on.set()
    thread.join(60)
    time.sleep(1.0)
    assert docker_bench.ended(order) == before
    assert docker_bench.starts(order) == 1


@pytest.mark.parametrize("image", ["python:3.11-slim", "without Python"])
def test_a_folder_that_was_replaced_by_a_link_since_it_was_looked_at_is_not_used(docker_bench, tmp_path, image):
    if image == "without Python":
        image = docker_bench.runtime_image
    place, target = docker_bench.output / "place", docker_bench.folder / "somebody-elses"
    for folder in (place, target):
        folder.mkdir()
        folder.chmod(0o777)
    mount = MountOrder(str(place), "/data/output", read_only=False, inode=place.stat().st_ino)
    order = docker_bench.order(command=("/trainmaster/runtime/busybox", "touch", "/data/output/seen"), mounts=(mount,))
    order = replace(order, image=image)
    docker_bench.executor.create(order)
    assert docker_bench.ended(order).phase is Phase.SUCCEEDED
    assert (place / "seen").exists()
    place.rename(docker_bench.output / "aside")
    place.symlink_to(target)
    again = replace(order, key=replace(order.key, generation=2))
    docker_bench.executor.create(again)
    observation = docker_bench.ended(again)
    assert observation.exit.cause is ExitCause.START_REFUSED
    assert "replaced by another one" in observation.exit.sentence
    assert list(target.iterdir()) == [], "nothing of the job ran, and no log was written there"


# Several platforms, several control planes, an engine that is away


def test_two_platforms_on_one_engine_do_not_see_each_other(make_docker_bench):
    item, two = make_docker_bench("one"), make_docker_bench("two")
    order = item.order(command=FOREVER)
    item.executor.create(order)
    assert order.key.attempt_id not in two.executor.attempts()
    assert list(two.executor.observe(order.key.attempt_id)) == []
    for attempt in two.executor.attempts():
        remove(two.executor, attempt)
    assert item.executor.observe(order.key.attempt_id)[0].phase in (Phase.PENDING, Phase.RUNNING)


def test_an_end_without_any_control_plane_is_read_by_the_next_one(docker_bench):
    order = docker_bench.order(command=("sh", "-c", "sleep 0.5; exit 7"))
    docker_bench.executor.create(order)
    docker_bench.executor.close()
    observation = docker_bench.wait_for(
        lambda: next((o for o in docker_bench.another().observe(order.key.attempt_id) if o.exit), None)
    )
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.EXITED, 7)
    assert observation.started_at is not None


def test_the_driver_tells_of_starts_and_ends(docker_bench):
    order = docker_bench.order(command=("sleep", "2"))
    docker_bench.executor.wait_for_change(0.2)
    docker_bench.executor.create(order)
    phases = []
    end = time.monotonic() + 60
    while (not phases or phases[-1] is not Phase.SUCCEEDED) and time.monotonic() < end:
        if order.key.attempt_id in docker_bench.executor.wait_for_change(5.0):
            phases += [o.phase for o in docker_bench.executor.observe(order.key.attempt_id)]
    assert Phase.RUNNING in phases
    assert phases[-1] is Phase.SUCCEEDED


def test_an_engine_that_is_away_is_tried_again(tmp_path):
    engine = DockerEngine({"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "HOME": os.environ.get("HOME", "/")})
    executor = DockerExecutor(engine, ContainerSettings("none"), runtime_image="x")
    for call in (executor.nodes, executor.attempts):
        with pytest.raises(ExecutorTryAgain, match="does not answer"):
            call()
    executor.close()


def test_tombstones_are_forgotten_after_their_time(make_docker_bench):
    bench = make_docker_bench("old", tombstone_life=timedelta(seconds=-60))
    order = bench.order()
    bench.executor.create(order)
    remove(bench.executor, order.key.attempt_id)
    assert bench.engine.volumes({"trainmaster/instance": bench.instance}) == []
