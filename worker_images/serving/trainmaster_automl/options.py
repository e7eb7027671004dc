"""Options of a trial: those of the study in one environment variable, the trial's point as arguments;
and the limit of its threads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Optional, Sequence

VARIABLE = "AUTOML_OPTIONS"
_NOT_IN_VARIABLE = ("data", "output", "is_final", "parameters", "started")
# Share of the time limit that is used: the rest is for start-up, which the trial does not see, and for its end.
_USED_SHARE = 0.75

# OpenMP's variable; OpenBLAS, MKL and torch read it, too.
THREADS_VARIABLE = "OMP_NUM_THREADS"
_CGROUP_ROOT = Path("/sys/fs/cgroup")


class DataProblem(Exception):
    """The data cannot be used for training; the message says what is wrong, and what to do."""


@dataclass(frozen=True)
class TrialOptions:
    """``file``: the table in the data's folder; empty: all tables. ``parameters``: the trial's point, including
    ``family``.

    ``test_fraction``: share of rows for the final test. ``folds``: 0: chosen by the number of rows. ``is_final``: the
    final run, which tests and saves the best point. ``weights``: file of a backbone, for images. ``keep``: columns to
    use even if profiling finds them uninformative. ``seconds``: time limit, after which the trial is stopped and counts
    as failed; 0: none. ``parallel``: number of concurrent trials. ``started``: by the monotonic clock.
    """

    kind: str
    task: str
    metric: str
    data: str
    output: str
    target: str = ""
    file: str = ""
    seed: int = 0
    test_fraction: float = 0.2
    folds: int = 0
    max_rows: int = 500_000
    image_size: int = 0
    weights: str = ""
    keep: Sequence[str] = ()
    seconds: float = 0.0
    parallel: int = 1
    started: float = field(default_factory=time.monotonic)
    is_final: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        return str(self.parameters.get("family", "baseline"))

    def is_out_of_time(self, more_s: float = 0.0) -> bool:
        """Whether work of ``more_s`` seconds would exceed the usable share of the time limit."""
        return self.seconds > 0 and time.monotonic() - self.started + more_s > _USED_SHARE * self.seconds


def parse_options(arguments: Sequence[str]) -> TrialOptions:
    """The options of this process. Raises ``DataProblem``: it was not started by an AutoML study."""
    text = os.environ.get(VARIABLE)
    if not text:
        raise DataProblem("%s is not set: `trainmaster automl` starts this program." % VARIABLE)
    study_options = json.loads(text)
    # Other entries, such as the source of the data, are for people who view the study.
    known = {
        name: study_options[name]
        for name in TrialOptions.__dataclass_fields__
        if name in study_options and name not in _NOT_IN_VARIABLE
    }
    parameters: dict[str, Any] = {}
    is_final = False
    for word in arguments:
        name, equals, text = word.removeprefix("--").partition("=")
        if word == "--final":
            is_final = True
        elif not word.startswith("--") or not equals:
            raise DataProblem("%r is not an argument; use --name=value." % word)
        else:
            parameters[name] = _value(text)
    return TrialOptions(
        **known,
        data=os.environ.get("TRAINMASTER_DATA_DIR", "/data/data"),
        output=os.environ.get("TRAINMASTER_OUTPUT_DIR", "/data/output"),
        is_final=is_final,
        parameters=parameters,
    )


def _value(text: str) -> Any:
    """The value in ``--name=value``: numbers and booleans as in JSON, everything else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text


def limit_threads(options: TrialOptions) -> Optional[int]:
    """Limit the threads to this trial's share of the CPUs: otherwise concurrent trials would oversubscribe the cores.

    Call it before the libraries are imported: they read the limit only then. Returns the limit; ``None`` if the
    variable is set already, by the user or from the trial's own CPUs.
    """
    if os.environ.get(THREADS_VARIABLE):
        return None
    # The final run is alone.
    trials = 1 if options.is_final else max(1, options.parallel)
    threads = max(1, usable_cpus() // trials)
    os.environ[THREADS_VARIABLE] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:  # a warm start has already imported it
        torch.set_num_threads(threads)
    return threads


def usable_cpus(groups: Path = _CGROUP_ROOT, membership: Path = Path("/proc/self/cgroup")) -> int:
    """CPUs that this process may use, by affinity and by the quotas of its control group and its ancestors; at least
    1.
    """
    try:
        cpus = float(len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):  # not Linux
        cpus = float(os.cpu_count() or 1)
    return max(1, int(min([cpus, *_quotas(groups, membership)])))


def _quotas(groups: Path, membership: Path) -> Iterator[float]:
    """https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files, and ``cpu.cfs_quota_us`` of the older
    version.
    """
    for line in _read_text(membership).splitlines():
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
                _read_text(folder / "cpu.max").split()
                or (_read_text(folder / "cpu.cfs_quota_us") + _read_text(folder / "cpu.cfs_period_us")).split()
            )
            if len(words) == 2 and words[0] not in ("max", "-1"):
                yield int(words[0]) / int(words[1])


def _read_text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
