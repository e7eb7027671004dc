"""How long a training stands still for a checkpoint of 400 MB: torch.save, torch DCP's async_save, this library's
Saver.

    python3 dev.py bench checkpoint_stall [--rounds 7] [--megabytes 400] [--json]

One process trains a model of that size (one forward and backward pass between two checkpoints) and saves in turn with
each. Counted is the time that the training thread loses: the call, and with ``optimizer=`` also what optimizer.step()
waits for the copy. Each save begins when the one before is on the disk; DCP's memory is kept from save to save too
(``DefaultStager``). ``lost in all`` adds what the next step was slower than one without a checkpoint beside it, ``CPU``
is what the training thread computed during the stall: where others use the machine too, it says more than the wall
clock. ``memory copy alone`` copies the same tensors to memory that is there already: nothing that copies before it
returns can take less.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.support.embedded import command_line, show

STALL_AGAINST_TORCH_SAVE = 0.1
STALL_AGAINST_DCP = 1.0
COPY = "memory copy alone"


def main() -> None:
    parser = command_line(__doc__, rounds=7)
    parser.add_argument("--megabytes", type=int, default=400, help="of the state: parameters and SGD's momentum")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        os.environ["TRAINMASTER_OUTPUT_DIR"] = folder
        stalls, lost, computed = measure(Path(folder), options)
    median = {name: statistics.median(values) for name, values in stalls.items()}
    cpu = {name: statistics.median(values) for name, values in computed.items()}
    saver = median["Saver, optimizer="]
    verdict = {
        "against torch.save": round(saver / median["torch.save"], 3),
        "against DCP async_save": round(saver / median["DCP async_save"], 3),
        "Saver without optimizer= against torch.save": round(median["Saver"] / median["torch.save"], 3),
        "the same, CPU": round(cpu["Saver"] / cpu["torch.save"], 3),
        "memory copy alone against torch.save": round(median[COPY] / median["torch.save"], 3),
        "the same copy, CPU": round(cpu[COPY] / cpu["torch.save"], 3),
        "wanted_at_most": [STALL_AGAINST_TORCH_SAVE, STALL_AGAINST_DCP],
        "is_reached": saver <= STALL_AGAINST_TORCH_SAVE * median["torch.save"]
        and saver <= STALL_AGAINST_DCP * median["DCP async_save"],
    }
    rows = {f"{name}, stall": values for name, values in stalls.items()}
    rows |= {f"{name}, CPU": values for name, values in computed.items()}
    rows |= {f"{name}, lost in all": values for name, values in lost.items()}
    show(f"stall of a checkpoint of {options.megabytes} MB", rows, verdict, as_json=options.json)


Seconds = dict[str, list[float]]


def measure(folder: Path, options: argparse.Namespace) -> tuple[Seconds, Seconds, Seconds]:
    """What each way cost in each round: the stall, what was lost in all, and the CPU time of the stall."""
    import torch
    import trainmaster_train as tm
    from torch.distributed.checkpoint import async_save
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from trainmaster_train import steps

    torch.set_num_threads(options.threads)
    # Half of it are parameters, half the optimizer's momentum.
    width = int((options.megabytes * 1e6 / 2 / 4 / 8) ** 0.5)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = torch.randn(options.batch, width)

    def train() -> float:
        started = time.perf_counter()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        return time.perf_counter() - started

    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
    )
    saver = tm.Saver(directory=folder / "ours", keep=1)
    number = 0
    timer = steps.timer()

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def by_torch() -> Callable[[], Any]:
        torch.save(state(), folder / "state.pt")
        return lambda: None

    def by_dcp() -> Callable[[], Any]:
        target = folder / "dcp"
        shutil.rmtree(target, ignore_errors=True)
        future = async_save(state(), checkpoint_id=target, async_stager=stager, no_dist=True)
        return future.result

    def by_saver() -> Callable[[], Any]:
        saver.save(state(), number)
        return saver.wait

    def by_saver_and_optimizer() -> Callable[[], Any]:
        saver.save(state(), number, optimizer=optimizer)
        return saver.wait

    def tensors(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [tensor for inner in value.values() for tensor in tensors(inner)]
        return [value] if isinstance(value, torch.Tensor) else []

    train()  # makes the optimizer's state
    memory = [torch.zeros_like(tensor) for tensor in tensors(state())]

    def by_copy() -> Callable[[], Any]:
        for target, source in zip(memory, tensors(state()), strict=True):
            target.copy_(source)
        return lambda: None

    methods = {
        COPY: by_copy,
        "torch.save": by_torch,
        "DCP async_save": by_dcp,
        "Saver": by_saver,
        "Saver, optimizer=": by_saver_and_optimizer,
    }
    stalls: Seconds = {name: [] for name in methods}
    lost: Seconds = {name: [] for name in methods}
    computed: Seconds = {name: [] for name in methods}
    for round_number in range(-1, options.rounds):  # the first round makes all memory and does not count
        for name, save in methods.items():
            train()
            quiet = statistics.median(train() for _ in range(3))
            number += 1
            with timer.step():
                with timer.part(steps.CHECKPOINT):
                    before = time.thread_time()
                    finish = save()
                    cpu = time.thread_time() - before
                train()
            stall = timer.last.parts[steps.CHECKPOINT]  # with what optimizer.step() waited for
            finish()
            flush(folder)  # the next one shall not wait for this one's pages
            if round_number >= 0:
                stalls[name].append(stall)
                computed[name].append(cpu)
                lost[name].append(max(stall, timer.last.seconds - quiet))
    saver.close()
    return stalls, lost, computed


def flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


if __name__ == "__main__":
    main()
