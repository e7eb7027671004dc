"""The environments that training frameworks read: torch, MPI, Horovod, MXNet, XGBoost, JAX.

A replica gets all of them at once, whichever framework its program uses.
"""

from __future__ import annotations

from trainmaster.spec import Launcher

from core.domain.contracts.context import DMLC_SCHEDULER, Member, ReplicaContext, endpoint, framework_endpoint
from core.domain.jobs.layout import ReplicaAddress


def variables(replica_context: ReplicaContext) -> dict[str, str]:
    """Variables of the replica as a whole."""
    return _torchrun(replica_context) | _mpi(replica_context) | _mxnet(replica_context)


def process_variables(replica_context: ReplicaContext, local_rank: int) -> dict[str, str]:
    """Variables of one process; empty for a replica without a rank.

    Processes of a launcher, such as torchrun, would all read the same rank: it sets their variables itself.
    ``horovodrun`` is none: see ``trainmaster_runtime.launchers``.
    """
    member = replica_context.member
    if member is None:
        return {}
    rank = member.first_rank + local_rank
    env = {"DMLC_WORKER_ID": str(rank)} if _scheduler(replica_context) is not None else {}
    if replica_context.has_launcher:
        return env
    if not replica_context.is_uai:
        env |= _torch(replica_context, member, local_rank)
    if replica_context.world.size > 1 or replica_context.spec.elastic_role is not None:
        # A single process is no gang: `horovod.run(np=2)` in it makes a gang, and would take these ranks for its own.
        env |= _horovod(replica_context, member, local_rank)
    return env | _xgboost(replica_context, rank) | _jax(replica_context, member, local_rank)


def files(replica_context: ReplicaContext) -> dict[str, str]:
    """Path -> content of the files that the runtime writes before the start: MPI's host file."""
    if not replica_context.world.members:
        return {}
    return {
        _hostfile_path(replica_context): "".join(
            f"{host} slots={slots}\n" for host, slots in _slots(replica_context).items()
        )
    }


def _torchrun(replica_context: ReplicaContext) -> dict[str, str]:
    """``PET_*`` for torchrun, should the command begin with it; for a replica without a rank only the common ones.

    https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    # With a shared store the next attempt would read the dead attempt's addresses and never start.
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if replica_context.member is None:
        return env
    root = replica_context.world.root
    if replica_context.spec.launcher is Launcher.NONE:
        env["TRAINMASTER_LAUNCHER"] = "none"
    if len(replica_context.world.members) > 1 and replica_context.has_launcher:
        env["PL_TRAINER_NUM_NODES"] = str(len(replica_context.world.members))  # as in `_torch`
        if replica_context.gpu_count == 0:
            env["ACCELERATE_USE_CPU"] = "true"
    return env | {
        "PET_NNODES": str(len(replica_context.world.members)),
        # The processes for torchrun to start, even though the platform itself starts only torchrun.
        "PET_NPROC_PER_NODE": str(max(1, replica_context.replica.processes)),
        "PET_NODE_RANK": str(replica_context.member.node_rank),
        "PET_MASTER_ADDR": root.host,
        "PET_MASTER_PORT": str(root.ports.torch),
        "PET_RDZV_ENDPOINT": endpoint(root.host, root.ports.torch),
        # The platform restarts the gang, with fresh ports: torchrun's own restarts read dead addresses.
        "PET_MAX_RESTARTS": "0",
    }


def _torch(replica_context: ReplicaContext, member: Member, local_rank: int) -> dict[str, str]:
    """The plain variables of ``torch.distributed.init_process_group("env://")``.

    None for a single process with ``launcher: none``: many scripts take NCCL and a GPU as soon as there is a ``RANK``.
    """
    if replica_context.world.size == 1 and replica_context.spec.launcher is Launcher.NONE:
        return {}
    root = replica_context.world.root
    env = {}
    if replica_context.world.size > 1 and replica_context.spec.elastic_role is None:
        # Defaults of Lightning's Trainer, which else trains in each process alone; arguments of the script win.
        env["PL_TRAINER_NUM_NODES"] = str(len(replica_context.world.members))
        env["PL_TRAINER_DEVICES"] = str(member.processes)
    if replica_context.world.size > 1 and replica_context.gpu_count == 0:
        env["ACCELERATE_USE_CPU"] = "true"  # else Accelerate ignores the ranks of processes without a GPU
    return env | {
        "MASTER_ADDR": root.host,
        "MASTER_PORT": str(root.ports.torch),
        "WORLD_SIZE": str(replica_context.world.size),
        "RANK": str(member.first_rank + local_rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(member.processes),
        "GROUP_RANK": str(member.node_rank),
    }


def _mpi(replica_context: ReplicaContext) -> dict[str, str]:
    """A host file and host lists for ``mpirun``, ``horovodrun -H``, ``perseusrun -H``.

    Every replica gets them: a launcher may run in a role of its own.
    """
    if not replica_context.world.members:
        return {}
    return {
        "OMPI_MCA_orte_default_hostfile": _hostfile_path(replica_context),
        # Where the replicas' mpirun, or ray, meet: see trainmaster_runtime.rank_zero.
        "TRAINMASTER_MPI_ENDPOINT": endpoint(replica_context.world.root.host, replica_context.world.root.ports.dmlc),
        "TRAINMASTER_HOSTS": ",".join(f"{host}:{slots}" for host, slots in _slots(replica_context).items()),
    }


def _hostfile_path(replica_context: ReplicaContext) -> str:
    return f"{replica_context.context.paths.own}/hostfile"


def _slots(replica_context: ReplicaContext) -> dict[str, int]:
    """Host -> processes, in rank order. Replicas on one host share its line: mpirun counts a host once."""
    slots: dict[str, int] = {}
    for member in replica_context.world.members:
        slots[member.address.host] = slots.get(member.address.host, 0) + max(1, member.address.processes)
    return slots


def _horovod(replica_context: ReplicaContext, member: Member, local_rank: int) -> dict[str, str]:
    """Horovod with gloo, without mpirun: the ranks, and the key-value store that rank 0's runtime serves.

    A "host" of Horovod is a replica here, even where several share a machine: each replica sees its own GPUs alone, so
    ``hvd.local_rank()`` must count inside it to be a device number. Horovod's local and cross groups meet in the store
    under ``local_<HOROVOD_HOSTNAME>`` and ``cross_<local rank>`` (horovod/common/gloo/gloo_context.cc); so the host
    name given here is the replica's own name, never 127.0.0.1, which two replicas could share.

    Off the loopback the interface (``HOROVOD_GLOO_IFACE``) is left to the runtime, which alone sees how it is called.
    """
    # Cross group: the replicas that have a process with this local rank; differs if process counts differ.
    across = [other for other in replica_context.world.members if other.processes > local_rank]
    root = replica_context.world.root
    env = {
        "HOROVOD_RANK": str(member.first_rank + local_rank),
        "HOROVOD_SIZE": str(replica_context.world.size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(member.processes),
        "HOROVOD_CROSS_RANK": str(across.index(member)),
        "HOROVOD_CROSS_SIZE": str(len(across)),
        "HOROVOD_HOSTNAME": f"{replica_context.replica.role}-{replica_context.replica.index}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": root.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(root.ports.gloo),
    }
    return env | {"HOROVOD_GLOO_IFACE": "lo"} if _is_loopback(replica_context.replica.host) else env


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "::1")


def _mxnet(replica_context: ReplicaContext) -> dict[str, str]:
    """MXNet and other ps-lite programs: scheduler, servers (our ps) and workers (our ranks).

    ps-lite needs one more process than servers and workers: the scheduler, which runs the same command and is found at
    ``DMLC_PS_ROOT_URI``. It is a replica of the role ``scheduler``; ``contract: mxnet`` adds it to the spec. A job
    without one gets none of these variables (they could only make a program wait for a scheduler that never comes), nor
    does a replica that takes no part (an evaluator).

    https://mxnet.apache.org/versions/1.9.1/api/faq/distributed_training.html
    """
    scheduler = _scheduler(replica_context)
    part = _part(replica_context)
    if scheduler is None or part is None:
        return {}
    return {
        "DMLC_ROLE": part,
        "DMLC_PS_ROOT_URI": scheduler.host,
        "DMLC_PS_ROOT_PORT": str(scheduler.ports.dmlc),
        "DMLC_NUM_SERVER": str(len(replica_context.layout.of_role("ps"))),
        "DMLC_NUM_WORKER": str(replica_context.world.size),
        "DMLC_NODE_HOST": replica_context.replica.host,
        "PS_VERBOSE": "1",
    }


def _scheduler(replica_context: ReplicaContext) -> ReplicaAddress | None:
    return next(iter(replica_context.layout.of_role(DMLC_SCHEDULER)), None)


def _part(replica_context: ReplicaContext) -> str | None:
    if replica_context.replica.role == DMLC_SCHEDULER:
        return "scheduler"
    if replica_context.replica.role == "ps":
        return "server"
    return None if replica_context.member is None else "worker"


def _xgboost(replica_context: ReplicaContext, rank: int) -> dict[str, str]:
    """XGBoost's collective: the tracker's address (the program's rank 0 starts it), and the task's number.

    https://xgboost.readthedocs.io/en/stable/tutorials/param_tuning.html and ``xgboost.collective``
    """
    root = replica_context.world.root
    return {
        "DMLC_TRACKER_URI": root.host,
        "DMLC_TRACKER_PORT": str(root.ports.dmlc),
        "DMLC_TASK_ID": str(rank),
        "DMLC_NUM_WORKER": str(replica_context.world.size),
    }


def _jax(replica_context: ReplicaContext, member: Member, local_rank: int) -> dict[str, str]:
    """What ``jax.distributed.initialize()`` reads.

    https://docs.jax.dev/en/latest/_autosummary/jax.distributed.initialize.html
    """
    env = {
        "JAX_COORDINATOR_ADDRESS": framework_endpoint(replica_context.world.root),
        "JAX_NUM_PROCESSES": str(replica_context.world.size),
        "JAX_PROCESS_ID": str(member.first_rank + local_rank),
    }
    processes = member.processes
    if processes > 1 and replica_context.gpu_count >= processes:
        # Without it each process takes every GPU of the replica, and the second one finds them taken.
        share = replica_context.gpu_count // processes
        env["JAX_LOCAL_DEVICE_IDS"] = ",".join(str(local_rank * share + i) for i in range(share))
    return env
