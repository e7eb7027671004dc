"""Simulation input: a scenario, or a job list in a known format plus a cluster given on the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.reading.arrival import Arrival, from_zero
from scheduler.simulator.reading.scenario import Scenario, load, parse
from scheduler.simulator.traces import flat, gavel, openb, own, pollux, pollux_elastic

_FLAT: Final = {"muri": flat.MURI, "tiresias": flat.TIRESIAS, "philly": flat.PHILLY}
FORMATS: Final = tuple(sorted({*_FLAT, "gavel", "shockwave", "openb", "own", "pollux", "pollux-elastic"}))
_BY_NAME: Final = {".jsonl": "own", ".trace": "gavel"}


@dataclass(frozen=True, slots=True)
class JobListOptions:
    """What a job list does not contain. ``node_list``: of openb; ``profiles``: a folder for Pollux, a table for Gavel;
    ``limit``: only the first so many jobs.
    """

    nodes: int = 8
    gpus: int = 8
    node_list: Path | None = None
    profiles: Path | None = None
    tick: str = "0"
    estimates: str = "history"
    restart_cost: str = "30s"
    limit: int | None = None


def read(path: Path, form: str | None, around: JobListOptions, *, seed: int | None = None) -> Scenario:
    """``form``: one of :data:`FORMATS`; ``None``: by file name, a scenario (``.yaml``) or a ``.csv`` with our column
    names.

    Raises:
        ScenarioError: with file, line and column, or the option.
    """
    form = form or _BY_NAME.get(path.suffix)
    if form is None and path.suffix == ".gz":
        raise ScenarioError(f"--format: say which {path.name} has: {', '.join(FORMATS)}")
    if form is None and path.suffix != ".csv":
        return load(path, seed=seed)
    for name, number in (("nodes", around.nodes), ("gpus", around.gpus), ("limit", around.limit)):
        if number is not None and number < (name != "gpus"):
            raise ScenarioError(f"--{name}: is at least {int(name != 'gpus')}, not {number}")
    data = {
        "name": path.name.removesuffix(".gz").rpartition(".")[0],
        "nodes": [{"name": "node-{}", "count": around.nodes, "gpus": around.gpus}],
        "tick": around.tick,
        "estimates": around.estimates,
        "restart_cost": around.restart_cost,
        "seed": seed or 0,
    }
    if form is None:
        scenario = parse({**data, "trace": {"file": path.name}}, folder=path.parent)
        arrivals: Sequence[Arrival] = scenario.arrivals
    else:
        scenario = parse(data)
        arrivals = _arrivals(path, form, around)
    arrivals = sorted(arrivals, key=lambda arrival: arrival.at_s)[: around.limit]
    if not arrivals:
        raise ScenarioError(f"{path.name}: lists no job")
    name, times = Counter(arrival.name for arrival in arrivals).most_common(1)[0]
    if times > 1:
        raise ScenarioError(f"{path.name}: the job {name!r} stands {times} times")
    return replace(
        scenario,
        arrivals=tuple(from_zero(arrivals)),
        nodes=openb.read_nodes(around.node_list) if around.node_list is not None else scenario.nodes,
    )


def _arrivals(path: Path, form: str, around: JobListOptions) -> list[Arrival]:
    match form:
        case "own":
            return own.read(path)
        case "openb":
            if around.node_list is None:
                raise ScenarioError("--node-list: openb needs its list of nodes, such as openb_node_list_gpu_node.csv")
            return openb.read(path)
        case "pollux" | "pollux-elastic":
            if around.profiles is None or not around.profiles.is_dir():
                raise ScenarioError("--profiles: pollux needs the folder with a profile of each application")
            if form == "pollux-elastic":
                return pollux_elastic.read(path, around.profiles, gpus=around.nodes * around.gpus)
            return pollux.read(path, around.profiles)
        case "gavel" | "shockwave":
            if around.profiles is None:
                raise ScenarioError("--profiles: gavel needs its table of steps per second, a .json or .json.gz")
            return gavel.read(path, gavel.Throughputs.read(around.profiles))
        case _:
            return flat.read(path, _FLAT[form], node_gpus=around.gpus)
