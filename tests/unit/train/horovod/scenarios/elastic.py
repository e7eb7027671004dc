"""Gangs that break or change, and go on."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
import trainmaster_train.horovod.torch as hvd

from scenarios.models import model


def elastic():
    """Rank 1 of the first gang fails once; all meet anew, at another port, and go on from the last commit."""
    from trainmaster_train.horovod.torch import elastic as hvd_elastic

    ports = iter(os.environ["NEXT_PORTS"].split(","))
    rejoined = []

    def rejoin():
        os.environ["MASTER_PORT"] = next(ports)
        rejoined.append(1)
        return True

    is_changing = []
    hvd_elastic.register_rejoin(rejoin, lambda: bool(is_changing))
    hvd.init()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sampler = hvd_elastic.ElasticSampler(range(10), shuffle=False)
    state = hvd_elastic.TorchState(model=net, optimizer=optimizer, sampler=sampler, step=0)
    resets = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])
    steps = []

    @hvd_elastic.run
    def work(state):
        while state.step < 4:
            hvd.allreduce(torch.ones(1), name="step")
            steps.append(state.step)
            if state.step == 0:
                state.sampler.record_batch(0, 2)
            state.step += 1
            if len(steps) == 2:
                # Not committed: this step is done again.
                raise hvd.HorovodInternalError("made up")
            state.commit()
            if state.step == 3 and not is_changing and hvd.rank() == 1 and len(rejoined) == 1:
                is_changing.append(1)
                continue
            is_changing.clear()
        return sorted(state.sampler.remaining_indices)

    left = work(state)
    hvd_elastic.register_rejoin(None)
    return {"steps": steps, "resets": resets, "rejoined": len(rejoined), "left": left, "size": hvd.size()}


def worlds():
    """Rank 0 of three is killed when one of the others has committed and one has not; later a fourth process joins.

    The world files are the platform's part; who is about to die, and who is there when one waits to join, writes them.
    """
    from trainmaster_train import elastic

    signal.alarm(200)  # whoever waits for one that failed ends, too
    number = int(os.environ.pop("RANK"))
    folder = Path(os.environ["WORLDS"])
    first, second, third = os.environ["PORTS"].split(",")

    def put(name, results):
        new = folder / str(name) / "world.json.new"
        new.parent.mkdir(exist_ok=True)
        new.write_text(json.dumps(results))
        new.replace(new.with_name("world.json"))

    def unsupported_attribute(world, port, order, names=None):
        for rank, name in enumerate(order):
            if name not in (names or order):
                continue
            own = {"RANK": rank, "WORLD_SIZE": len(order), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
            own |= {"HOROVOD_RANK": rank, "HOROVOD_SIZE": len(order), "HOROVOD_HOSTNAME": f"worker-{name}"}
            own |= {"HOROVOD_LOCAL_RANK": 0, "HOROVOD_LOCAL_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            results = {"world": world, "processes": [{key: str(value) for key, value in own.items()}]}
            put(name, results)
            if world == 1 and name == number:
                os.environ.update(results["processes"][0], TRAINMASTER_WORLD="1")

    os.environ.update(TRAINMASTER_WORLD_FILE=f"{folder}/{number}/world.json", LOCAL_RANK="0", TRAINMASTER_WORLD="0")
    if number < 3:
        unsupported_attribute(1, first, [0, 1, 2], [number])
    else:
        put(3, {"world": 0, "processes": [{}]})
    hvd.init()
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters(), lr=0.01), net.named_parameters())
    state = hvd.elastic.TorchState(model=net, optimizer=optimizer, step=0)
    steps = []

    @hvd.elastic.run
    def train(state):
        while state.step < 9:
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            state.step += 1
            steps.append([state.step, hvd.rank(), hvd.size(), elastic.own_world().number])
            if steps[-1] == [3, 0, 3, 1]:
                unsupported_attribute(2, second, [1, 2])
                os.kill(os.getpid(), signal.SIGKILL)
            if steps[-1] == [3, 1, 3, 1]:
                raise hvd.HorovodInternalError("seen before the commit")
            if steps[-1] == [5, 0, 2, 2]:
                wait_for_file(folder / "3" / "keeps-0")
                unsupported_attribute(3, third, [1, 2, 3])
            state.commit()
        return "done"

    results = train(state)
    weights = hvd.allgather(torch.cat([p.detach().reshape(1, -1) for p in net.parameters()], 1))
    return {"result": results, "steps": steps, "equal": bool((weights == weights[0]).all()), "pid": os.getpid()}


def wait_for_file(path):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
