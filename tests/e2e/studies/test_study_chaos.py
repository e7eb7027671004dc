"""kill -9 on all of an embedded platform while a study runs: no trial lost, doubled or forgotten, each result what was
trained.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.studies import study_story as story
from tests.e2e.test_chaos import victims

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

# In an order that the seed draws. "trial": the process of one trial; "runtime": that which started it; "everything": at
# the same moment all that belongs to the platform, jobs included.
KILLS = ("platform", "platform", "scheduler", "scheduler", "api", "trial", "runtime", "everything")
# What an attempt ends with whose process was killed, or whose runtime: (kind of the end, whether the restart is
# counted, why).
OF_TRIAL = (
    "transient",
    True,
    "worker-0 was ended by SIGKILL (exit code 137): something outside the platform killed it",
)
OF_RUNTIME = ("platform", False, "The runtime of worker-0 is gone and left no exit code")


@dataclass(frozen=True, slots=True)
class Victim:
    """A trial at work. ``runtime``: its parent process. ``folder``: of its attempt."""

    trial: int
    attempt: int
    pid: int
    runtime: int
    folder: Path

    def is_reported(self) -> bool:
        """Whether its runtime has written down how it ended."""
        return not self.folder.exists() or any(self.folder.glob("*/exit.json"))


def send(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def everything(home: Path) -> list[int]:
    """Pids of all processes with ``home`` in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if str(home).encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def halted(pid: int, home: Path, out: Path) -> Victim | None:
    """This trial, stopped in the midst of its work; ``None`` where it is over, or where its study may end it."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        reported = dict(entry.decode().partition("=")[::2] for entry in entries)
        x = next((float(word.removeprefix(b"--x=")) for word in words if word.startswith(b"--x=")), 0.0)
        trial = int(reported["TRAINMASTER_TRIAL"])
        if x < story.LEARNS_FROM or not (out / f"lock-{trial}").exists():
            return None
        os.kill(pid, signal.SIGSTOP)
        if (out / f"trained-{trial}").exists():
            os.kill(pid, signal.SIGCONT)
            return None
        runtime = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        folder = home / "run" / "attempts" / reported["TRAINMASTER_ATTEMPT_ID"]
        return Victim(trial, int(reported["TRAINMASTER_ATTEMPT"]), pid, runtime, folder)
    except (OSError, KeyError):  # it has ended, or is not the script yet
        return None


def halt_one(home: Path, out: Path) -> Victim | None:
    return next((found for pid in victims(home)["user"] if (found := halted(pid, home, out))), None)


def kill_everything(home: Path, out: Path) -> list[Victim]:
    """Those that worked. First all are stopped: none may live to see, and tell, another one's end."""
    send(victims(home)["runtime"], signal.SIGSTOP)
    send(everything(home), signal.SIGSTOP)
    worked = [found for pid in victims(home)["user"] if (found := halted(pid, home, out))]
    while pids := everything(home):
        send(pids)
        time.sleep(0.05)
    return worked


def check_ends(client: Any, study: str, ends: dict[tuple[int, int], tuple[str, bool, str]], reported: str) -> None:
    """Each killed attempt, by trial and number, ended as it was killed and was followed by another; no other was
    counted.
    """
    for trial in client.list_trials(study):
        attempts = {attempt.number: attempt for attempt in client.list_attempts(trial.job)}
        assert sorted(attempts) == list(range(1, len(attempts) + 1)), reported
        wanted = {number: end for (of, number), end in ends.items() if of == trial.number}
        for number, (kind, is_counted, why) in wanted.items():
            about = f"{reported} trial {trial.number} attempt {number}: {attempts[number]}"
            assert (attempts[number].end.kind, attempts[number].is_counted) == (kind, is_counted), about
            assert why in attempts[number].end.sentence, about
            assert number + 1 in attempts, about
        counted = {number for number, attempt in attempts.items() if attempt.is_counted}
        assert counted == {number for number, end in wanted.items() if end[1]}, (
            f"{reported} trial {trial.number}: {attempts}"
        )


def check_paths(client: Any, home: Path, eventually: Callable[..., Any], reported: str) -> None:
    """All places are free again, and nothing of a trial is left."""

    def is_free() -> bool:
        (node,) = client.list_nodes()
        folders = list((home / "run" / "attempts").iterdir())
        return node.replicas == 0 and not node.used["cpu_milli"] and not victims(home)["user"] and not folders

    eventually(is_free, within_s=30, what=f"nothing is held any more; {reported}")


# httpcore leaves the closing of a connection that broke in the middle of an answer to the garbage collector.
@pytest.mark.filterwarnings("ignore:.*unclosed <socket", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_study_goes_through_kill_9_of_its_whole_platform(own_platform: Any, launch: Any, eventually: Any) -> None:
    seed = int(os.environ.get("TRAINMASTER_CHAOS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    rng = random.Random(seed)
    platform, home = own_platform, own_platform.home
    port = int(platform.url.rsplit(":", 1)[1])
    # Beside the home, which no job sees; the name keeps the processes recognisable.
    out, enough, code = (home.with_name(f"home-{name}") for name in ("out", "enough", "code"))
    study = story.begin(platform.client, out, enough, code)
    ends: dict[tuple[int, int], tuple[str, bool, str]] = {}

    def is_over() -> bool:
        return bool(platform.client.get_study(study).state != "running")

    try:
        for kind in rng.sample(KILLS, len(KILLS)):
            begun = story.begun(out)
            eventually(
                lambda known=begun: story.begun(out) >= min(story.TRIALS, known + 1),
                within_s=60,
                what=f"another trial begins before the {kind} is killed; seed {seed}",
            )
            time.sleep(rng.uniform(0, 1.5))
            found = victims(home)
            print(f"kill -9 {kind}, {begun} trials had begun;", {name: len(pids) for name, pids in found.items()})
            if kind in ("scheduler", "api"):
                send(found[kind])
                continue
            if kind in ("trial", "runtime"):
                victim = eventually(
                    lambda: halt_one(home, out),
                    within_s=60,
                    what=f"a trial is at work, to lose its {kind}; seed {seed}",
                )
                print(victim)
                if kind == "runtime":
                    send([victim.runtime])
                    ends[victim.trial, victim.attempt] = OF_RUNTIME
                else:
                    send([victim.pid])
                    ends[victim.trial, victim.attempt] = OF_TRIAL
                    eventually(victim.is_reported, within_s=30, what=f"the runtime tells of {victim}; seed {seed}")
                continue
            if kind == "everything":
                worked = kill_everything(home, out)
                print(worked)
                ends.update({(victim.trial, victim.attempt): OF_RUNTIME for victim in worked})
            else:
                send([platform.process.pid, *found["api"], *found["scheduler"]])
            platform.process.wait()
            eventually(lambda: not victims(home)["api"], within_s=30, what="the old API is gone")
            time.sleep(rng.uniform(0, 1))
            platform = launch(home, port=port)
        assert not is_over(), f"the study ended before its platform was killed for the last time; seed {seed}"
        enough.touch()
        eventually(is_over, within_s=60, what=f"the study ends; seed {seed}")
        story.check(platform.client, study, out, f"seed {seed}")
        check_ends(platform.client, study, ends, f"seed {seed}")
        check_paths(platform.client, home, eventually, f"seed {seed}")
    finally:
        if platform is not own_platform:
            platform.end()
