"""A user of Kubeflow's TrainerClient, unmodified; KUBECONFIG names the platform. Prints what it saw as JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from kubeflow.trainer import CustomTrainer, HuggingFaceDatasetInitializer, Initializer, TrainerClient
from kubeflow.trainer.options import ActiveDeadlineSeconds, Labels, Name

WAIT_S = 240


def allreduce(scale, text):
    """Runs on the platform, without anything of this file."""
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + 1) * scale])
    dist.all_reduce(value)
    job_name = "a name of the function's own"
    # Each line in one piece: two processes write into one pipe, and Python does not buffer here.
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {value.item()} {text} {job_name}\n", end="", flush=True)
    print(f"node {os.environ['GROUP_RANK']}\n", end="", flush=True)
    dist.destroy_process_group()


def fail():
    raise ValueError("no such learning rate")


def sleep():
    import time

    print("asleep", flush=True)
    time.sleep(600)


def step_of(step: Any) -> dict[str, Any]:
    return {"name": step.name, "status": step.status, "device": step.device, "devices": step.device_count}


def refusal(call: Any) -> str:
    """What the server said to a request that it refused."""
    try:
        call()
    except RuntimeError as error:
        cause: Any = error.__cause__
        reported = json.loads(cause.body)
        return f"{cause.status} {reported['kind']} {reported['reason']}: {reported['message']}"
    return "served"


def main() -> None:
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("kubeflow").addHandler(handler)
    client = TrainerClient()
    seen: dict[str, Any] = {
        "warnings": warnings,
        "runtimes": {runtime.name: runtime.trainer.framework for runtime in client.list_runtimes()},
        "runtime": client.get_runtime("torch-distributed").name,
    }
    trained = {}
    for name, nodes, processes in (("alone", 1, "1"), ("pair", 2, "2")):
        trainer = CustomTrainer(
            func=allreduce,
            func_args={"scale": 2, "text": "'quoted'"},
            num_nodes=nodes,
            resources_per_node={"cpu": "500m"},
            env={"PET_NPROC_PER_NODE": processes},
        )
        options = [Name(name), Labels({"team": "vision"}), ActiveDeadlineSeconds(600)]
        client.train(trainer=trainer, options=options)
        log = list(client.get_job_logs(name, follow=True)) or list(wait_for_log(client, name))
        done = client.wait_for_job_status(name, timeout=WAIT_S)
        logs = {step.name: list(client.get_job_logs(name, step=step.name)) for step in done.steps}
        trained[name] = {
            "status": done.status,
            "nodes": done.num_nodes,
            "runtime": done.runtime.name,
            "steps": sorted((step_of(step) for step in done.steps), key=lambda step: step["name"]),
            "followed": log,
            "logs": logs,
            "events": [[event.involved_object_kind, event.reason] for event in client.get_job_events(name)],
        }
    seen["trained"] = trained
    seen["listed"] = sorted(job.name for job in client.list_jobs())
    seen["again"] = refusal(lambda: client.train(trainer=CustomTrainer(func=fail), options=[Name("pair")]))

    client.train(runtime="python-distributed", trainer=CustomTrainer(func=fail), options=[Name("broken")])
    seen["broken"] = client.wait_for_job_status("broken", status={"Failed"}, timeout=WAIT_S).status
    seen["traceback"] = list(client.get_job_logs("broken"))[-1]

    client.train(runtime="python-distributed", trainer=CustomTrainer(func=sleep), options=[Name("sleeper")])
    client.wait_for_job_status("sleeper", status={"Running"}, timeout=WAIT_S)
    followed = client.get_job_logs("sleeper", follow=True)
    seen["asleep"] = next(line for line in followed if line == "asleep")
    followed.close()
    client.delete_job("sleeper")
    client.delete_job("alone")
    seen["left"] = sorted(job.name for job in client.list_jobs())
    seen["gone"] = refusal(lambda: client.get_job("sleeper"))
    seen["initializer"] = refusal(
        lambda: client.train(
            trainer=CustomTrainer(func=fail), initializer=Initializer(dataset=HuggingFaceDatasetInitializer("hf://a/b"))
        )
    )
    json.dump(seen, sys.stdout)


def wait_for_log(client: TrainerClient, name: str) -> Any:
    """The client gives no line of a pod that has not begun."""
    client.wait_for_job_status(name, status={"Running", "Complete"}, timeout=WAIT_S, polling_interval=1)
    return client.get_job_logs(name, follow=True)


if __name__ == "__main__":
    main()
