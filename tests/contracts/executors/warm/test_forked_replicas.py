"""Replicas that are forked from a preloaded Python see what executed ones see, end as they do, or are executed."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import pytest

from executors.base import Phase
from executors.process import WarmLimits, warm
from tests.contracts.executors.conftest import plain_order
from tests.contracts.executors.warm.bench import FORKED, LIMIT_S, SAYS, WarmBench, numbers, run

_PROBE = """
import torch
import gc, inspect, io, json, multiprocessing, os, resource, signal, subprocess, sys, threading, warnings

def status():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    names = ("Name Umask Uid Gid Groups NSpid SigQ SigPnd ShdPnd SigBlk SigIgn SigCgt CapInh CapPrm CapEff CapBnd "
             "CapAmb NoNewPrivs Seccomp Cpus_allowed_list Threads")
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
        "main": {name: repr(value).split(" at 0x")[0] if name[:2] == "__" else ""
                 for name, value in sorted(vars(main).items())
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
        "warnings": [sys.warnoptions, len(warnings.filters)], "options": sys._xoptions,
        "recursion": sys.getrecursionlimit(),
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
    observation = bench.ended(order, LIMIT_S)
    assert (observation.phase, observation.facts.get("start")) == (Phase.SUCCEEDED, start), bench.log(order)
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
    forked = probe(lasting, command, start=FORKED, **limits)
    executed = probe(lasting, command, start=None, may_start_warm=False, **limits)
    if isinstance(command, str):
        # Some shells stay between, and lead the session; a forked process needs none and leads its own, as a list's
        # does.
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
        observation = lasting.ended(order, LIMIT_S)
        assert (observation.facts.get("start") == FORKED) == (how != "executed" and text != "def")
        assert observation.exit is not None
        path = lasting.output / f"kept-{how}"
        preserved = path.read_text() if path.exists() else None
        path.unlink(missing_ok=True)
        ends[how] = (
            observation.exit.cause,
            observation.exit.exit_code,
            observation.exit.sentence,
            preserved,
            lasting.log(order),
        )
    assert ends["alone"] == ends["distributed"] == ends["executed"]
    assert (ends["executed"][3] is not None) == ("'/data/output/kept" in text)


def test_a_forked_replica_that_crashes_leaves_its_own_stack_in_its_log(lasting):
    text = "import os, signal, torch\ndef crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\ncrash()\n"
    order = lasting.python(text)
    lasting.executor.create(order)
    observation = lasting.ended(order, LIMIT_S)
    assert (observation.facts.get("start"), observation.exit.exit_code) == (FORKED, 139)
    stack = [line.split()[-1] for line in lasting.log(order).splitlines() if line.startswith('  File "')]
    assert stack == ["crash", "<module>"]


def test_children_of_one_parent_differ_in_what_is_left_to_chance(lasting):
    text = "import torch, random, multiprocessing as m\nprint(random.random(), m.current_process().authkey.hex())"
    assert len({lasting.log(run(lasting, text)) for _ in range(3)}) == 3


def test_each_process_of_a_replica_is_forked_with_its_own_rank(lasting):
    """Two ranks have the launchers of Horovod in their PATH, which the parent has not."""
    ranks = tuple({"RANK": str(rank), "HOROVOD_SIZE": "2"} for rank in range(2))
    order = run(
        lasting, "import os, torch; print(os.environ['RANK'], '/bin:' in os.environ['PATH'])", process_env=ranks
    )
    assert sorted(lasting.log(order).splitlines()) == ["[rank 0] 0 True", "[rank 1] 1 True"]


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
def test_a_program_that_could_notice_the_difference_is_executed(lasting, why, fields):
    observation = lasting.run_program(SAYS, **fields)
    assert observation.phase is Phase.SUCCEEDED, why
    assert observation.facts.get("start") != FORKED


@pytest.mark.parametrize(
    ("env", "has_parent"),
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
def test_only_what_lies_in_the_jobs_own_folders_has_no_parent(tmp_path, env, has_parent):
    folder = tmp_path / "mnt" / "data" / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    limits = WarmLimits(parents=1, memory_bytes=2**31, idle_s=60.0)
    starts = warm.WarmStarts(tmp_path / "warm", limits, python=sys.executable, runtime=tmp_path)
    order = plain_order("node", command=("python", "train.py"), env=env)

    assert (starts.pool(order, {"PATH": f"{folder}:/usr/bin"}) is not None) == has_parent
    assert starts.pool(order, {"PATH": f"/data/bin:{folder}"}) is None


@pytest.mark.parametrize(
    ("text", "files", "env", "why"),
    [
        (SAYS, {}, {"READ_BY_TORCH": "x"}, "READ_BY_TORCH differs"),
        (SAYS, {"json.py": ""}, {}, "json.py lies next to the program and has a loaded module's name"),
        ("import sys", {}, {}, "the program does not import torch itself"),
    ],
    ids=["variable", "shadow", "other"],
)
def test_a_process_that_forking_does_not_serve_is_executed_and_says_why(lasting, text, files, env, why):
    shutil.rmtree(lasting.output / "own", ignore_errors=True)
    (lasting.output / "own").mkdir()
    for name, content in files.items():
        (lasting.output / "own" / name).write_text(content)
    name = f"unseen{next(numbers)}.py"  # whatever an earlier test's file was seen to use
    (lasting.output / "own" / name).write_text(text)
    observation = lasting.run_program("", command=("python", f"/data/output/own/{name}"), env=env)
    assert (observation.phase, observation.facts["start"]) == (Phase.SUCCEEDED, f"executed: {why}")


def test_a_command_that_was_never_seen_is_forked_when_it_imports_the_framework(lasting):
    (lasting.output / "new.py").write_text("def main():\n    import torch.nn\nmain()\n")
    observation = lasting.run_program("", command="python /data/output/new.py")
    assert (observation.phase, observation.facts["start"]) == (Phase.SUCCEEDED, FORKED)


@pytest.mark.parametrize(
    "env",
    [{"ONLY_PASSED_BY": "x"}, {"HOROVOD_SIZE": "1", "HOROVOD_RANK": "0"}],
    ids=["variable", "launchers in PATH"],
)
def test_variables_that_an_import_only_walks_through_do_not_matter(lasting, env):
    observation = lasting.run_program(SAYS, env=env)
    assert (observation.phase, observation.facts["start"]) == (Phase.SUCCEEDED, FORKED)
