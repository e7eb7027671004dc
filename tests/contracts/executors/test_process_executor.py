"""What only the driver of plain processes does, on real processes."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import time
from datetime import timedelta
from pathlib import Path

import pytest

from executors.base import ExitCause, MountOrder, Phase
from executors.process import ProcessExecutor, procfs
from executors.process.ports import PortBook, PortRange
from executors.process.render import mark_of
from executors.process.state import ReplicaFolder

ROOT = Path(__file__).parents[3]


# Too long for a name: no resolver is asked, whatever the network is.
NO_SUCH_HOST = "no-such-peer-" + "x" * 64


def python(code: str) -> tuple[str, ...]:
    return ("python", "-c", textwrap.dedent(code))


def wait_for(condition, limit_s: float = 20.0, what: str = "it"):
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {limit_s} s"
        time.sleep(0.01)
    return found


def is_alive(pid: int) -> bool:
    return procfs.start_ticks(pid) is not None


@pytest.fixture
def bench(process_bench):
    return process_bench


@pytest.fixture
def isolated(bench):
    """The bench, where the kernel allows a view of its own."""
    seen = bench.run(command=("true",))
    if "namespace" not in seen.facts.get("isolation", ""):
        pytest.skip(f"this kernel allows no mount namespace: {seen.facts}")
    return bench


# The view


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


def test_dev_shm_has_the_size_that_was_asked_for(isolated):
    order = isolated.order(command="df -B1 --output=size /dev/shm | tail -1", shm_bytes=64 * 2**20)
    isolated.executor.create(order)
    isolated.ended(order)
    assert isolated.log(order).strip() == str(64 * 2**20)


def test_local_processes_share_one_dev_shm(isolated):
    order = isolated.order(
        command="touch /dev/shm/rank-$RANK; for i in $(seq 200); do [ -e /dev/shm/rank-0 ] && [ -e /dev/shm/rank-1 ]"
        " && exit 0; sleep 0.02; done; exit 1",
        shm_bytes=16 * 2**20,
        process_env=({"RANK": "0"}, {"RANK": "1"}),
    )
    isolated.executor.create(order)
    assert isolated.ended(order).phase is Phase.SUCCEEDED


def test_without_a_view_paths_are_mapped_and_it_is_said(make_process_bench):
    bench = make_process_bench("mapped", view="mapped")
    (bench.input / "x").write_text("from the input")
    order = bench.order(
        command=python("""
            import os, sys
            print(open(os.environ["DATA"] + "/x").read(), open(sys.argv[1].split("=")[1]).read())
            open(os.environ["OUT"], "w").write("done")
            print(open("data/x").read(), os.path.realpath("output") == os.path.realpath(os.path.dirname(os.environ["OUT"])))
            print(os.getcwd())
        """),
        args=("--input=/data/data/x",),
        env={"DATA": "/data/data", "OUT": "/data/output/r"},
    )
    bench.executor.create(order)
    seen = bench.ended(order)
    log = bench.log(order)
    assert seen.phase is Phase.SUCCEEDED, log
    assert seen.facts["isolation"] == "paths mapped"
    assert "mapped by environment and arguments" in log
    assert "from the input from the input" in log
    assert "from the input True" in log
    assert str(bench.state(order) / "work") in log
    assert (bench.output / "r").read_text() == "done"


def test_an_input_that_is_not_there_is_told(bench):
    mounts = (MountOrder("/nowhere/at/all", "/data/data", True), MountOrder(str(bench.output), "/data/output", False))
    seen = bench.run(command=("true",), mounts=mounts)
    assert seen.exit.cause is ExitCause.START_FAILED
    assert "/nowhere/at/all does not exist" in seen.exit.sentence


# Code


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
    seen = bench.run(command=("python", "train.py"), code_path=path, code_digest="sha256:" + "0" * 64)
    assert seen.exit.cause is ExitCause.START_FAILED
    assert "upload it again" in seen.exit.sentence


# The environment


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
    seen = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    holders = [path for path in bench.run_dir.rglob("*") if path.is_file() and b"tma_very_secret" in path.read_bytes()]
    assert {path.name for path in holders} == {"token"}
    assert {path.stat().st_mode & 0o777 for path in holders} == {0o600}
    for pid in (seen.facts["pid"], seen.facts["runtime_pid"]):
        assert b"tma_very_secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert b"tma_very_secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_python_is_the_platforms_own(bench):
    order = bench.order(command=python("import sys; print(sys.prefix)"))
    bench.executor.create(order)
    bench.ended(order)
    assert bench.log(order) == sys.prefix


def test_small_files_of_the_order_are_there(bench):
    order = bench.order(command="cat /data/.trainmaster/hostfile", files={"/data/.trainmaster/hostfile": "h slots=2\n"})
    bench.executor.create(order)
    bench.ended(order)
    assert bench.log(order) == "h slots=2"


# Ends


def test_a_daemon_that_forked_twice_dies_on_stop(bench):
    order = bench.order(
        command=python("""
            import os, time
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.environ.clear()
                    open("/data/output/daemon", "w").write(str(os.getpid()))
                    os.execve("/bin/sleep", ["sleep", "1000"], {})
                os._exit(0)
            os.wait()
            time.sleep(1000)
        """)
    )
    bench.executor.create(order)
    pid = int(wait_for(lambda: _text(bench.output / "daemon"), what="the daemon's start"))
    wait_for(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
    bench.executor.stop(order.key, grace=timedelta(seconds=0.3))
    seen = bench.ended(order)
    assert seen.exit.cause is ExitCause.STOPPED
    assert not is_alive(pid)


def test_what_the_command_left_behind_ends_with_it(bench):
    order = bench.order(command="setsid sleep 1000 & echo $! > /data/output/pid; exit 0")
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    assert not is_alive(int((bench.output / "pid").read_text()))


def test_sigterm_reaches_the_command_and_its_last_words_the_log(bench):
    order = bench.order(
        command=python("""
            import signal, sys, time
            signal.signal(signal.SIGTERM, lambda *_: (print("saving"), sys.exit(0)))
            print("ready")
            time.sleep(1000)
        """)
    )
    bench.executor.create(order)
    wait_for(lambda: "ready" in bench.log(order))
    bench.executor.stop(order.key, grace=timedelta(seconds=20))
    seen = bench.ended(order)
    assert (seen.exit.cause, seen.exit.exit_code) == (ExitCause.STOPPED, 0)
    assert bench.log(order).splitlines() == ["ready", "saving"]


def test_a_child_of_a_shell_has_the_grace_to_save(bench):
    order = bench.order(
        command="""python -c '
import signal, sys, time
def save(*_):
    time.sleep(0.5)
    open("/data/output/saved", "w").write("all")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready")
time.sleep(1000)
'; true"""
    )
    bench.executor.create(order)
    wait_for(lambda: "ready" in bench.log(order))
    bench.executor.stop(order.key, grace=timedelta(seconds=20))
    bench.ended(order)
    assert (bench.output / "saved").read_text() == "all"


def test_killing_the_runtime_is_seen_as_lost_and_leaves_nothing(bench):
    order = bench.order(command="setsid sleep 1000 & echo $! > /data/output/pid; sleep 1000")
    bench.executor.create(order)
    child = int(wait_for(lambda: _text(bench.output / "pid")))
    seen = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    os.kill(seen.facts["runtime_pid"], signal.SIGKILL)
    seen = bench.ended(order)
    assert seen.phase is Phase.LOST
    assert seen.exit is None
    wait_for(lambda: not procfs.marked(mark_of(order.key)), what="the end of what was left")
    assert not is_alive(child)
    assert not any(Path(group).exists() for group in seen.facts["cgroups"])


def test_a_lost_replica_is_not_started_again_by_a_repeated_create(bench):
    order = bench.order(command="echo x >> /data/output/starts; sleep 1000")
    bench.executor.create(order)
    seen = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    wait_for(lambda: _text(bench.output / "starts"))
    os.kill(seen.facts["runtime_pid"], signal.SIGKILL)
    bench.until(order, lambda o: o.phase is Phase.LOST)
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.LOST
    assert (bench.output / "starts").read_text() == "x\n"


def test_the_boot_before_is_lost(bench):
    order = bench.order(command="true")
    bench.executor.create(order)
    bench.ended(order)
    state = bench.state(order)
    (state / "exit.json").unlink()
    text = (state / "runtime.json").read_text().replace(procfs.boot_id(), "11111111-2222-3333-4444-555555555555")
    (state / "runtime.json").write_text(text)
    seen = bench.ended(order)
    assert (seen.phase, seen.detail) == (Phase.LOST, "The machine was restarted.")


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1])
def test_a_creator_killed_at_any_moment_leaves_at_most_one_running(bench, delay_s):
    order = bench.order(command="echo x >> /data/output/starts; sleep 1000")
    pid = os.fork()
    if pid == 0:
        try:
            bench.executor.create(order)
        finally:
            os._exit(0)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    adopter = bench.another()
    adopter.create(order)
    bench.until(order, lambda o: o.phase is Phase.RUNNING)
    wait_for((bench.output / "starts").exists)
    time.sleep(0.1)  # a second one would have written by now
    assert (bench.output / "starts").read_text() == "x\n"
    (seen,) = adopter.observe(order.key.attempt_id)
    assert seen.phase is Phase.RUNNING


def _die(*_args, **_kwargs):
    os._exit(9)


def _after(function):
    def call(*args, **kwargs):
        function(*args, **kwargs)
        os._exit(9)

    return call


@pytest.mark.parametrize(
    ("target", "name", "replacement"),
    [
        (ProcessExecutor, "_write_order", _die),
        (ReplicaFolder, "write_text", _after(ReplicaFolder.write_text)),
        (ProcessExecutor, "_write_order", _after(ProcessExecutor._write_order)),
        (ProcessExecutor, "_launch", _after(ProcessExecutor._launch)),
    ],
    ids=["after the claim", "after the first file", "before the launch", "after the launch"],
)
def test_a_creator_killed_between_two_steps_leaves_what_the_next_can_finish(
    bench, monkeypatch, target, name, replacement
):
    order = bench.order(command="echo x >> /data/output/starts; sleep 1000", token="tma_x")
    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr(target, name, replacement)
        try:
            bench.executor.create(order)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    adopter = bench.another()
    before = adopter.observe(order.key.attempt_id)
    assert bool(before) == (name == "_launch")
    adopter.create(order)
    bench.until(order, lambda o: o.phase is Phase.RUNNING)
    wait_for(lambda: _text(bench.output / "starts"))
    adopter.create(order)
    assert (bench.output / "starts").read_text() == "x\n"


def test_a_stop_that_comes_while_the_runtime_starts_is_heard(bench):
    for _ in range(10):
        order = bench.order(command="sleep 1000")
        bench.executor.create(order)
        bench.executor.stop(order.key, grace=timedelta(seconds=5))
        assert bench.ended(order).exit.cause is ExitCause.STOPPED


def test_an_end_from_outside_the_platform_is_the_nodes(bench):
    order = bench.order(command="sleep 1000")
    bench.executor.create(order)
    seen = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    os.kill(seen.facts["runtime_pid"], signal.SIGTERM)
    assert bench.ended(order).exit.cause is ExitCause.NODE_LOST


def test_what_a_stopped_command_leaves_behind_is_asked_too(bench):
    order = bench.order(
        command=python("""
            import os, signal, subprocess, sys, time
            child = '''
            import signal, sys, time
            def save(*_):
                open("/data/output/saved", "w").write("all")
                sys.exit()
            signal.signal(signal.SIGTERM, save)
            print("child ready")
            time.sleep(1000)
            '''
            import textwrap
            subprocess.Popen([sys.executable, "-c", textwrap.dedent(child)], start_new_session=True)
            time.sleep(1000)
        """)
    )
    bench.executor.create(order)
    wait_for(lambda: "child ready" in bench.log(order))
    bench.executor.stop(order.key, grace=timedelta(seconds=20))
    assert bench.ended(order).exit.cause is ExitCause.STOPPED
    assert (bench.output / "saved").read_text() == "all"


def test_a_claim_whose_creator_died_is_not_seen_and_can_be_made_again(bench):
    order = bench.order(command="true")
    state = bench.state(order)
    state.mkdir(parents=True)
    (state / "lock").touch()
    (state / "order.json").write_text('{"half')
    assert list(bench.executor.observe(order.key.attempt_id)) == []
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED


def test_out_of_memory_is_recognised(bench):
    seen = bench.run(
        command=python("x = [bytearray(1 << 20) for _ in range(400)]; print(len(x))"), memory_limit_bytes=100 * 2**20
    )
    if "memory by cgroup" not in seen.facts["limits"]:
        pytest.skip(f"no writable memory cgroup: {seen.facts['limits']}")
    assert seen.exit.cause is ExitCause.OUT_OF_MEMORY
    assert seen.exit.exit_code == 137
    assert "100 MiB" in seen.exit.sentence


def test_out_of_memory_is_recognised_without_cgroups(make_process_bench):
    bench = make_process_bench("plain", use_cgroups=False)
    seen = bench.run(
        command=python("""
            import time
            x = []
            while True:
                x.append(bytearray(b"x" * (4 << 20)))
                time.sleep(0.01)
        """),
        memory_limit_bytes=100 * 2**20,
    )
    assert (seen.exit.cause, seen.exit.exit_code) == (ExitCause.OUT_OF_MEMORY, 137)
    assert "memory by a watchdog" in seen.facts["limits"]


def test_the_number_of_processes_is_limited(bench):
    order = bench.order(command="for i in $(seq 50); do sleep 5 & done; wait", pids_limit=20)
    bench.executor.create(order)
    seen = bench.ended(order)
    assert seen.phase is Phase.FAILED


def test_the_deadline_ends_it(bench):
    seen = bench.run(command="sleep 1000", deadline_s=0.3, stop_grace=timedelta(seconds=5))
    assert seen.phase is Phase.FAILED
    assert seen.exit.cause is ExitCause.DEADLINE
    assert "max_run_time" in seen.exit.sentence


def test_two_processes_have_their_own_environment_and_their_lines_a_rank(bench):
    order = bench.order(
        command=python("import os; print('I am', os.environ['RANK'])"), process_env=({"RANK": "4"}, {"RANK": "5"})
    )
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    assert sorted(bench.log(order).splitlines()) == ["[rank 4] I am 4", "[rank 5] I am 5"]


def test_a_dead_process_ends_the_others_and_gives_its_code(bench):
    order = bench.order(
        command="[ $RANK = 1 ] && exit 7; sleep 1000", process_env=({"RANK": "0"}, {"RANK": "1"}, {"RANK": "2"})
    )
    bench.executor.create(order)
    seen = bench.ended(order)
    assert (seen.exit.cause, seen.exit.exit_code) == (ExitCause.EXITED, 7)


def test_a_missing_command_is_told(bench):
    seen = bench.run(command=("no-such-command", "--flag"))
    assert (seen.exit.cause, seen.exit.exit_code) == (ExitCause.COMMAND_NOT_FOUND, 127)
    assert "'no-such-command'" in seen.exit.sentence
    seen = bench.run(command="no-such-command --flag")
    assert (seen.exit.cause, seen.exit.exit_code) == (ExitCause.COMMAND_NOT_FOUND, 127)


def test_a_missing_interpreter_is_told(bench):
    script = bench.output / "run.sh"
    script.write_text("#!/usr/bin/no-such-python\n")
    script.chmod(0o755)
    seen = bench.run(command=("/data/output/run.sh",))
    assert seen.exit.cause is ExitCause.INTERPRETER_MISSING
    assert "/usr/bin/no-such-python" in seen.exit.sentence


def test_death_by_a_signal_is_told(bench):
    seen = bench.run(command=python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (seen.exit.cause, seen.exit.exit_code) == (ExitCause.SIGNALLED, 139)
    assert "SIGSEGV" in seen.exit.sentence


def test_names_of_peers_that_never_appear_are_told(bench):
    order = bench.order(command=("true",), peer_hosts=("127.0.0.1", NO_SUCH_HOST), peers_grace=timedelta(seconds=0.2))
    bench.executor.create(order)
    seen = bench.ended(order)
    assert seen.exit.cause is ExitCause.PEERS_MISSING
    assert NO_SUCH_HOST in seen.exit.sentence


def test_the_exit_carries_the_last_lines_of_the_log(bench):
    seen = bench.run(command="seq 5000; echo the end >&2; exit 9")
    assert len(seen.exit.log_tail) <= 4096
    assert seen.exit.log_tail.splitlines()[-2:] == ["5000", "the end"]


# What finished its work and does not exit

HANGS = """
    import ctypes, os, threading
    class Teardown:
        def __del__(self):
            ctypes.PyDLL(None).pause()  # holding the GIL, as a dead-locked destructor does
    keep = Teardown()
    print("work done")
"""


@pytest.mark.parametrize(
    ("last_line", "code"),
    [
        ("", 0),
        ("import sys; sys.exit(5)", 5),
        ("raise ValueError('x')", 1),
        ("exit(6)", 6),
        ("import sys; sys.exit('no')", 1),
    ],
)
def test_a_process_that_hangs_at_exit_is_ended_and_its_own_code_counts(bench, last_line, code):
    seen = bench.run(command=python(textwrap.dedent(HANGS) + last_line), exit_grace=timedelta(seconds=0.3))
    assert (seen.exit.cause, seen.exit.exit_code) == (ExitCause.HANGING_EXIT, code)
    assert seen.phase is (Phase.SUCCEEDED if code == 0 else Phase.FAILED)


def test_a_child_of_a_shell_that_hangs_at_exit_is_ended(bench):
    (bench.output / "hang.py").write_text(textwrap.dedent(HANGS))
    seen = bench.run(command="cd /data/output; python hang.py; exit $?", exit_grace=timedelta(seconds=0.3))
    assert (seen.exit.cause, seen.exit.exit_code) == (ExitCause.HANGING_EXIT, 0)


def test_a_caught_sys_exit_does_not_count(bench):
    seen = bench.run(
        command=python(
            textwrap.dedent(HANGS)
            + textwrap.dedent("""
            import sys
            def f():
                try:
                    sys.exit(3)
                except SystemExit:
                    pass
            f()
            """)
        ),
        exit_grace=timedelta(seconds=0.3),
    )
    assert seen.exit.exit_code == 0


def test_a_crash_in_teardown_after_finished_work_counts_as_done(bench):
    order = bench.order(
        command=python("""
            import os
            class Teardown:
                def __del__(self):
                    os.abort()
            keep = Teardown()
        """)
    )
    bench.executor.create(order)
    seen = bench.ended(order)
    assert (seen.phase, seen.exit.exit_code) == (Phase.SUCCEEDED, 0)
    assert "SIGABRT" in bench.log(order)


def test_a_thread_that_works_on_after_the_main_one_is_left_alone(bench):
    order = bench.order(
        command=python("""
            import threading, time
            threading.Thread(target=lambda: (time.sleep(1.5), print("trained"))).start()
        """),
        exit_grace=timedelta(seconds=0.2),
    )
    bench.executor.create(order)
    assert bench.ended(order).exit.cause is ExitCause.EXITED
    assert bench.log(order) == "trained"


def test_the_exit_hook_can_be_turned_off(bench):
    order = bench.order(
        command=python("import os, sys; print(os.environ.get('PYTHONPATH'), sys.exit.__module__)"),
        env={"TRAINMASTER_EXIT_HOOK": "0"},
    )
    bench.executor.create(order)
    bench.ended(order)
    assert bench.log(order) == "None sys"


def test_the_users_own_sitecustomize_still_runs(bench):
    (bench.output / "sitecustomize.py").write_text("print('own')\n")
    order = bench.order(
        command=python(
            "import sys, sitecustomize; print(sitecustomize.__file__, [p for p in sys.path if 'hooks' in p])"
        ),
        env={"PYTHONPATH": "/data/output"},
    )
    bench.executor.create(order)
    bench.ended(order)
    assert bench.log(order).splitlines() == ["own", "/data/output/sitecustomize.py []"]


# Full disks


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], check=False)
    if done.returncode != 0:
        pytest.skip("this kernel mounts no tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_log_on_a_full_disk_does_not_stop_the_job(bench, small_disk):
    mounts = (MountOrder(str(small_disk), "/data/output", False),)
    order = bench.order(command="seq 100000; echo end; exit 3", mounts=mounts)
    bench.executor.create(order)
    seen = bench.ended(order)
    assert (seen.exit.cause, seen.exit.exit_code) == (ExitCause.DISK_FULL, 3)
    assert seen.exit.log_tail.splitlines()[-1] == "end"
    assert "make room" in seen.exit.sentence


def test_success_on_a_full_disk_is_success_and_the_loss_is_told(bench, small_disk):
    mounts = (MountOrder(str(small_disk), "/data/output", False),)
    seen = bench.run(command="seq 100000", mounts=mounts)
    assert seen.phase is Phase.SUCCEEDED
    assert seen.facts["log_bytes_lost"] > 0


def test_the_exit_is_recorded_though_the_state_folders_disk_is_full(make_process_bench, small_disk):
    bench = make_process_bench("full")
    bench.run_dir = small_disk / "run"
    bench.executor = bench.another()
    order = bench.order(command="dd if=/dev/zero of=/data/fill bs=1k 2>/dev/null; exit 4")
    bench.executor.create(order)
    seen = bench.ended(order)
    assert seen.exit.exit_code == 4
    bench.executor.remove(order.key.attempt_id)


# Ports


def test_a_port_in_use_is_not_given(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        book = PortBook(tmp_path / "ports", PortRange(port, port))
        with pytest.raises(Exception, match="1 ports are needed and 0 are free"):
            book.take(1, frozenset())


def test_ports_go_round_before_they_come_again(tmp_path):
    book = PortBook(tmp_path / "ports", PortRange(20_000, 20_399))
    first = book.take(8, frozenset())
    rest = [port for _ in range(20) for port in book.take(8, frozenset())]
    assert not set(first) & set(rest)
    assert len(set(rest)) == len(rest)


# Not root


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
    attempt_number=1, command="id -u; cat /data/data/x; touch /data/data/y || echo read-only; (setsid sleep 1000 &)",
    args=[], env={{}}, process_env=[{{}}], pids_limit=1000, stop_grace_s=5, exit_grace_s=5, peers_grace_s=1,
    peer_hosts=[], mounts=[dict(source=home + "/in", target="/data/data", read_only=True),
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
        log = (home / "out/.trainmaster/logs/1/worker-0.log").read_text()
        exit_record = (home / "state/exit.json").read_text()
        if "no private view" in log:
            pytest.skip(f"this kernel gives other users no namespaces: {log}")
        assert [line.split(" ", 1)[1] for line in log.splitlines() if "touch" not in line] == [
            "65534",
            "hello",
            "read-only",
        ]
        assert '"exit_code": 0' in exit_record
        assert "user and mount namespace" in exit_record
        assert procfs.marked("att-nobody/worker-0.1") == []
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=True)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _names(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}
