"""Resource limits: what enforces each of them, the watchdog for the others, and whether memory ran out."""

from __future__ import annotations

import os

from trainmaster_runtime import cgroups
from trainmaster_runtime.process import exits, procfs
from trainmaster_runtime.process.exits import ReplicaEnd

_MEMORY_LOOK_S = 0.25
_IDLE_LOOK_S = 1.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.prepare import PreparedReplica


class Limits:
    """Make it before the first process starts: out of memory is what the kernel counts from then on."""

    def __init__(self, order: RuntimeOrder, prepared: PreparedReplica) -> None:
        self._order = order
        self._prepared = prepared
        self._enforced = (*prepared.groups.limited, *order.enforced)
        self._needs_memory = order.memory_limit_bytes is not None and "memory" not in self._enforced
        self._needs_pids = "pids" not in self._enforced
        # The kernel's count before the start, where no group counts for us alone.
        self._oom_base = self._oom_kills()[0]
        # How many cores all its processes may run on, where nothing else limits their time; 0: any.
        self.cores = self._take_cores() if self.lacks_cpu else 0
        # Monotonic; None: there is nothing to watch, or it has not begun.
        self.check_at: float | None = None

    def start(self, now: float, log: JobLog) -> None:
        """Begin to watch, and say how the limit of CPUs is kept where no group keeps it. ``now`` is monotonic."""
        if self._needs_memory or self._needs_pids:
            self.check_at = now + _MEMORY_LOOK_S
        if self.lacks_cpu:
            how = "cores, not by time: %d for all its processes" % self.cores if self.cores else "nothing"
            log.say(
                "no control group here: the limit of %g CPUs is kept by %s"
                % ((self._order.cpu_limit_milli or 0) / 1000, how)
            )

    @property
    def lacks_cpu(self) -> bool:
        """Whether there is a CPU limit that neither a group nor the engine enforces."""
        return self._order.cpu_limit_milli is not None and "cpu" not in self._enforced

    def enforcers(self) -> list[str]:
        """What enforces each limit, for the replica's facts."""
        limits = ["%s by cgroup" % name for name in self._prepared.groups.limited]
        limits += ["%s by the engine" % name for name in self._order.enforced]
        if self.cores:
            limits.append("cpu by cores")
        if self._needs_memory:
            limits.append("memory by a watchdog")
        if self._needs_pids:
            limits.append("pids by a watchdog")
        return limits

    def _take_cores(self) -> int:
        """Bind this process, and so all that it starts, to as many cores as its CPUs make, rounded up."""
        cores = -(-(self._order.cpu_limit_milli or 0) // 1000)
        try:
            free = sorted(os.sched_getaffinity(0))
            if cores >= len(free):
                return len(free)
            # A random start: replicas spread over the cores without a shared list of assignments.
            start = int.from_bytes(os.urandom(4), "big") % len(free)
            os.sched_setaffinity(0, [free[(start + number) % len(free)] for number in range(cores)])
        except OSError:  # forbidden here
            return 0
        return cores

    def check(self, now: float) -> ReplicaEnd | None:
        """How the replica must end, if it uses more than it may."""
        pids = procfs.descendants(os.getpid())
        limit = self._order.memory_limit_bytes if self._needs_memory else None
        used = sum(procfs.memory_bytes(pid) for pid in pids) if limit is not None else 0
        # Each look reads all of /proc: often only where the limit may soon be met.
        self.check_at = now + (_MEMORY_LOOK_S if limit is not None and used > limit // 2 else _IDLE_LOOK_S)
        if limit is not None and used > limit:
            ending = exits.of_command(
                137, was_signalled=True, is_out_of_memory=True, memory_bytes=limit, is_disk_full=False, tail=""
            )
            ending.sentence = ending.sentence.replace("the kernel killed it", "was killed")
            return ending
        if sum(procfs.thread_count(pid) for pid in pids) > self._order.pids_limit:
            sentence = "It started more than %d processes and threads and was killed." % self._order.pids_limit
            return ReplicaEnd("exited", 137, sentence)
        return None

    def ran_out_of_memory(self, code: int | None) -> bool:
        """Whether a process that ended with ``code`` was killed for memory."""
        count, is_own_cgroup = self._oom_kills()
        return count > self._oom_base and (is_own_cgroup or code == 137)

    def _oom_kills(self) -> tuple[int, bool]:
        """How many the kernel has killed for memory so far, and whether all of those were ours."""
        if self._prepared.groups.has_memory:
            return self._prepared.groups.oom_kills(), True
        count = cgroups.own_oom_kills() if self._order.view == "as_is" else None
        return (procfs.kernel_oom_kills(), False) if count is None else (count, True)
