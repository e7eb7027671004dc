"""kill -9 on random real processes of the embedded platform while jobs run: none lost, none twice, none stuck."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

ROUNDS = 20
JOBS = 10

# Each step is one line appended by the replica; a second process of the same replica at the same time would find
# the lock taken and say so. The step number survives restarts, as a checkpoint does.
WORK = """
import fcntl, os, sys, time
from pathlib import Path
out = Path(sys.argv[1]); index = os.environ["TRAINMASTER_INDEX"]; out.mkdir(parents=True, exist_ok=True)
lock = open(out / f"lock-{index}", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (out / "TWICE").write_text(index); sys.exit(3)
state = out / f"step-{index}"
step = int(state.read_text() or 0) if state.exists() else 0
while step < int(sys.argv[2]) or not os.path.exists(sys.argv[3]):
    time.sleep(0.1); step += 1
    (out / f"tmp-{index}").write_text(str(step)); os.replace(out / f"tmp-{index}", state)
    print("step", step, flush=True)
"""


def victims(home: Path) -> dict[str, list[int]]:
    """Pids of the platform's processes and of its jobs' by kind."""
    found: dict[str, list[int]] = {"api": [], "scheduler": [], "runtime": [], "user": []}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environ = (entry / "environ").read_bytes().split(b"\0")
            text = b" ".join(words)
            ours = f"TRAINMASTER_HOME={home}".encode() in environ
            if ours and words[1:3] == [b"-m", b"api"]:
                found["api"].append(int(entry.name))
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            elif ours and words[1:3] == [b"-m", b"scheduler"]:
                found["scheduler"].append(int(entry.name))
            elif b"trainmaster_runtime" in text and str(home).encode() in text:
                found["runtime"].append(int(entry.name))
            elif any(word.startswith(b"TRAINMASTER_JOB_ID=") for word in environ) and str(home).encode() in text:
                found["user"].append(int(entry.name))
    # The API's process of streams, which it forked, ends with it.
    found["api"] = [pid for pid in found["api"] if parents[pid] not in parents]
    return found


# httpcore leaves the closing of a connection that broke in the middle of an answer to the garbage collector.
@pytest.mark.filterwarnings("ignore:.*unclosed <socket", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_twenty_rounds_of_kill_9_lose_double_and_hang_no_job(own_platform: Any, launch: Any, eventually: Any) -> None:
    seed = int(os.environ.get("TRAINMASTER_CHAOS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    rng = random.Random(seed)
    platform, home = own_platform, own_platform.home
    port = int(platform.url.rsplit(":", 1)[1])
    # Beside the home, which no job sees; the name keeps the processes recognisable.
    out, enough = home.with_name("home-chaos"), home.with_name("home-enough")
    jobs = [
        platform.client.submit(
            {
                "name": f"chaos-{number}",
                "command": [
                    sys.executable,
                    "-c",
                    WORK,
                    str(out / str(number)),
                    str(rng.randrange(20, 200)),
                    str(enough),
                ],
                "workers": 1 + number % 2,
                "max_restarts": 100,
                "grace": {"stop": 1},
            }
        ).id
        for number in range(JOBS)
    ]
    eventually(lambda: any(platform.client.get_job(j).state == "running" for j in jobs), within_s=60, what="a job runs")
    for round_number in range(ROUNDS):
        kinds = victims(home)
        kinds["supervisor"] = [platform.process.pid]
        names = [name for name, pids in sorted(kinds.items()) if pids]
        # The jobs run until the rounds are over, so that the last kill hits a busy platform as the first one does.
        assert "user" in names, f"no job runs in round {round_number}; seed {seed}"
        kind = rng.choices(names, [1 if name == "supervisor" else 3 for name in names])[0]
        pid = rng.choice(kinds[kind])
        print(f"round {round_number}: kill -9 {kind} {pid}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if kind == "supervisor":
            platform.process.wait()
            # Its children notice the death and let go of the port; then a person types `trainmaster up` again.
            eventually(lambda: not {**victims(home)}["api"], within_s=30, what="the old API is gone")
            platform = launch(home, port=port)
        time.sleep(rng.uniform(0.2, 1.5))
        eventually(
            lambda: victims(home)["user"], within_s=60, what=f"a job runs after round {round_number}; seed {seed}"
        )

    enough.write_text("")

    def all_ended() -> bool:
        return all(platform.client.get_job(job).state == "succeeded" for job in jobs)

    try:
        eventually(all_ended, within_s=180, what=f"all jobs succeed; seed {seed}")
    except BaseException:
        print([(platform.client.get_job(job).name, platform.client.get_job(job).state) for job in jobs])
        raise
    finally:
        if platform is not own_platform:
            platform.stop()
    assert not list(out.glob("*/TWICE")), f"a replica ran twice at once; seed {seed}"
