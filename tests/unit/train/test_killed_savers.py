"""Processes that save all the time, killed with SIGKILL at any instant: what they leave can always be gone on from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trainmaster_train as tm

pytest.importorskip("torch")

# Imports torch once and forks each victim: a process for each instant would spend seconds to import it.
VICTIMS = """
import os, random, signal, sys, time, warnings
from pathlib import Path
import torch, torch.distributed.checkpoint.filesystem
import trainmaster_train as tm

mode, instants, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
warnings.simplefilter("ignore")
chance = random.Random(seed)
folder = Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / "checkpoints"

def state_of(step):
    return {"step": torch.tensor(step), "weights": [torch.full((50_000,), float(step)) for _ in range(4)]}

def save_for_ever(first):
    saver = tm.Saver(sharded=mode == "sharded", keep=2)
    for step in range(first, 10**6):
        if mode == "sync":
            tm.save_checkpoint(state_of(step), step, keep=2)
        else:
            saver.save({**state_of(step), "weights": dict(enumerate(state_of(step)["weights"]))}, step)
        if mode == "again":  # the same step once more: the older one is moved aside
            saver.save({**state_of(step), "weights": dict(enumerate(state_of(step)["weights"]))}, step)

def read():
    if mode != "sharded":
        found = tm.resume()
        return None if found is None else (found.step, found.state)
    state = {"step": torch.tensor(0), "weights": {n: torch.zeros(50_000) for n in range(4)}}
    found = tm.resume(into=state)
    return None if found is None else (found.step, state)

def look():
    return {path.name for path in folder.iterdir()} if folder.exists() else set()

def wait_for_changes(count, victim):
    # Until the folder has changed so many times: an instant of the saver's life, however slow the machine is.
    seen, deadline = look(), time.monotonic() + 100
    while count:
        if look() != seen:
            seen, count = look(), count - 1
        if os.waitpid(victim, os.WNOHANG)[0] or time.monotonic() > deadline:
            sys.exit("the saver has ended by itself" if time.monotonic() < deadline else "the saver hangs")

reached, moments = 0, set()
for instant in range(instants):
    victim = os.fork()
    if not victim:
        try:
            save_for_ever(reached + 1)
        finally:
            os._exit(1)
    wait_for_changes(chance.randrange(1, 8), victim)
    time.sleep(chance.uniform(0, 0.005))
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    moments.add(any(name.startswith(".") for name in look()))
    found = read()
    if found is not None:
        step, state = found
        assert state["step"] == step >= reached, (step, state["step"], reached)
        tensors = state["weights"] if isinstance(state["weights"], list) else state["weights"].values()
        assert all(torch.equal(tensor, torch.full((50_000,), float(step))) for tensor in tensors), step
        reached = step
print(f"reached {reached} moments {sorted(moments)}")
"""


@pytest.mark.parametrize("mode", ["sync", "async", "again", "sharded"])
def test_what_a_killed_saver_leaves_is_always_loaded(alone: Path, mode: str) -> None:
    source = Path(tm.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", VICTIMS, mode, "12", "7"],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "is damaged" not in done.stderr
    assert int(done.stdout.split()[1]) >= 5, done.stdout
    assert "True" in done.stdout, "none was killed in the middle of a checkpoint"
