"""Every end that a replica of plain processes can have."""

from __future__ import annotations

import os
import subprocess
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest

from executors.base import ExitCause, MountOrder, Phase

# Too long for a name: no resolver is asked, whatever the network is.
NO_SUCH_HOST = "no-such-peer-" + "x" * 64


@pytest.fixture
def bench(process_bench):
    return process_bench


def test_a_daemon_that_forked_twice_dies_on_stop(bench):
    order = bench.order(
        command=bench.python("""
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
    pid = int(bench.wait_for(lambda: bench.text(bench.output / "daemon"), what="the daemon's start"))
    bench.wait_for(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
    bench.executor.stop(order.key, grace=timedelta(seconds=0.3))
    observation = bench.ended(order)
    assert observation.exit.cause is ExitCause.STOPPED
    assert not bench.is_alive(pid)


def test_what_the_command_left_behind_ends_with_it(bench):
    order = bench.order(command="setsid sleep 1000 & echo $! > /data/output/pid; exit 0")
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    assert not bench.is_alive(int((bench.output / "pid").read_text()))


def test_sigterm_reaches_the_command_and_its_last_words_the_log(bench):
    order = bench.order(
        command=bench.python("""
            import signal, sys, time
            signal.signal(signal.SIGTERM, lambda *_: (print("saving"), sys.exit(0)))
            print("ready")
            time.sleep(1000)
        """)
    )
    bench.executor.create(order)
    bench.wait_for(lambda: "ready" in bench.log(order))
    bench.executor.stop(order.key, grace=timedelta(seconds=20))
    observation = bench.ended(order)
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.STOPPED, 0)
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
    bench.wait_for(lambda: "ready" in bench.log(order))
    bench.executor.stop(order.key, grace=timedelta(seconds=20))
    bench.ended(order)
    assert (bench.output / "saved").read_text() == "all"


def test_what_a_stopped_command_leaves_behind_is_queried_too(bench):
    order = bench.order(
        command=bench.python("""
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
    bench.wait_for(lambda: "child ready" in bench.log(order))
    bench.executor.stop(order.key, grace=timedelta(seconds=20))
    assert bench.ended(order).exit.cause is ExitCause.STOPPED
    assert (bench.output / "saved").read_text() == "all"


def test_out_of_memory_is_recognised(bench):
    observation = bench.run(
        command=bench.python("x = [bytearray(1 << 20) for _ in range(400)]; print(len(x))"),
        memory_limit_bytes=100 * 2**20,
    )
    if "memory by cgroup" not in observation.facts["limits"]:
        pytest.skip(f"no writable memory cgroup: {observation.facts['limits']}")
    assert observation.exit.cause is ExitCause.OUT_OF_MEMORY
    assert observation.exit.exit_code == 137
    assert "100 MiB" in observation.exit.sentence


def test_out_of_memory_is_recognised_without_cgroups(make_process_bench):
    bench = make_process_bench("plain", use_cgroups=False)
    observation = bench.run(
        command=bench.python("""
            import time
            x = []
            while True:
                x.append(bytearray(b"x" * (4 << 20)))
                time.sleep(0.01)
        """),
        memory_limit_bytes=100 * 2**20,
    )
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.OUT_OF_MEMORY, 137)
    assert "memory by a watchdog" in observation.facts["limits"]


def test_the_number_of_processes_is_limited(bench):
    order = bench.order(command="for i in $(seq 50); do sleep 5 & done; wait", pids_limit=20)
    bench.executor.create(order)
    observation = bench.ended(order)
    assert observation.phase is Phase.FAILED


def test_the_deadline_ends_it(bench):
    observation = bench.run(command="sleep 1000", deadline_s=0.3, stop_grace=timedelta(seconds=5))
    assert observation.phase is Phase.FAILED
    assert observation.exit.cause is ExitCause.DEADLINE
    assert "max_run_time" in observation.exit.sentence


def test_two_processes_have_their_own_environment_and_their_lines_a_rank(bench):
    order = bench.order(
        command=bench.python("import os; print('I am', os.environ['RANK'])"), process_env=({"RANK": "4"}, {"RANK": "5"})
    )
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    assert sorted(bench.log(order).splitlines()) == ["[rank 4] I am 4", "[rank 5] I am 5"]


def test_a_dead_process_ends_the_others_and_gives_its_code(bench):
    order = bench.order(
        command="[ $RANK = 1 ] && exit 7; sleep 1000", process_env=({"RANK": "0"}, {"RANK": "1"}, {"RANK": "2"})
    )
    bench.executor.create(order)
    observation = bench.ended(order)
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.EXITED, 7)


def test_a_missing_command_is_reported(bench):
    observation = bench.run(command=("no-such-command", "--flag"))
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.COMMAND_NOT_FOUND, 127)
    assert "'no-such-command'" in observation.exit.sentence
    observation = bench.run(command="no-such-command --flag")
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.COMMAND_NOT_FOUND, 127)


def test_a_missing_interpreter_is_reported(bench):
    script = bench.output / "run.sh"
    script.write_text("#!/usr/bin/no-such-python\n")
    script.chmod(0o755)
    observation = bench.run(command=("/data/output/run.sh",))
    assert observation.exit.cause is ExitCause.INTERPRETER_MISSING
    assert "/usr/bin/no-such-python" in observation.exit.sentence


def test_death_by_a_signal_is_reported(bench):
    observation = bench.run(command=bench.python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.SIGNALLED, 139)
    assert "SIGSEGV" in observation.exit.sentence


def test_names_of_peers_that_never_appear_are_reported(bench):
    order = bench.order(command=("true",), peer_hosts=("127.0.0.1", NO_SUCH_HOST), peers_grace=timedelta(seconds=0.2))
    bench.executor.create(order)
    observation = bench.ended(order)
    assert observation.exit.cause is ExitCause.PEERS_MISSING
    assert NO_SUCH_HOST in observation.exit.sentence


def test_the_exit_carries_the_last_lines_of_the_log(bench):
    observation = bench.run(command="seq 5000; echo the end >&2; exit 9")
    assert len(observation.exit.log_tail) <= 4096
    assert observation.exit.log_tail.splitlines()[-2:] == ["5000", "the end"]


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
    observation = bench.run(command=bench.python(textwrap.dedent(HANGS) + last_line), exit_grace=timedelta(seconds=0.3))
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.HANGING_EXIT, code)
    assert observation.phase is (Phase.SUCCEEDED if code == 0 else Phase.FAILED)


def test_a_child_of_a_shell_that_hangs_at_exit_is_ended(bench):
    (bench.output / "hang.py").write_text(textwrap.dedent(HANGS))
    observation = bench.run(command="cd /data/output; python hang.py; exit $?", exit_grace=timedelta(seconds=0.3))
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.HANGING_EXIT, 0)


def test_a_hanging_program_in_a_pipe_is_ended(bench):
    (bench.output / "hang.py").write_text(textwrap.dedent(HANGS))
    order = bench.order(
        command="python /data/output/hang.py | tee /data/output/seen", exit_grace=timedelta(seconds=0.3)
    )
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    assert (bench.output / "seen").read_text() == "work done\n"


def test_a_caught_sys_exit_does_not_count(bench):
    observation = bench.run(
        command=bench.python(
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
    assert observation.exit.exit_code == 0


def test_a_crash_in_teardown_after_finished_work_counts_as_done(bench):
    order = bench.order(
        command=bench.python("""
            import os
            class Teardown:
                def __del__(self):
                    os.abort()
            keep = Teardown()
        """)
    )
    bench.executor.create(order)
    observation = bench.ended(order)
    assert (observation.phase, observation.exit.exit_code) == (Phase.SUCCEEDED, 0)
    assert "SIGABRT" in bench.log(order)


def test_a_thread_that_works_on_after_the_main_one_is_left_alone(bench):
    order = bench.order(
        command=bench.python("""
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
        command=bench.python("import os, sys; print('hooks' in os.environ['PYTHONPATH'], sys.exit.__module__)"),
        env={"TRAINMASTER_EXIT_HOOK": "0"},
    )
    bench.executor.create(order)
    bench.ended(order)
    assert bench.log(order) == "False sys"


def test_the_users_own_sitecustomize_still_runs(bench):
    (bench.output / "sitecustomize.py").write_text("print('own')\n")
    order = bench.order(
        command=bench.python(
            "import sys, sitecustomize; print(sitecustomize.__file__, [p for p in sys.path if 'hooks' in p])"
        ),
        env={"PYTHONPATH": "/data/output"},
    )
    bench.executor.create(order)
    bench.ended(order)
    assert bench.log(order).splitlines() == ["own", "/data/output/sitecustomize.py []"]


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
    observation = bench.ended(order)
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.DISK_FULL, 3)
    assert observation.exit.log_tail.splitlines()[-1] == "end"
    assert "make room" in observation.exit.sentence


def test_success_on_a_full_disk_is_success_and_the_loss_is_reported(bench, small_disk):
    mounts = (MountOrder(str(small_disk), "/data/output", False),)
    observation = bench.run(command="seq 100000", mounts=mounts)
    assert observation.phase is Phase.SUCCEEDED
    assert observation.facts["log_bytes_lost"] > 0


def test_the_exit_is_recorded_though_the_state_folders_disk_is_full(make_process_bench, small_disk):
    bench = make_process_bench("full")
    bench.run_dir = small_disk / "run"
    bench.executor = bench.another()
    order = bench.order(command="dd if=/dev/zero of=/data/fill bs=1k 2>/dev/null; exit 4")
    bench.executor.create(order)
    observation = bench.ended(order)
    assert observation.exit.exit_code == 4
    bench.executor.remove(order.key.attempt_id)


def test_an_output_that_cannot_be_written_is_reported(bench):
    (bench.output / ".trainmaster").write_text("a file where the platform's folder belongs")
    observation = bench.run(command=("true",))
    assert observation.exit.cause is ExitCause.START_REFUSED
    assert "check the output's volume" in observation.exit.sentence


@pytest.mark.parametrize("use_cgroups", [True, False])
def test_a_limit_of_half_a_cpu_bites(make_process_bench, use_cgroups):
    """Two processes that only count: by a control group half the time, by cores the time of one core."""
    bench = make_process_bench("plain", use_cgroups=use_cgroups)
    # One write a line: both print unbuffered into one pipe, and a word and its number would mix with the other's.
    tell = r"os.write(1, b'spent %f\n' % time.process_time())"
    count = f"import os, time; end = time.monotonic() + 3\nwhile time.monotonic() < end: pass\n{tell}"
    order = bench.order(command=f'python3 -c "{count}" & python3 -c "{count}"; wait', cpu_limit_milli=500)
    bench.executor.create(order)
    observation = bench.ended(order)
    spent = sum(float(line.split()[-1]) for line in bench.log(order).splitlines() if " spent " in f" {line}")
    by_group = "cpu by cgroup" in observation.facts["limits"]
    assert by_group or "cpu by cores" in observation.facts["limits"]
    assert 0 < spent < (2.3 if by_group else 3.6)


@pytest.mark.parametrize(("env", "has_stack"), [({}, True), ({"PYTHONFAULTHANDLER": ""}, False)])
def test_a_crash_in_native_code_leaves_its_stack_and_its_exit_code(bench, env, has_stack):
    text = "import os, signal\ndef crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\ncrash()"
    order = bench.order(command=bench.python(text), env=env)
    bench.executor.create(order)
    observation = bench.ended(order)
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.SIGNALLED, 139)
    assert ("in crash" in bench.log(order)) == has_stack
