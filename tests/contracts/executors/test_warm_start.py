"""Replicas that are forked from a preloaded Python: they see what executed ones see, and nothing depends on the parent.

Most tests take a small package for the framework, which the parent cannot tell from the real one and imports at once.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from core import file_locks
from executors.base import Observation, Phase, ReplicaOrder
from executors.process import WarmLimits, procfs, warm
from executors.process.state import ReplicaFolder
from executors.process.warm import Road
from tests.contracts.executors.conftest import ProcessBench, plain_order

_LIMIT_S = 240.0  # only for what never comes; torch is imported within seconds, on a loaded machine within minutes
_FORKED = "forked from a preloaded parent"
_STUB = """
import mmap, os
_file = open(os.path.join(os.path.dirname(__file__), "libtorch_python.so"), "rb")
_map = mmap.mmap(_file.fileno(), 0, access=mmap.ACCESS_READ)
_file.close()
mode = os.environ.get("READ_BY_TORCH")
"""
_WAIT_FOR_RELEASE = """
import os, time, torch
while not os.path.exists("/data/output/release"):
    time.sleep(0.02)
"""


_numbers = itertools.count(1)


class WarmBench(ProcessBench):
    """A bench whose jobs find a small package named torch."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        kept = {"parents": 2, "memory_bytes": 2**31, "idle_s": 120.0, "settle_s": 0.0, **limits}
        super().__init__(folder, warm=WarmLimits(**kept))
        self.site = folder / "site"
        for name in ("", "distributed", "nn", "nn/parallel", "utils", "utils/data", "_dynamo"):
            (self.site / "torch" / name).mkdir(parents=True)
            (self.site / "torch" / name / "__init__.py").write_text("" if name else _STUB)
        (self.site / "torch/libtorch_python.so").write_bytes(b"\0" * 4096)

    def order(self, *behaviour: Any, **fields: Any) -> ReplicaOrder:
        """As ever, with a log of its own."""
        return super().order(*behaviour, attempt_number=next(_numbers), **fields)

    def python(self, text: str, *args: str, **fields: Any) -> ReplicaOrder:
        """An order for ``python <a file with text> <args>``."""
        program = self.output / "program.py"
        if not program.exists() or program.read_text() != text:  # another replica may be reading it
            program.write_text(text)
        env = {"PYTHONPATH": str(self.site), **fields.pop("env", {})}
        return self.order(**{"command": ("python", "/data/output/program.py", *args), "env": env, **fields})

    def warm_up(self, **fields: Any) -> Path:
        """Run a first job, which starts cold, until there is a parent; returns the parent's folder."""
        (self.output / "release").unlink(missing_ok=True)
        order = self.python(_WAIT_FOR_RELEASE, **fields)
        self.executor.create(order)
        folder = self.parent()
        (self.output / "release").touch()
        first = self.ended(order, _LIMIT_S)
        assert "start" not in first.facts
        return folder

    def parent(self) -> Path:
        def find() -> list[Path]:
            unfit = list(self.run_dir.glob("warm/*/*/unfit"))
            assert not unfit, unfit[0].read_text()
            return list(self.run_dir.glob("warm/*/*/socket"))

        return wait_for(find)[0].parent

    def learn(self, **fields: Any) -> None:
        """Have a command seen with the framework, where there is a parent already."""
        # One looks on at a time, at this one only when it has done with the job before.
        wait_for(lambda: not any(map(file_locks.is_held, self.run_dir.glob("warm/*/waiting"))))
        known = set(self.run_dir.glob("warm/*/hints/*"))
        (self.output / "release").unlink(missing_ok=True)
        order = self.python(_WAIT_FOR_RELEASE, **fields)
        self.executor.create(order)
        wait_for(lambda: set(self.run_dir.glob("warm/*/hints/*")) - known)
        (self.output / "release").touch()
        assert self.ended(order, _LIMIT_S).phase is Phase.SUCCEEDED

    def pid(self, folder: Path) -> int:
        return int(json.loads((folder / "parent.json").read_text())["pid"])

    def run_program(self, text: str, *args: str, **fields: Any) -> Observation:
        order = self.python(text, *args, **fields)
        self.executor.create(order)
        return self.ended(order, _LIMIT_S)


def wait_for(look: Callable[[], Any]) -> Any:
    end = time.monotonic() + _LIMIT_S
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    return procfs.start_ticks(pid) is not None


def clear(bench: WarmBench) -> None:
    for attempt in bench.executor.attempts():
        bench.executor.remove(attempt)
    for path in bench.run_dir.glob("warm/*/*/parent.json"):
        who = json.loads(path.read_text())
        procfs.send(who["pid"], who["start_ticks"], signal.SIGKILL)


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """A parent is heard however busy the machine is; a job would rather be executed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "_HELLO_S", 60.0)
        patch.setattr(warm, "_ANSWER_S", 60.0)
        yield


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., WarmBench]]:
    benches: list[WarmBench] = []

    def build(**limits: Any) -> WarmBench:
        benches.append(WarmBench(tmp_path / f"bench{len(benches)}", **limits))
        return benches[-1]

    yield build
    for bench in benches:
        clear(bench)


@pytest.fixture
def bench(make: Callable[..., WarmBench]) -> WarmBench:
    return make()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmBench]:
    bench = WarmBench(tmp_path_factory.mktemp("warm") / "bench")
    yield bench
    clear(bench)


@pytest.fixture
def lasting(shared: WarmBench) -> WarmBench:
    """A bench with a parent, for tests that leave it as it is. Somebody may have changed what this Python finds since."""
    if not any(map(file_locks.is_held, shared.run_dir.glob("warm/*/torch/lock"))):
        shared.warm_up()
    return shared


_PROBE = """
import torch
import gc, inspect, io, json, multiprocessing, os, resource, signal, subprocess, sys, threading, warnings

def status():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    names = ("Name Umask Uid Gid Groups NSpid SigQ SigPnd ShdPnd SigBlk SigIgn SigCgt CapInh CapPrm CapEff CapBnd CapAmb "
             "NoNewPrivs Seccomp Cpus_allowed_list Threads")
    pids = ("NSpid", "SigQ")
    return {name: lines[name].strip() for name in names.split() if name in lines and name not in pids}

def links():
    names = ["/proc/self/fd/" + name for name in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(name).partition(":[")[0] for name in names if os.path.exists(name))

def stream(s):
    return [type(s).__name__, s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through,
            type(s.buffer).__name__, s.isatty()]

def child(queue):
    queue.put([__name__, sys.argv, sorted(os.environ)])

def spawned(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    found = queue.get()
    process.join()
    return [found, process.exitcode]

if __name__ == "__main__":
    main = sys.modules["__main__"]
    seen = {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": repr(sys.flags),
        "executable": [sys.executable, sys._base_executable, sys.prefix, sys.base_prefix],
        "main": {name: repr(value).split(" at 0x")[0] if name[:2] == "__" else "" for name, value in sorted(vars(main).items())
                 if name not in ("__builtins__", "__loader__", "__warningregistry__")},
        "loader": [type(__loader__).__name__, __loader__.name, __loader__.path],
        "environ": dict(os.environ), "bytes": sorted(os.fsdecode(k) for k in os.environb),
        "proc environ": sorted(open("/proc/self/environ").read().split("\\0")),
        "c environ": sorted(subprocess.run(["env", "-0"], capture_output=True, text=True).stdout.split("\\0")),
        "cmdline": open("/proc/self/cmdline").read(), "comm": open("/proc/self/comm").read(),
        "exe": os.readlink("/proc/self/exe"), "cwd": os.getcwd(), "status": status(), "fds": links(),
        "signals": {s.name: str(signal.getsignal(s)).split(" at ")[0] for s in signal.valid_signals()
                    if isinstance(s, signal.Signals)},
        "wakeup": signal.set_wakeup_fd(-1),
        "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
        "groups": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.nice(0)],
        "cgroup": [line.split(":")[1] for line in open("/proc/self/cgroup") if "trainmaster-" in line],
        "score": open("/proc/self/oom_score_adj").read(), "timers": [signal.getitimer(n) for n in (0, 1, 2)],
        "stdin": [type(sys.stdin).__name__, sys.stdin.encoding, sys.stdin.read()],
        "stdout": stream(sys.stdout), "stderr": stream(sys.stderr), "same": [sys.stdout is sys.__stdout__],
        "frames": len(inspect.stack()), "threads": [t.name for t in threading.enumerate()],
        "thread": [threading.get_native_id() == os.getpid(), threading.main_thread() is threading.current_thread()],
        "warnings": [sys.warnoptions, len(warnings.filters)], "options": sys._xoptions, "recursion": sys.getrecursionlimit(),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "ours": sorted(n for n in sys.modules if "trainmaster" in n or n in ("runpy", "sitecustomize")),
        "hooks": [sys.excepthook.__name__, sys.displayhook.__name__, type(sys.exit).__name__],
        "mounts": [l.split()[4] for l in open("/proc/self/mountinfo") if l.split()[4].startswith("/data")],
        "files": sorted(os.listdir("/data")), "fork": spawned("fork"), "spawn": spawned("spawn"),
    }
    print(json.dumps(seen))
"""


def probe(bench: WarmBench, command: Any, *, start: str | None, **fields: Any) -> dict[str, Any]:
    env = {"PYTHONPATH": str(bench.site), "NAME": "välue", **fields.pop("env", {})}
    order = bench.order(command=command, args=("--lr", "0.1 x"), env=env, **fields)
    bench.executor.create(order)
    seen = bench.ended(order, _LIMIT_S)
    assert (seen.phase, seen.facts.get("start")) == (Phase.SUCCEEDED, start), bench.log(order)
    text = bench.log(order).splitlines()[-1].replace(order.key.attempt_id, "ATTEMPT")
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize(
    "command",
    [
        ("python", "/data/output/program.py"),
        ("python", "-u", "output/program.py"),
        "python ./output/program.py",
        ("python", "-m", "output.program"),
    ],
    ids=["file", "unbuffered", "shell", "module"],
)
def test_a_forked_replica_sees_what_an_executed_one_sees(lasting, command):
    if "-m" in command:
        lasting.learn(command=command)
    (lasting.output / "program.py").write_text(_PROBE)
    limits: dict[str, Any] = {"cpu_limit_milli": 1000, "memory_limit_bytes": 2**30}
    forked = probe(lasting, command, start=_FORKED, **limits)
    executed = probe(lasting, command, start=None, may_start_warm=False, **limits)
    if isinstance(command, str):
        # Some shells stay between, and lead the session; a forked process needs none and leads its own, as a list's does.
        executed.pop("groups")
        assert forked.pop("groups")[:2] == [True, True]
    for name, value in executed.items():
        assert forked[name] == value, name


_ENDS = {
    "end": "pass",
    "code": "sys.exit(3)",
    "text": "sys.exit('words at the end')",
    "by hand": "raise SystemExit(4)",
    "error": "1 / 0",
    "stop iteration": "next(iter([]))",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "os.kill(os.getpid(), 9)",
    "terminated": "os.kill(os.getpid(), 15)",
    "at once": "os._exit(7)",
    "syntax": "def",
    "unflushed": "f = open('/data/output/kept-' + sys.argv[1], 'w'); f.write('all of it')",
    "atexit": "import atexit; atexit.register(print, 'at the end')",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
}


@pytest.mark.parametrize("text", _ENDS.values(), ids=_ENDS)
def test_a_forked_replica_ends_as_an_executed_one_does(lasting, text):
    """Also where torch has made a process group, as it seems here: then the forked process leaves by another door."""
    used = "sys.modules['torch.distributed.distributed_c10d'] = type(sys)('c10d')\n"
    begin = "import os, sys, torch\nprint('begins')\nif sys.argv[1] == 'distributed':\n    " + used
    orders = {}
    for how in ("alone", "distributed", "executed"):
        orders[how] = lasting.python(f"{begin}{text}\n", how, may_start_warm=how != "executed")
        lasting.executor.create(orders[how])
    ends = {}
    for how, order in orders.items():
        seen = lasting.ended(order, _LIMIT_S)
        assert (seen.facts.get("start") == _FORKED) == (how != "executed" and text != "def")
        assert seen.exit is not None
        path = lasting.output / f"kept-{how}"
        kept = path.read_text() if path.exists() else None
        path.unlink(missing_ok=True)
        ends[how] = (seen.exit.cause, seen.exit.exit_code, seen.exit.sentence, kept, lasting.log(order))
    assert ends["alone"] == ends["distributed"] == ends["executed"]
    assert (ends["executed"][3] is not None) == ("'/data/output/kept" in text)


def test_children_of_one_parent_differ_in_what_is_left_to_chance(lasting):
    text = "import torch, random, multiprocessing as m\nprint(random.random(), m.current_process().authkey.hex())"
    assert len({lasting.log(run(lasting, text)) for _ in range(3)}) == 3


def run(bench: WarmBench, text: str, **fields: Any) -> ReplicaOrder:
    """Run it warm; returns its order, for the log."""
    order = bench.python(text, **fields)
    bench.executor.create(order)
    seen = bench.ended(order, _LIMIT_S)
    assert (seen.phase, seen.facts.get("start")) == (Phase.SUCCEEDED, _FORKED), (seen, bench.log(order))
    return order


def test_each_process_of_a_replica_is_forked_with_its_own_rank(lasting):
    """Two ranks have the launchers of Horovod in their PATH, which the parent has not."""
    ranks = tuple({"RANK": str(rank), "HOROVOD_SIZE": "2"} for rank in range(2))
    order = run(
        lasting, "import os, torch; print(os.environ['RANK'], '/bin:' in os.environ['PATH'])", process_env=ranks
    )
    assert sorted(lasting.log(order).splitlines()) == ["[rank 0] 0 True", "[rank 1] 1 True"]


_SAYS = "import sys, torch; print('torch.nn' in sys.modules)"


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("never", {"may_start_warm": False}),
        ("another OMP_NUM_THREADS", {"env": {"OMP_NUM_THREADS": "3"}}),
        ("a hash seed", {"env": {"PYTHONHASHSEED": "7"}}),
        ("no exit hook", {"env": {"TRAINMASTER_EXIT_HOOK": "0"}}),
        ("options", {"command": ("python", "-O", "/data/output/program.py")}),
        ("a shell's words", {"command": "exec python /data/output/program.py"}),
    ],
)
def test_what_could_be_told_apart_is_executed(lasting, why, fields):
    seen = lasting.run_program(_SAYS, **fields)
    assert seen.phase is Phase.SUCCEEDED, why
    assert seen.facts.get("start") != _FORKED


@pytest.mark.parametrize(
    ("env", "has_road"),
    [
        ({"HOME": "/srv/database"}, True),
        ({"TMPDIR": "/mnt/data"}, True),
        ({"PYTHONPATH": "/opt/lib:/mnt/data/lib:/data-2:/home/me/data/"}, True),
        ({"OTHER": "/data/output"}, True),
        ({"HOME": "/data"}, False),
        ({"TMPDIR": "/data/output/tmp"}, False),
        ({"PYTHONPATH": "/opt/lib:/data/lib"}, False),
        ({"LD_PRELOAD": "/opt/a.so /data/b.so"}, False),
        ({"TF_XLA_FLAGS": "--dump=/data,--more"}, False),
    ],
    ids=str,
)
def test_only_what_lies_in_the_jobs_own_folders_has_no_parent(tmp_path, env, has_road):
    folder = tmp_path / "mnt" / "data" / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    limits = WarmLimits(parents=1, memory_bytes=2**31, idle_s=60.0)
    starts = warm.WarmStarts(tmp_path / "warm", limits, python=sys.executable, runtime=tmp_path)
    order = plain_order("node", command=("python", "train.py"), env=env)

    assert (starts.road(order, {"PATH": f"{folder}:/usr/bin"}) is not None) == has_road
    assert starts.road(order, {"PATH": f"/data/bin:{folder}"}) is None


@pytest.mark.parametrize(
    ("text", "files", "env", "why"),
    [
        (_SAYS, {}, {"READ_BY_TORCH": "x"}, "READ_BY_TORCH differs"),
        (_SAYS, {"json.py": ""}, {}, "json.py lies beside the program and has a loaded module's name"),
        ("import sys", {}, {}, "the program does not import torch itself"),
    ],
    ids=["variable", "shadow", "other"],
)
def test_a_process_that_forking_does_not_serve_is_executed_and_says_why(lasting, text, files, env, why):
    shutil.rmtree(lasting.output / "own", ignore_errors=True)
    (lasting.output / "own").mkdir()
    for name, content in files.items():
        (lasting.output / "own" / name).write_text(content)
    name = f"unseen{next(_numbers)}.py"  # whatever an earlier test's file was seen to use
    (lasting.output / "own" / name).write_text(text)
    seen = lasting.run_program("", command=("python", f"/data/output/own/{name}"), env=env)
    assert (seen.phase, seen.facts["start"]) == (Phase.SUCCEEDED, f"executed: {why}")


def test_a_command_that_was_never_seen_is_forked_when_it_imports_the_framework(lasting):
    (lasting.output / "new.py").write_text("def main():\n    import torch.nn\nmain()\n")
    seen = lasting.run_program("", command="python /data/output/new.py")
    assert (seen.phase, seen.facts["start"]) == (Phase.SUCCEEDED, _FORKED)


def test_what_the_import_said_is_said_in_each_log(bench):
    (bench.site / "torch/_dynamo/__init__.py").write_text("import sys; print('a warning', file=sys.stderr)")
    bench.warm_up()
    assert bench.log(run(bench, "import torch; print('then')")).splitlines() == ["a warning", "then"]


def test_running_replicas_and_new_ones_outlive_a_killed_parent(bench):
    folder = bench.warm_up()
    (bench.output / "release").unlink()
    order = bench.python(_WAIT_FOR_RELEASE)
    bench.executor.create(order)
    running = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    assert running.facts["start"] == _FORKED
    pid = bench.pid(folder)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    # No copy of its lock is left in what it forked: there may be another parent at once.
    assert not file_locks.is_held(folder / "lock")
    second = bench.python(_WAIT_FOR_RELEASE)
    bench.executor.create(second)
    wait_for(lambda: bench.pid(folder) != pid)
    (bench.output / "release").touch()
    assert bench.ended(order).phase is Phase.SUCCEEDED
    cold = bench.ended(second)
    assert (cold.phase, cold.facts.get("start")) == (Phase.SUCCEEDED, None)


def test_a_parent_that_does_not_answer_is_passed_by(lasting, monkeypatch):
    pid = lasting.pid(lasting.parent())
    os.kill(pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(warm, "_HELLO_S", 0.1)
            seen = lasting.run_program(_SAYS)
        assert (seen.phase, seen.facts.get("start")) == (Phase.SUCCEEDED, None)
    finally:
        os.kill(pid, signal.SIGCONT)
    run(lasting, _SAYS)


@pytest.mark.parametrize("has_claimed", [False, True])
def test_a_forked_runtime_that_stalls_is_not_waited_for(lasting, tmp_path, monkeypatch, has_claimed):
    """It is stopped where it reads its order. Before the claim it is ended, and the order executed; else it goes on."""
    folder = lasting.parent()
    state = ReplicaFolder(tmp_path)
    os.mkfifo(tmp_path / "order.json")
    if has_claimed:
        state.write("runtime.json", {"pid": 1, "start_ticks": 1, "boot_id": ""})
    for name in ("_ANSWER_S", "_CLAIM_S"):
        monkeypatch.setattr(warm, name, 0.2)
    take = warm._take_road
    monkeypatch.setattr(warm, "_take_road", lambda state: (wait_for(lambda: state.read("road")), take(state))[1])
    starts = warm.WarmStarts(folder.parents[1], WarmLimits(1, 2**31, 60.0), python="python", runtime=Path())
    with (tmp_path / "lock").open("w") as lock, (tmp_path / "log").open("w") as log:
        told = starts.start(Road(folder.parent, {}, tmp_path / "hint"), state, {}, lock=lock.fileno(), log=log.fileno())
    road = state.read("road")
    assert road is not None
    assert told == (warm.CLAIMED if has_claimed else None)
    assert is_alive(road["pid"]) == has_claimed
    procfs.send(road["pid"], road["start_ticks"], signal.SIGKILL)


def test_a_stop_ends_a_forked_replica_with_all_its_children(lasting):
    # In one write each: `print` writes an unbuffered line's end apart, and two processes may mix theirs.
    text = "import os, time, torch\nos.write(1, b'%d\\n' % os.fork())\ntime.sleep(600)"
    order = lasting.python(text)
    lasting.executor.create(order)
    wait_for(lambda: len(lasting.log(order).splitlines()) == 2)
    lasting.executor.stop(order.key, grace=timedelta(seconds=20))
    seen = lasting.ended(order)
    assert seen.exit is not None
    assert seen.exit.cause == "stopped"
    child = max(int(line) for line in lasting.log(order).splitlines())
    assert not is_alive(child)


def test_what_a_killed_runtime_leaves_is_found_and_ended(lasting):
    order = lasting.python("import time, torch; time.sleep(600)")
    lasting.executor.create(order)
    running = lasting.until(order, lambda o: o.phase is Phase.RUNNING)
    os.kill(running.facts["runtime_pid"], signal.SIGKILL)
    assert lasting.until(order, lambda o: o.phase is Phase.LOST).phase is Phase.LOST
    wait_for(lambda: not is_alive(running.facts["pid"]))


@pytest.mark.parametrize("what", ["torch/nn/__init__.py", "another.dist-info"])
def test_a_parent_ends_when_its_environment_changes(bench, what):
    folder = bench.warm_up()
    pid = bench.pid(folder)
    path = bench.site / what
    if path.exists():
        path.write_text("changed = True\n")
    else:
        path.mkdir()
    seen = bench.run_program("import sys, torch.nn; print(hasattr(torch.nn, 'changed'))")
    assert seen.facts.get("start") is None
    wait_for(lambda: not is_alive(pid))


def test_a_parent_ends_when_nobody_needs_it(make):
    bench = make(idle_s=0.1)
    folder = bench.warm_up()
    pid = bench.pid(folder)
    wait_for(lambda: not is_alive(pid))
    assert bench.run_program(_SAYS).facts.get("start") is None


def test_a_parent_ends_when_its_socket_is_taken_away(bench):
    """As the platform does when it is stopped, and as happens when its home is deleted."""
    folder = bench.warm_up()
    pid = bench.pid(folder)
    (folder / "socket").unlink()
    wait_for(lambda: not is_alive(pid))


def test_the_parent_that_rested_longest_makes_room_for_another(make):
    bench = make(parents=1)
    first = bench.pid(bench.warm_up())
    (bench.output / "release").unlink()
    order = bench.python(_WAIT_FOR_RELEASE, env={"OMP_NUM_THREADS": "2"})
    bench.executor.create(order)
    wait_for(lambda: not is_alive(first))
    (bench.output / "release").touch()
    assert bench.ended(order).phase is Phase.SUCCEEDED


def test_an_environment_that_starts_threads_gets_no_parent(make):
    bench = make()
    (bench.site / "torch/_dynamo/__init__.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    order = bench.python(_WAIT_FOR_RELEASE)
    bench.executor.create(order)
    unfit = wait_for(lambda: list(bench.run_dir.glob("warm/*/*/unfit")))
    assert "starts threads" in wait_for(unfit[0].read_text)
    (bench.output / "release").touch()
    assert bench.ended(order).phase is Phase.SUCCEEDED


def test_only_the_owner_reaches_a_parent(lasting):
    folder = lasting.parent()
    assert (folder / "socket").stat().st_mode & 0o777 == 0o600
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.parents[:2]))


_DDP = """
import os, sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
rank = dist.get_rank()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((8, 4), 1.0 + rank)).sum().backward()
    optimizer.step()
while not os.path.exists("/data/output/release"):
    time.sleep(0.02)
print(rank, dist.get_world_size(), [round(v, 4) for v in model.module.weight.detach().flatten().tolist()], torch.get_num_threads())
dist.destroy_process_group()
sys.exit(0)
"""


def test_real_ranks_train_and_end_at_once(make):
    """A DDP module that outlives its group hangs in the teardown of some forked ranks: these leave before it."""
    pytest.importorskip("torch")
    bench = make()
    env = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    lines = []
    for start in (None, _FORKED, _FORKED):
        ranks = tuple({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2))
        world = {"MASTER_PORT": _free_port(), "WORLD_SIZE": "2"}
        order = bench.python(_DDP, env={**env, **world}, process_env=ranks)
        bench.executor.create(order)
        bench.parent()
        (bench.output / "release").touch()
        seen = bench.ended(order, _LIMIT_S)
        assert seen.facts.get("start") == start
        assert seen.exit is not None
        assert (seen.exit.cause, seen.exit.exit_code) == ("exited", 0), bench.log(order)
        lines.append(sorted(bench.log(order).splitlines()))
    assert lines[0] == lines[1] == lines[2]
    assert [line.split()[2:4] for line in lines[0][:2]] == [["0", "2"], ["1", "2"]]


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
