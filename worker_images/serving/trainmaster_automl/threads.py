"""Limits the threads of a trial's libraries, before they are imported: they read the limit only then."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Iterator, Optional

from trainmaster_automl.options import TrialOptions

# OpenMP's variable; OpenBLAS, MKL and torch read it, too.
VARIABLE = "OMP_NUM_THREADS"
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def limit_threads(options: TrialOptions) -> Optional[int]:
    """Limit the threads to this trial's share of the CPUs: otherwise concurrent trials would oversubscribe the cores.

    Returns the limit; ``None`` if the variable is set already, by the user or from the trial's own CPUs.
    """
    if os.environ.get(VARIABLE):
        return None
    # The final run is alone.
    trials = 1 if options.is_final else max(1, options.parallel)
    threads = max(1, usable_cpus() // trials)
    os.environ[VARIABLE] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:  # a warm start has already imported it
        torch.set_num_threads(threads)
    return threads


def usable_cpus(groups: Path = _CGROUP_ROOT, membership: Path = Path("/proc/self/cgroup")) -> int:
    """CPUs that this process may use, by affinity and by the quotas of its control group and its ancestors; at least
    1.
    """
    try:
        found = float(len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):  # not Linux
        found = float(os.cpu_count() or 1)
    return max(1, int(min([found, *_quotas(groups, membership)])))


def _quotas(groups: Path, membership: Path) -> Iterator[float]:
    """https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files, and ``cpu.cfs_quota_us`` of the older
    version.
    """
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root = groups
        elif "cpu" in controllers.split(","):
            root = groups / "cpu"
        else:
            continue
        inside = Path(path.strip("/"))
        for folder in (root / part for part in (inside, *inside.parents)):
            words = (
                _text(folder / "cpu.max").split()
                or (_text(folder / "cpu.cfs_quota_us") + _text(folder / "cpu.cfs_period_us")).split()
            )
            if len(words) == 2 and words[0] not in ("max", "-1"):
                yield int(words[0]) / int(words[1])


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
