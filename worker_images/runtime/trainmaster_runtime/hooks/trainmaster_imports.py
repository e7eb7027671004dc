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
"""

import functools
import os
import sys

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
    """Wait for the import of ``jax.distributed``. Costs the others one comparison per import."""
    from importlib.machinery import PathFinder

    class Finder(object):
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "jax.distributed":
                return None
            sys.meta_path.remove(Finder)
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module):
                    execute(module)
                    module.initialize = _with_defaults(module.initialize)

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
