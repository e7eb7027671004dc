# Read by whatever Python the user's code runs on: no annotations.
# mypy: ignore-errors
# ruff: noqa: ANN001, ARG004, ANN002, ANN003, ANN201, ANN202, ANN205, INP001
"""What frameworks need of the platform at their import.

``jax.distributed.initialize()`` finds the gang without an argument. JAX reads the coordinator's address from the
environment, and nothing else: the number of processes and one's own it asks of Slurm, Open MPI, Kubernetes or a TPU
alone. So they are filled in from JAX_NUM_PROCESSES and JAX_PROCESS_ID when JAX is imported and a program calls it
without them. A program that names any of them gets what it names.

Lightning takes any process with LOCAL_RANK for the work of a launcher, and starts no processes itself: with `devices=2`
it would wait for the second for ever. In a world of a single process it gets no ranks.

``ray.init()`` in a gang of several replicas would start a Ray cluster in each of them. A program that is about to do
this is started again by ``ray symmetric-run``: once, in rank 0's replica, in a cluster of all replicas. A program that
names a cluster, or that has joined torch's process group before, is left alone.
"""

import functools
import json
import os
import sys
import time

_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def watch_lightning():
    """Take the ranks away when Lightning is imported."""

    class Finder(object):
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name in _LIGHTNING:
                sys.meta_path.remove(Finder)
                for variable in _RANK_VARIABLES:
                    os.environ.pop(variable, None)

    sys.meta_path.insert(0, Finder)


def watch_jax():
    """Wait for the import of ``jax.distributed``."""

    def change(module):
        module.initialize = _with_defaults(module.initialize)

    after_import("jax.distributed", change)


def watch_ray():
    """Wait for the import of ``ray``."""

    def change(module):
        module.init = _in_cluster(module, module.init)

    after_import("ray", change)


def after_import(awaited, change):
    """Call ``change(module)`` once ``awaited`` is imported. Costs other imports one comparison."""
    from importlib.machinery import PathFinder

    class Finder(object):
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != awaited:
                return None
            sys.meta_path.remove(Finder)
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module):
                    execute(module)
                    change(module)

                spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder)


def _with_defaults(initialize):
    @functools.wraps(initialize)
    def wrapper(coordinator_address=None, num_processes=None, process_id=None, *args, **more):
        asks_cluster_detection = more.get("cluster_detection_method") is not None
        if coordinator_address is None and num_processes is None and process_id is None and not asks_cluster_detection:
            coordinator_address = os.environ.get("JAX_COORDINATOR_ADDRESS")
            num_processes = int(os.environ["JAX_NUM_PROCESSES"])
            process_id = int(os.environ["JAX_PROCESS_ID"])
        return initialize(coordinator_address, num_processes, process_id, *args, **more)

    return wrapper


# Arguments of ray.init() that describe the node, and the options of `ray start` for the same.
_NODE_ARGUMENTS = {
    "num_cpus": "--num-cpus",
    "num_gpus": "--num-gpus",
    "object_store_memory": "--object-store-memory",
    "resources": "--resources",
}


def _in_cluster(ray, init):
    @functools.wraps(init)
    def wrapper(address=None, *args, **more):
        if address not in (None, "auto"):
            return init(address, *args, **more)
        if os.environ.get("TRAINMASTER_LAUNCHED") != "ray":
            if not os.environ.get("RAY_ADDRESS"):
                _start_again(more)
            return init(address, *args, **more)
        # In an existing cluster Ray refuses arguments that describe a node.
        context = init(address, *args, **{name: more[name] for name in more if name not in _NODE_ARGUMENTS})
        end = time.monotonic() + 120.0
        while _alive_nodes(ray) < int(os.environ.get("TRAINMASTER_RAY_NODES", "1")) and time.monotonic() < end:
            time.sleep(0.2)  # noqa: TID251 (nodes that Ray alone knows)
        return context

    return wrapper


def _alive_nodes(ray):
    return sum(1 for node in ray.nodes() if node.get("Alive"))


def _start_again(arguments):
    """Execute the program by `ray symmetric-run`. Returns where it cannot be, or must not be, executed again."""
    torch = sys.modules.get("torch.distributed")
    multiprocessing = sys.modules.get("multiprocessing")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    try:
        from trainmaster_runtime import launchers
    finally:
        sys.path.pop(0)
    words = launchers.own_command()
    if len(words) < 2 or "-" in words or sys.flags.interactive:
        return  # its text came by stdin
    options = []
    for name, option in _NODE_ARGUMENTS.items():
        if arguments.get(name) is not None:
            value = arguments[name]
            options.append("%s=%s" % (option, json.dumps(value) if name == "resources" else int(value)))
    sys.stdout.flush()
    sys.stderr.flush()
    start = [sys.executable, "-I", "-S", launchers.rank_zero_path(), launchers.RAY_NAME, "symmetric-run"]
    os.execv(sys.executable, start + options + ["--", sys.executable] + words[1:])  # noqa: S606
