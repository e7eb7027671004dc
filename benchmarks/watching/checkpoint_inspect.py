"""Looks into a checkpoint of 2 GB as the API does: the time to the list of its tensors, and time and memory for the
figures of all of them and for a difference of two. ``python3 dev.py bench checkpoint_inspect [--gigabytes 2] [--rounds
7]``.

The list is timed over the application's own HTTP interface, to the end of the answer: cold, when the process that looks
has to be started for it, and warm, when one waits; another checkpoint each time, so that no answer is a kept one.
Memory is the peak of that process, its code included, and what the API's own process grew by. Beside it, interleaved:
what ``torch.load(mmap=True, weights_only=True)`` takes to give the same list, in a process of its own that imports
torch before.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from pydantic import SecretStr
from starlette.testclient import TestClient

from api.app.factory import create_app
from core.db.bootstrap import bootstrap
from core.db.engine import unit_of_work
from core.db.tables import Base
from core.settings import Settings
from core.wakeups import NoWakeup

PEER = """
import time, torch, sys
began = time.monotonic()
state = torch.load(sys.argv[1], map_location="cpu", weights_only=True, mmap=True)
names = [(name, tuple(value.shape), value.dtype) for name, value in state["model"].items()]
print(time.monotonic() - began)
"""


def write(path: Path, gigabytes: float, seed: int) -> None:
    """A transformer's weights and the two moments of its optimizer, a third each."""
    torch.manual_seed(seed)
    width = 1024
    layers = max(1, round(gigabytes * 2**30 / 3 / (12 * width * width * 4)))
    shapes = {
        "attention.in": (3 * width, width),
        "attention.out": (width, width),
        "mlp.in": (4 * width, width),
        "mlp.out": (width, 4 * width),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    model = {f"layers.{n}.{name}": torch.randn(shape) * 0.02 for n in range(layers) for name, shape in shapes.items()}
    state = {
        number: {"step": torch.tensor(float(seed)), "exp_avg": value * 0.1, "exp_avg_sq": value**2}
        for number, value in enumerate(model.values())
    }
    groups = [{"lr": 1e-4, "params": list(range(len(model)))}]
    torch.save({"model": model, "optimizer": {"state": state, "param_groups": groups}, "step": seed}, path)


class Api:
    """The application over SQLite in ``home``, with one job."""

    def __init__(self, home: Path) -> None:
        settings = Settings(home=home, secret_key=SecretStr("k" * 40), executor="fake", test_fake_executor=True)
        self.app = create_app(settings, wakeup=NoWakeup())
        sessions = self.app.state.context.sessions
        (home / "volumes").mkdir()
        Base.metadata.create_all(sessions.kw["bind"])
        with unit_of_work(sessions) as session:
            made = bootstrap(session, settings, datetime.now(UTC))
        self.client = TestClient(self.app, headers={"Authorization": f"Bearer {made.admin_token}"})
        job = self.ask("POST", "/jobs", json={"spec": {"name": "bench", "command": "true"}})
        self.job = job["id"]
        volume = self.ask("GET", f"/volumes/{job['output'].partition('/')[0]}")
        self.output = Path(volume["root"]) / job["output"].partition("/")[2]

    def ask(self, method: str, path: str, **more: Any) -> Any:
        answer = self.client.request(method, f"/api/v1{path}", **more)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def checkpoint(self, part: str, **params: Any) -> Any:
        return self.ask("GET", f"/jobs/{self.job}/checkpoints/{part}", params={"limit": 1000, **params})

    def pages(self, part: str, **params: Any) -> tuple[int, float]:
        """All pages: how many items, and the seconds until the first of them."""
        began, first, count, cursor = time.monotonic(), 0.0, 0, None
        while True:
            page = self.checkpoint(part, **params, **({"cursor": cursor} if cursor else {}))
            first = first or time.monotonic() - began
            count += len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return count, first

    def inspector_pid(self) -> int | None:
        idle = self.app.state.checkpoint_inspector.inspectors._idle  # noqa: SLF001
        return idle[-1].pid if idle else None


def memory_mib(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{what}:"))


def summarise(values: list[float], unit: str, digits: int = 3) -> str:
    return f"{statistics.median(values):.{digits}f} {unit} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep-rounds", type=int, default=3, help="rounds of figures and of differences")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        api = Api(Path(folder))
        files = [api.output / "checkpoints" / f"step-{number}.pt" for number in (1, 2)]
        files[0].parent.mkdir(parents=True)
        for number, path in enumerate(files, 1):
            # In a process of its own: what writing leaves in memory is none of the API's.
            written = multiprocessing.get_context("fork").Process(target=write, args=(path, given.gigabytes, number))
            written.start()
            written.join()
        count = len(torch.load(files[0], mmap=True)["model"]) * 4
        print(f"{count} tensors, {files[0].stat().st_size / 2**30:.2f} GiB each of 2 checkpoints")
        cold, warm, peer = [], [], []
        before = memory_mib(os.getpid(), "VmRSS")
        for number in range(2 * given.rounds):
            path = files[number % 2]
            os.utime(path, ns=(number, number))  # another state of the file: nothing kept is of use
            is_cold = number < given.rounds
            if is_cold:
                api.app.state.checkpoint_inspector.close()
            began = time.monotonic()
            page = api.checkpoint("tensors", path=f"checkpoints/{path.name}")
            (cold if is_cold else warm).append(time.monotonic() - began)
            assert page["tensor_count"] == count
            if is_cold:
                run = subprocess.run(
                    [sys.executable, "-c", PEER, str(path)], capture_output=True, text=True, check=True
                )
                peer.append(float(run.stdout))
        print("list, process started for it:", summarise(cold, "s"))
        print("list, process waits:         ", summarise(warm, "s"))
        print("torch.load(mmap) imported:   ", summarise(peer, "s"))
        whole, first, moved, peaks = [], [], [], []
        for number in range(given.keep_rounds):
            for path in files:
                os.utime(path, ns=(10_000 + number, 10_000 + number))
            api.app.state.checkpoint_inspector.close()
            began = time.monotonic()
            items, early = api.pages("statistics", path="checkpoints/step-1.pt")
            whole.append(time.monotonic() - began)
            first.append(early)
            assert items == count
            began = time.monotonic()
            items, _ = api.pages("diff", path="checkpoints/step-1.pt", other="checkpoints/step-2.pt")
            moved.append(time.monotonic() - began)
            assert items == count
            peaks.append(memory_mib(api.inspector_pid() or os.getpid(), "VmHWM"))
        print("figures of all tensors:      ", summarise(whole, "s", 1))
        print("  the first page of them:    ", summarise(first, "s", 1))
        print("difference of two:           ", summarise(moved, "s", 1))
        print("peak of the process that looks:", summarise(peaks, "MiB", 0))
        print(f"the API's own process grew by: {memory_mib(os.getpid(), 'VmRSS') - before:.0f} MiB")
        api.app.state.checkpoint_inspector.close()


if __name__ == "__main__":
    main()
