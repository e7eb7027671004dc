"""The job's folders, code, environment and ports, on real processes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from core.domain.errors import ExecutorRefused
from core.domain.ids import JobId
from executors.base import ExitCause, MountOrder, Phase, VolumeSource
from executors.process import procfs
from executors.process.ports import PortBook, PortRange

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bench(process_bench):
    return process_bench


@pytest.fixture
def isolated(bench):
    """The bench, where the kernel allows a view of its own."""
    observation = bench.run(command=("true",))
    if "namespace" not in observation.facts.get("isolation", ""):
        pytest.skip(f"this kernel allows no mount namespace: {observation.facts}")
    return bench


def test_the_three_folders_are_really_there(isolated):
    (isolated.input / "x").write_text("from the input\n")
    order = isolated.order(command="pwd; cat /data/data/x; echo result > /data/output/r; ls")
    isolated.executor.create(order)
    assert isolated.ended(order).phase is Phase.SUCCEEDED
    assert isolated.log(order).splitlines() == ["/data", "from the input", "data", "output"]
    assert (isolated.output / "r").read_text() == "result\n"


def test_the_input_is_read_only_and_stays_so(isolated):
    (isolated.input / "x").write_text("as it was")
    order = isolated.order(command="echo changed > /data/data/x || echo refused; rm -f /data/data/x || echo kept")
    isolated.executor.create(order)
    isolated.ended(order)
    assert "refused" in isolated.log(order)
    assert "kept" in isolated.log(order)
    assert (isolated.input / "x").read_text() == "as it was"


def test_nothing_is_created_on_the_hosts_root(isolated, tmp_path):
    before = _names("/")
    store = tmp_path / "store"
    store.mkdir()
    (store / "f").write_text("mounted\n")
    order = isolated.order(
        command="cat /mnt/tm-test-set/deep/f; ls -A /mnt; ls -A / | tr '\\n' ' '",
        mounts=(
            MountOrder(str(isolated.output), "/data/output", False),
            MountOrder(str(store), "/mnt/tm-test-set/deep", True),
        ),
    )
    isolated.executor.create(order)
    assert isolated.ended(order).phase is Phase.SUCCEEDED
    lines = isolated.log(order).splitlines()
    assert lines[0] == "mounted"
    assert set(lines[1:-1]) == _names("/mnt") | {"tm-test-set"}
    assert set(lines[-1].split()) == before | {"data"}
    assert _names("/") == before
    assert not Path("/mnt/tm-test-set").exists()


def test_dev_shm_has_the_size_that_was_requested(isolated):
    order = isolated.order(command="df -B1 --output=size /dev/shm | tail -1", shm_bytes=64 * 2**20)
    isolated.executor.create(order)
    isolated.ended(order)
    assert isolated.log(order).strip() == str(64 * 2**20)


def test_without_a_view_the_log_says_that_shm_is_not_applied(make_process_bench):
    bench = make_process_bench("mapped", view="mapped")
    order = bench.order(command=("true",), shm_bytes=64 * 2**20)
    bench.executor.create(order)
    bench.ended(order)
    assert "`shm` is not applied" in bench.log(order)


def test_local_processes_share_one_dev_shm(isolated):
    order = isolated.order(
        command="touch /dev/shm/rank-$RANK; for i in $(seq 200); do [ -e /dev/shm/rank-0 ] && [ -e /dev/shm/rank-1 ]"
        " && exit 0; sleep 0.02; done; exit 1",
        shm_bytes=16 * 2**20,
        process_env=({"RANK": "0"}, {"RANK": "1"}),
    )
    isolated.executor.create(order)
    assert isolated.ended(order).phase is Phase.SUCCEEDED


def test_without_a_view_paths_are_mapped_and_logged(make_process_bench):
    bench = make_process_bench("mapped", view="mapped")
    (bench.input / "x").write_text("from the input")
    order = bench.order(
        command=bench.python("""
            import os, sys
            print(open(os.environ["DATA"] + "/x").read(), open(sys.argv[1].split("=")[1]).read())
            open(os.environ["OUT"], "w").write("done")
            output = os.path.realpath(os.path.dirname(os.environ["OUT"]))
            print(open("data/x").read(), os.path.realpath("output") == output)
            print(os.getcwd())
        """),
        args=("--input=/data/data/x",),
        env={"DATA": "/data/data", "OUT": "/data/output/r"},
    )
    bench.executor.create(order)
    observation = bench.ended(order)
    log = bench.log(order)
    assert observation.phase is Phase.SUCCEEDED, log
    assert observation.facts["isolation"] == "paths mapped"
    assert "mapped by environment and arguments" in log
    assert "nothing of this machine is hidden" in log
    assert "shm" not in log
    assert "from the input from the input" in log
    assert "from the input True" in log
    assert str(bench.state(order) / "work") in log
    assert (bench.output / "r").read_text() == "done"


def test_an_input_that_is_not_there_is_reported(bench):
    mounts = (MountOrder("/nowhere/at/all", "/data/data", True), MountOrder(str(bench.output), "/data/output", False))
    observation = bench.run(command=("true",), mounts=mounts)
    assert observation.exit.cause is ExitCause.START_REFUSED
    assert "/data/data: what is to be mounted there does not exist" in observation.exit.sentence
    assert "/nowhere" not in observation.exit.sentence


@pytest.mark.parametrize("kind", ["nfs", "pvc", "csi"])
def test_a_volume_that_only_an_engine_can_mount_is_refused(bench, tmp_path, kind):
    place = tmp_path / "export"
    volume = VolumeSource("sets", kind, {"path": str(place), "server": "nas", "claim": "sets"}, "x")
    output = MountOrder(str(place / "x"), "/data/output", False, volume)
    order = bench.order(command=("true",), mounts=(output,))
    with pytest.raises(ExecutorRefused, match=f"^/data/output: a volume of kind {kind} cannot .*add .* kind local"):
        bench.executor.create(order)
    assert bench.executor.observe(order.key.attempt_id) == ()
    assert not place.exists()


def test_facts_and_sentences_name_no_path_of_the_host(isolated):
    order = isolated.order(command="true")
    isolated.executor.create(order)
    observation = isolated.ended(order)
    assert observation.facts["log"] == "/data/output/.trainmaster/logs/job-1/1/worker-0.log"
    assert str(isolated.folder) not in json.dumps(dict(observation.facts))
    assert "/sys/fs/cgroup" not in json.dumps(dict(observation.facts))


def test_jobs_that_share_an_output_have_logs_of_their_own(bench):
    orders = [
        replace(order, key=replace(order.key, job_id=JobId(job)))
        for job in ("job-a", "job-b")
        for order in (bench.order(command=f"echo from {job}"),)
    ]
    for order in orders:
        bench.executor.create(order)
    for order in orders:
        bench.ended(order)
    assert [bench.log(order) for order in orders] == ["from job-a", "from job-b"]


@pytest.fixture
def hiding(make_process_bench, tmp_path):
    """A platform's home with everything in it, as the embedded mode has it, and a kernel that can hide it."""
    bench = make_process_bench("platform", hidden=[tmp_path / "platform"])
    (bench.folder / "token").write_text("tm_admin")
    (bench.folder / "secret.key").write_text("key")
    if "namespace" not in bench.run(command=("true",)).facts.get("isolation", ""):
        pytest.skip("this kernel allows no mount namespace")
    return bench


def test_a_job_does_not_see_the_platforms_home(hiding):
    other = hiding.order(command="sleep 1000", token="tma_other", env={"SECRET": "hunter2"})
    hiding.executor.create(other)
    hiding.until(other, lambda o: o.phase is Phase.RUNNING)
    home = hiding.folder
    (hiding.input / "x").write_text("input\n")
    order = hiding.order(
        command=f"ls -A {home}; cat {home}/token {home}/secret.key {hiding.state(other)}/order.json;"
        f" touch {home}/mine; cat $TRAINMASTER_TOKEN_FILE /data/data/x; echo > /data/output/r;"
        " echo '{}' >> $TRAINMASTER_REPORT_FILE && python -c 'print(\"works\")'",
        token="tma_own",
        env={"NAME": "x"},
    )
    hiding.executor.create(order)
    assert hiding.ended(order).phase is Phase.SUCCEEDED, hiding.log(order)
    log = hiding.log(order)
    assert "tm_admin" not in log
    assert "hunter2" not in log
    assert log.count("No such file or directory") == 3
    assert "Read-only file system" in log
    assert log.splitlines()[-2:] == ["tma_owninput", "works"]
    assert (hiding.output / "r").exists()
    assert not (home / "mine").exists()


def test_a_mount_of_a_folder_above_does_not_show_the_platforms_home(hiding):
    order = hiding.order(
        command="ls -A /mnt/all; ls -A /mnt/all/platform; echo end",
        mounts=(
            MountOrder(str(hiding.output), "/data/output", False),
            MountOrder(str(hiding.folder.parent), "/mnt/all", True),
        ),
    )
    hiding.executor.create(order)
    assert hiding.ended(order).phase is Phase.SUCCEEDED
    assert hiding.log(order).splitlines() == ["platform", "end"]


def test_a_python_in_the_platforms_home_can_be_used(make_process_bench, tmp_path):
    home = tmp_path / "platform"
    venv = home / "venv"
    bench = make_process_bench("platform", hidden=[home], python=str(venv / "bin/python"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(venv)], check=True)
    listing = (
        f"import os, sys; print(sys.prefix, sorted(os.listdir({str(home)!r})), os.listdir({str(bench.run_dir)!r}))"
    )
    order = bench.order(command=("python", "-c", listing))
    bench.executor.create(order)
    observation = bench.ended(order)
    if "namespace" not in observation.facts.get("isolation", ""):
        pytest.skip("this kernel allows no mount namespace")
    # Of the platform's folders the job's own home alone is shown.
    assert bench.log(order) == f"{venv} ['run', 'venv'] ['homes']"


def test_the_platforms_home_itself_cannot_be_mounted(hiding):
    mounts = (MountOrder(str(hiding.output), "/data/output", False), MountOrder(str(hiding.folder), "/mnt/all", True))
    observation = hiding.run(command=("true",), mounts=mounts)
    assert observation.exit.cause is ExitCause.START_REFUSED
    assert "platform's own data cannot be mounted" in observation.exit.sentence


def test_state_folders_and_their_files_are_their_owners_alone(bench):
    order = bench.order(command="sleep 1000", token="tma_x", env={"SECRET": "hunter2"})
    bench.executor.create(order)
    bench.until(order, lambda o: o.phase is Phase.RUNNING)
    bench.executor.stop(order.key, grace=timedelta(seconds=5))
    bench.ended(order)
    state = bench.state(order)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (*state.iterdir(), state, *state.parents[:3])}
    open_ones = {name: oct(mode) for name, mode in modes.items() if mode & 0o077 and name != "work"}
    assert open_ones == {}
    assert {"order.json", "token", "exit.json", "runtime.json", "status.json", "runtime.log"} <= modes.keys()


def archive(tmp_path: Path, files: dict[str, str]) -> tuple[str, str]:
    path = tmp_path / "code.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return str(path), "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_code_lies_in_the_work_folder(bench, tmp_path):
    path, digest = archive(tmp_path, {"train.py": "import lib.x", "lib/x.py": "print('from the archive')"})
    order = bench.order(command=("python", "train.py"), code_path=path, code_digest=digest)
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    assert bench.log(order) == "from the archive"


def test_an_archive_that_changed_on_the_way_is_refused(bench, tmp_path):
    path, _ = archive(tmp_path, {"train.py": ""})
    observation = bench.run(command=("python", "train.py"), code_path=path, code_digest="sha256:" + "0" * 64)
    assert observation.exit.cause is ExitCause.START_REFUSED
    assert "upload it again" in observation.exit.sentence


def test_the_control_planes_secrets_do_not_reach_the_job(bench, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_SECRET_KEY", "hidden-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-2")
    order = bench.order(command="env; cat $TRAINMASTER_TOKEN_FILE", token="tma_token", env={"MINE": "shown"})
    bench.executor.create(order)
    bench.ended(order)
    log = bench.log(order)
    assert "hidden" not in log
    assert "MINE=shown" in log
    assert log.count("tma_token") == 1  # the file's content, not the environment's


def test_the_token_is_in_files_of_mode_0600_alone(bench):
    order = bench.order(command="sleep 1000", token="tma_very_secret")
    bench.executor.create(order)
    observation = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    holders = [path for path in bench.run_dir.rglob("*") if path.is_file() and b"tma_very_secret" in path.read_bytes()]
    assert {path.name for path in holders} == {"token"}
    assert {path.stat().st_mode & 0o777 for path in holders} == {0o600}
    for pid in (observation.facts["pid"], observation.facts["runtime_pid"]):
        assert b"tma_very_secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert b"tma_very_secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_python_is_the_platforms_own(bench):
    order = bench.order(command=bench.python("import sys; print(sys.prefix)"))
    bench.executor.create(order)
    bench.ended(order)
    assert bench.log(order) == sys.prefix


def test_small_files_of_the_order_are_there(bench):
    order = bench.order(command="cat /data/.trainmaster/hostfile", files={"/data/.trainmaster/hostfile": "h slots=2\n"})
    bench.executor.create(order)
    bench.ended(order)
    assert bench.log(order) == "h slots=2"


def test_a_port_in_use_is_not_given(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        book = PortBook(tmp_path / "ports", PortRange(port, port))
        with pytest.raises(Exception, match="1 ports are needed and 0 are free"):
            book.allocate(1, frozenset())


def test_ports_go_round_before_they_come_again(tmp_path):
    book = PortBook(tmp_path / "ports", PortRange(20_000, 20_399))
    first = book.allocate(8, frozenset())
    rest = [port for _ in range(20) for port in book.allocate(8, frozenset())]
    assert not set(first) & set(rest)
    assert len(set(rest)) == len(rest)


def test_it_runs_and_isolates_without_root(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("already without root: the other tests are this one")
    if not Path("/usr/bin/python3").exists():
        pytest.skip("needs a Python that other users may execute")
    home = Path("/tmp") / f"trainmaster-nobody-{os.getpid()}"
    (home / "in").mkdir(parents=True)
    (home / "in/x").write_text("hello\n")
    subprocess.run(["chown", "-R", "65534:65534", str(home)], check=True)
    script = f"""
import json, os, subprocess, sys
home = {str(home)!r}
order = dict(version=1, key=dict(job_id="j", attempt_id="att-nobody", role="worker", index=0, generation=1),
    attempt_number=1, command="id -u; cat /data/data/x; touch /data/data/y || echo read-only;"
    f" cat {{home}}/state/order.json || echo hidden; cat /proc/$PPID/root{{home}}/state/order.json || echo closed;"
    " cat /proc/$PPID/environ || echo closed; (setsid sleep 1000 &)",
    args=[], env={{}}, process_env=[{{}}], pids_limit=1000, stop_grace_s=5, exit_grace_s=5, peers_grace_s=1,
    peer_hosts=[], hidden=[home], mounts=[dict(source=home + "/in", target="/data/data", read_only=True),
    dict(source=home + "/out", target="/data/output", read_only=False)])
os.makedirs(home + "/state")
json.dump(order, open(home + "/state/order.json", "w"))
subprocess.run([sys.executable, "-I", "-S", {str(ROOT / "worker_images/runtime/trainmaster_runtime")!r},
    home + "/state/order.json"])
"""
    try:
        subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", script],
            check=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
        )
        log = (home / "out/.trainmaster/logs/j/1/worker-0.log").read_text()
        exit_record = (home / "state/exit.json").read_text()
        if "no private view" in log:
            pytest.skip(f"this kernel gives other users no namespaces: {log}")
        assert [line.split(" ", 1)[1] for line in log.splitlines() if ": " not in line] == [
            "65534",
            "hello",
            "read-only",
            "hidden",
            # Without root, the user namespace keeps the platform's processes closed, too.
            "closed",
            "closed",
        ]
        assert '"exit_code": 0' in exit_record
        assert "user and mount namespace" in exit_record
        assert procfs.marked("att-nobody/worker-0.1") == []
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=True)


def test_in_a_container_the_engines_mounts_are_taken_as_they_are(isolated):
    """The runtime once more inside a replica, whose /data is real, as in an image."""
    nested = isolated.output / "nested"
    nested.mkdir()
    order = {
        "version": 1,
        "key": {"job_id": "j", "attempt_id": "att-nested", "role": "ps", "index": 2, "generation": 1},
        "attempt_number": 4,
        "command": "pwd; echo $TRAINMASTER_REPORT_FILE; exit 5",
        "args": [],
        "env": {},
        "process_env": [],
        "mounts": [],
        "peer_hosts": [],
        "pids_limit": 1000,
        "stop_grace_s": 5,
        "exit_grace_s": 5,
        "peers_grace_s": 5,
        "view": "as_is",
        "use_cgroups": False,
    }
    (nested / "order.json").write_text(json.dumps(order))
    runtime = ROOT / "worker_images/runtime/trainmaster_runtime"
    outer = isolated.order(command=("python", str(runtime), "/data/output/nested/order.json"))
    isolated.executor.create(outer)
    assert isolated.ended(outer).exit.exit_code == 5, isolated.log(outer)
    log = (isolated.output / ".trainmaster/logs/j/4/ps-2.log").read_text()
    assert [line.split(" ", 1)[1] for line in log.splitlines()] == ["/data", "/data/.trainmaster/report.jsonl"]
    assert json.loads((nested / "exit.json").read_text())["cause"] == "exited"


def _names(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}
