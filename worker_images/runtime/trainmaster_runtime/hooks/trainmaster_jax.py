# Read by whatever Python the user's code runs on: no annotations.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN205, INP001
"""Lets ``jax.distributed.initialize()`` find the gang without an argument.

JAX reads the coordinator's address from the environment, and nothing else: the number of processes and one's own it
asks of Slurm, Open MPI, Kubernetes or a TPU alone. So they are filled in from JAX_NUM_PROCESSES and JAX_PROCESS_ID when
JAX is imported and a program calls it without them. A program that names any of them gets what it names.
"""

import functools
import os
import sys


def watch():
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
