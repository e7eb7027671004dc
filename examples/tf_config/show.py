"""Prints what a replica sees: who it is, who its peers are, and the environment of every framework. Needs nothing but
Python.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0  # for peers that are still being started

# Variables by the framework that reads them, as prefixes; the rest of the environment is the machine's own.
FRAMEWORKS = {
    "Trainmaster": ("TRAINMASTER_",),
    "TensorFlow": ("TF_CONFIG",),
    "torch": ("MASTER_", "WORLD_SIZE", "RANK", "LOCAL_", "GROUP_RANK", "PET_"),
    "Vertex AI": ("CLUSTER_SPEC", "AIP_", "CLOUD_ML_"),
    "Horovod": ("HOROVOD_",),
    "MPI": ("OMPI_",),
    "MXNet, XGBoost": ("DMLC_", "PS_VERBOSE"),
    "JAX": ("JAX_",),
    "devices": ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
}


def main() -> None:
    print(f"Python {sys.version.split()[0]} in {Path.cwd()}, arguments {sys.argv[1:]}")
    show_cluster(os.environ.get("TF_CONFIG", ""))
    for framework, prefixes in FRAMEWORKS.items():
        found = {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}
        if found:
            print(f"\n{framework}")
        for name, value in found.items():
            print(f"  {name}={value}")
    print()
    show_folder(Path(os.environ.get("TRAINMASTER_DATA_DIR", "/data/data")))
    output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "/data/output"))
    show_folder(output)
    if output.is_dir():
        wait_for_peers(output)


def show_cluster(tf_config: str) -> None:
    """TF_CONFIG as a table, with an arrow at this replica."""
    if not tf_config:
        print("TF_CONFIG is not set: this job has a single replica.")
        return
    config = json.loads(tf_config)
    task = config["task"]
    print(f"I am {task['type']} {task['index']} of")
    for role, hosts in config["cluster"].items():
        for index in indices(hosts):
            is_this_task = (role, int(index)) == (task["type"], task["index"])
            print(f"  {'→' if is_this_task else ' '} {role} {index}: {hosts[index]}")


def indices(hosts: Any) -> Any:
    """What to index ``hosts`` by. In a sparse cluster the worker's entry maps its index to its address."""
    return hosts if isinstance(hosts, dict) else range(len(hosts))


def wait_for_peers(output: Path) -> None:
    """Leave a mark in the output, which all replicas share. The job ends with its chief (without one, its workers):
    let those wait until all others were here, or the platform would stop a ps before it could print anything.
    """
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return
    marks = output / "seen"
    marks.mkdir(exist_ok=True)
    (marks / f"{config['task']['type']}-{config['task']['index']}").touch()
    names = {f"{role}-{index}" for role, hosts in config["cluster"].items() for index in indices(hosts)}
    deadline_s = time.monotonic() + PATIENCE_S
    while not names <= {mark.name for mark in marks.iterdir()} and time.monotonic() < deadline_s:
        time.sleep(0.05)


def show_folder(folder: Path) -> None:
    if not folder.is_dir():
        print(f"{folder} is not there")
        return
    names = sorted(path.name for path in folder.iterdir())
    print(f"{folder} ({'writable' if os.access(folder, os.W_OK) else 'read-only'}): {', '.join(names) or 'empty'}")


if __name__ == "__main__":
    main()
