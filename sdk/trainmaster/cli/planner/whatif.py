"""``whatif``, ``explain`` and ``simulate``: asking the planner."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.jobs.spec_files import read_spec_argument
from trainmaster.cli.jobs.verbs import changes_of
from trainmaster.cli.planner import plots
from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse
from trainmaster.cli.terminal.values import moment

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.wire.forecasts import (
        ForecastView,
        OptionView,
        PlaceView,
        SimulationReportView,
        SimulationStatusView,
        SimulationView,
    )
    from trainmaster.wire.jobs import JobDetail

_LOOK_AGAIN_S: Final = 0.5


def register(root: typer.Typer) -> None:
    root.command("whatif", rich_help_panel="Jobs")(whatif)
    root.command("explain", rich_help_panel="Jobs")(explain)
    root.command("simulate", rich_help_panel="Administration")(simulate)


MoreNodes = Annotated[int, typer.Option("--more-nodes", help="Were there so many more nodes like --like.", min=0)]
Like = Annotated[str | None, typer.Option("--like", metavar="NODE", help="A node whose kind there shall be more of.")]
Without = Annotated[list[str] | None, typer.Option("--without", metavar="NODE", help="Were it not there. Repeat it.")]


def whatif(
    what: Annotated[
        str, typer.Argument(metavar="SPEC|JOB", help="A YAML or JSON file, `-` for stdin, or a job that waits.")
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="PATH=VALUE", help="What if: --set workers=16. VALUE is YAML; repeat it."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show it as it is beside it with the changes.")] = False,
    more_nodes: MoreNodes = 0,
    like: Like = None,
    without: Without = None,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Ask the planner when and where a job would run, why it would wait, and what would start sooner. Submits nothing."""
    if more_nodes and like is None:
        raise typer.BadParameter(
            "name a node whose kind there shall be more of, such as --like gpu-07", param_hint="--like"
        )
    laid_over = changes_of(changes or [])
    if compare and not (laid_over or more_nodes or without):
        raise WrongUse(
            "--compare shows two answers beside one another, and nothing is another: say what if with --set PATH=VALUE, "
            "--more-nodes N --like NODE or --without NODE."
        )
    with session.client() as client:

        def ask(patch: dict[str, Any], **cluster: Any) -> ForecastView:
            if not _is_file(what):
                return client.forecast_job(what, changes=patch, **cluster)
            return client.forecast_spec(spec, changes=patch, **cluster)

        spec = _spec(what, project) if _is_file(what) else {}
        found = ask(laid_over, more_nodes=more_nodes, like=like, without=without or [])
        before = ask({}) if compare else None
    if json:
        output.print_json(found if before is None else {"before": before, "after": found})
        return
    if before is None:
        output.print_pairs(_pairs(found))
        return
    now, then = dict(_pairs(before)), dict(_pairs(found))
    for key in dict(_pairs(before, all_of_them=True)):
        if now.get(key) or then.get(key):
            _print_both(key, now.get(key) or "–", then.get(key) or "–")


def _print_both(key: str, now: str, then: str) -> None:
    """Sentences above one another: side by side they would be either cut or too wide to read."""
    told = [("as it is", now), ("what if", then)] if now != then else [("both", now)]
    output.print_pairs([(f"{key if not row else '':<9} {which:<8}", text) for row, (which, text) in enumerate(told)])


def _is_file(what: str) -> bool:
    """Whether a spec is meant; a job's name is no path, so a file of that name is named ``./name``."""
    return what == "-" or "/" in what or what.endswith((".yaml", ".yml", ".json")) or Path(what).is_file()


def _spec(what: str, project: str | None) -> dict[str, Any]:
    spec = read_spec_argument(what)
    if project is not None:
        spec["project"] = project
    # What the code is changes nothing about where it runs, and it need not be uploaded for this.
    return {key: value for key, value in spec.items() if key != "code"}


def _pairs(found: ForecastView, *, all_of_them: bool = False) -> list[tuple[str, str | None]]:
    waits = found.wait_reason
    place = f" (position {found.queue_position} in the queue)" if found.queue_position else ""
    pairs = [
        ("Starts", starts_text(found)),
        ("Waits", f"{waits.sentence.removesuffix('.')}{place}" if waits else None),
        ("Places", places_text(found.places)),
        ("Stops", " ".join(victim.sentence for victim in found.victims)),
        ("Fits now", options_text(found)),
        ("Sooner", " ".join(option.sentence for option in found.later)),
    ]
    return [(key, value) for key, value in pairs if value or all_of_them]


def starts_text(found: ForecastView) -> str:
    """``now``, ``probably at about 14:20 UTC, between …``, or why nobody knows."""
    if found.would_start:
        return "now"
    if found.start is None:
        return ""
    return found.start.sentence.removeprefix("It starts ").removesuffix(".")


def places_text(places: list[PlaceView]) -> str:
    """``worker×2 on a (H100), ps×1 on b``."""
    return ", ".join(
        f"{place.role}×{place.replicas} on {place.node}" + (f" ({place.gpu_model})" if place.gpu_model else "")
        for place in places
    )


def options_text(found: ForecastView) -> str:
    """What would start at once instead; that nothing would where nothing is known."""
    if found.would_start:
        return ""
    return sentences(found.options) or "nothing that is close to it"


def sentences(told: list[OptionView]) -> str:
    return " ".join(option.sentence for option in told)


def outlook_of(client: Client, detail: JobDetail) -> ForecastView | None:
    """When a waiting job is expected to start and what would sooner; ``None`` where the planner cannot be asked."""
    from trainmaster.errors import TrainmasterError

    is_looked_after = detail.wait_reason is None or detail.wait_reason.code != "scheduler_away"
    if detail.state != "queued" or not is_looked_after:
        return None
    try:
        return client.forecast_job(detail.id)
    except TrainmasterError:
        # It has started meanwhile, or no scheduler answers: all the rest is shown as it is.
        return None


def explain(
    job: options.Job,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="A time such as 14:20 (today), 2026-11-21T14:20 or 10m (ago); else the present.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Why a job waits, or waited at that time: the planner run again on what it saw then."""
    asked_at = moment(at, output.now(), "--at")
    with session.client() as client:
        found = client.explain_job(job, at=asked_at)
    if json:
        output.print_json(found)
        return
    seen = f"{found.waiting} waiting, {found.running} running, {output.count(found.nodes, 'node')}"
    place = f" (position {found.queue_position} in the queue)" if found.queue_position else ""
    output.print_pairs(
        [
            ("Planned", f"{output.local_time(found.at)}, with {seen}"),
            ("Verdict", found.verdict),
            ("Because", f"{found.sentence.removesuffix('.')}{place}"),
            ("Order", found.order),
            ("Places", places_text(found.places)),
            ("Said then", None if found.is_same else f"{found.then} (another version of the planner)"),
        ]
    )


def simulate(
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="YAML with the settings that are another.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="SETTING=VALUE", help="One of them. Repeat it.")
    ] = None,
    more_nodes: MoreNodes = 0,
    like: Like = None,
    without: Without = None,
    days: Annotated[
        float, typer.Option("--days", help="The jobs that have ended in so many days.", min=0.01, max=366)
    ] = 30,
    timeout: Annotated[
        str, typer.Option("--timeout", help="Wait no longer than, such as 90s or 1h; it goes on without you.")
    ] = "1h",
    simulation: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Begin none: wait for this one, which you left.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw both into this .svg, .png or .pdf.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Try a policy, or more nodes, on the platform's own history before setting, or buying, them. For platform admins."""
    settings = {**(_settings(policy) if policy else {}), **changes_of(changes or [])}
    is_asked = bool(settings or more_nodes or without)
    if not is_asked and simulation is None:
        raise WrongUse(
            "Say what to try: --policy FILE, --set order=fifo, --more-nodes 20 --like NODE, or --without NODE."
        )
    if is_asked and simulation is not None:
        raise WrongUse("Either say what to try, or name with --id one that is being worked on.")
    timeout_s = _timeout_s(timeout)
    if plot is not None:
        plots.check(plot)
    with session.client() as client:
        told = (
            client.get_simulation(simulation)
            if simulation is not None
            else client.begin_simulation(
                policy=settings, more_nodes=more_nodes, like=like, without=without or [], days=days
            )
        )
        found = _wait_for(client, told, timeout_s)
    if json:
        output.print_json(found)
    else:
        _show(found)
    if plot is not None:
        plots.draw(found, plot)


def _show(found: SimulationView) -> None:
    for sentence in found.sentences:
        output.say(sentence)
    output.say(
        f"{output.count(found.jobs, 'job')} from {output.local_time(found.since)} to {output.local_time(found.until)}"
    )
    output.print_table(["", "AS NOW", "WHAT IF"], _rows(found), empty="")
    output.note(
        "Both are simulated: these jobs from an empty cluster, with the nodes and settings as they are now, and with the changes.",
        "dim",
    )


def _timeout_s(text: str) -> float:
    from trainmaster.spec.quantity import parse_duration_s

    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from error


def _wait_for(client: Client, told: SimulationStatusView, timeout_s: float) -> SimulationView:
    """The result; meanwhile a person sees what is going on. Whoever leaves with Ctrl-C is told how to come back."""
    from trainmaster.errors import WaitTimedOut

    back = f"It goes on without you; its result stays for an hour: trainmaster simulate --id {told.id}"
    until_s = time.monotonic() + timeout_s
    try:
        with _spinner() as say:
            while told.result is None:
                if time.monotonic() >= until_s:
                    sentence = told.sentence.removesuffix(".") or "It is not done"
                    raise WaitTimedOut(
                        f"The simulation is not done after {output.duration(timeout_s)}: {sentence}. {back}"
                    )
                time.sleep(_LOOK_AGAIN_S)  # noqa: TID251 (the command line is an edge)
                told = client.get_simulation(told.id)
                say(told.sentence)
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{back}\n")
        raise
    return told.result


@contextmanager
def _spinner() -> Iterator[Callable[[str], None]]:
    """On a person's terminal, what is said last beside a spinner."""
    console = output.notes()
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.markup import escape

    with console.status("Simulating") as status:
        yield lambda sentence: status.update(escape(sentence or "Simulating"))


def _settings(file: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongUse(f"{file} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise WrongUse(f"{file} cannot be read: {error}.") from error
    except yaml.YAMLError as error:
        raise WrongUse(f"{file} is not YAML: {error}.") from error
    settings = found.get("settings", found) if isinstance(found, dict) else None
    if not isinstance(settings, dict):
        raise WrongUse(f"{file} holds no settings; write lines such as `order: fifo`.")
    return settings


def _rows(found: SimulationView) -> list[list[str]]:
    def cell(one: SimulationReportView, name: str) -> str:
        value = getattr(one, name)
        if value is None:
            return "–"
        if name.endswith("_s"):
            return output.duration(value) or "0 s"
        return (
            f"{value:.1%}"
            if name.endswith("_allocation")
            else f"{value:.2f}"
            if isinstance(value, float)
            else str(value)
        )

    names = {
        "Waited, mean": "wait_mean_s",
        "Waited, 99 of 100": "wait_p99_s",
        "Done after, mean": "jct_mean_s",
        "Done after, half": "jct_p50_s",
        "Done after, 99 of 100": "jct_p99_s",
        "All done after": "makespan_s",
        "GPUs in use": "gpu_allocation",
        "CPUs in use": "cpu_allocation",
        "Preemptions": "preemptions",
        "Finished": "finished",
        "Worst finish-time fairness": "worst_fairness",
    }
    if not (found.before.gpu_allocation or found.after.gpu_allocation):
        del names["GPUs in use"]  # there are none, or nobody asked for any
    return [[told, cell(found.before, name), cell(found.after, name)] for told, name in names.items()]
