"""``study``: searches over parameters, each trial an ordinary job."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from trainmaster.cli import options, output, session
from trainmaster.cli.exits import ExitCode, WrongUse, refused_as
from trainmaster.errors import InvalidSpec, LocalFileProblem

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.studies import StudySpec
    from trainmaster.wire.studies import StudyBest, StudyDetail, StudyView, StudyWinner, TrialView

_WaitForNodes = Annotated[
    bool,
    typer.Option(
        "--wait-for-nodes", help="Also where no node that there is could ever hold a trial: such nodes are to come."
    ),
]
app = typer.Typer(help="Searches over parameters; each trial is a job.", invoke_without_command=True)
Study = Annotated[str, typer.Argument(metavar="STUDY", help="Id or name of the study.")]

_WATCH_S: Final = 1.0
_PAGE: Final = 200  # trials of one request
_AWAITED: Final = ("running", "succeeded")  # states of a trial and its job while a last report may be on its way
_LONG: Final = 48  # characters of a reason that stand in several rows


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="study", rich_help_panel="Jobs")


@contextmanager
def _of_a_study() -> Iterator[None]:
    """What is refused meanwhile is a study's spec, and what is a field of the request is an option here."""
    try:
        with refused_as("study"):
            yield
    except InvalidSpec as error:
        error.mistakes = tuple(
            one._replace(hint=one.hint.replace("`wait_for_nodes`", "--wait-for-nodes")) if one.hint else one
            for one in error.mistakes
        )
        raise


@app.callback()
def study(ctx: typer.Context, json: options.Json = False) -> None:
    """Searches over parameters; alone: list them."""
    if ctx.invoked_subcommand is None:
        _list(as_json=json)


@app.command()
def create(
    spec_file: Annotated[str, typer.Argument(metavar="STUDY.YAML", help="YAML or JSON file; `-` is stdin.")],
    code: Annotated[
        Path | None, typer.Option("--code", help="A folder to pack and upload as the trials' code.")
    ] = None,
    project: options.Project = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check; print the canonical spec; create nothing.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--watch", "-w", help="Stay until it has ended, as `study watch` does.")
    ] = False,
    wait_for_nodes: _WaitForNodes = False,
    json: options.Json = False,
) -> None:
    """Create a study; its first trials begin at once. All mistakes are told at once."""
    spec = _read(spec_file)
    named = project or session.project_or_default(None)
    if project is not None or (named != "default" and "project" not in spec):
        spec["project"] = named
    with session.client() as client:
        with _of_a_study():
            if dry_run:
                _print_spec(client.check_study(spec, wait_for_nodes=wait_for_nodes), as_json=json)
                return
            made = client.create_study(spec, code=code, wait_for_nodes=wait_for_nodes)
        if follow:
            raise typer.Exit(_follow(client, made.id, as_json=json))
    if json:
        output.print_json(made)
    else:
        output.say(f"{made.name} ({made.id})")
        _tell_namesakes(made)
        called = made.id if made.namesakes else made.name
        output.note(f"`trainmaster study watch {called}` shows its trials as they end.", "dim")


@app.command("list")
def list_studies(
    states: Annotated[list[str] | None, typer.Option("--state", "-s", help="Only these; repeat it.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's studies.")] = None,
    search: Annotated[str | None, typer.Option("--search", help="A text in the name, or an id.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Studies, newest first."""
    from trainmaster.wire.studies import StudyState

    known = get_args(StudyState)
    unknown = next((one for one in states or () if one not in known), None)
    if unknown is not None:
        raise typer.BadParameter(f"{unknown!r} is none of {', '.join(known)}", param_hint="--state")
    _list(as_json=json, project=project, state=states or (), user=user, search=search, limit=limit)


@app.command()
def show(study: Study, json: options.Json = False) -> None:
    """One study: its state, its best trial, and all of its trials."""
    with session.client() as client:
        detail = client.get_study(study)
        trials = list(client.list_trials(detail.id))
    if json:
        output.print_json({**detail.model_dump(mode="json"), "trial_list": output.to_plain(trials)})
        return
    _show(detail)
    _tell_namesakes(detail)
    output.say()
    _print_trials(detail.metrics, trials, study_reason=detail.reason)


@app.command()
def best(study: Study, json: options.Json = False) -> None:
    """The best trial or, with several metrics, those that no other one betters in all."""
    with session.client() as client:
        if json:
            output.print_json(client.get_study_best(study))
            return
        detail = client.get_study(study)
        found = client.get_study_best(detail.id)
    if found.trials:
        output.print_pairs(
            [
                ("Study", f"{detail.name} ({detail.id}), {detail.state}, {_progress(detail)}"),
                ("Goal", _goals(detail)),
                *(_best_pairs(found) if len(found.trials) == 1 else ()),
            ]
        )
        if len(found.trials) > 1:
            output.say()
            _print_trials(found.metrics, found.trials)
    else:
        output.say(_no_best(detail))
    _tell_namesakes(detail)


@app.command()
def importance(
    study: Study,
    metric: Annotated[
        str | None, typer.Option("--metric", help="One of several metrics; unstated, all of them together.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Which parameters matter, the most important first."""
    with session.client() as client:
        found = client.get_study_importance(study, metric=metric)
    if json:
        output.print_json(found)
    elif found.reason:
        output.say(found.reason)
    else:
        output.print_table(
            ("PARAMETER", "IMPORTANCE", "TRIALS"),
            [
                (one.name, "not known" if one.importance is None else f"{100 * one.importance:.0f} %", one.trials)
                for one in found.parameters
            ],
            empty="The study has no parameters.",
        )
        if any(one.importance is None for one in found.parameters):
            output.note("Not known: fewer than ten trials have the parameter.", "dim")


@app.command()
def predict(
    study: Study,
    more: Annotated[
        int | None,
        typer.Option("--more", min=1, help="So many more trials; unstated, those that are left, or as many again."),
    ] = None,
    json: options.Json = False,
) -> None:
    """What more trials would bring: an extrapolation with an interval, or why there is none."""
    with session.client() as client:
        found = client.get_study_prediction(study, more=more)
    if json:
        output.print_json(found)
        return
    if found.reason or not found.points:
        output.say(found.reason or "Not known.")
        return
    output.say(f"Best {found.metric} now: {_text(found.best)}, of {found.trials} trials with a result.")
    output.print_table(
        ("MORE TRIALS", "LIKELY BEST", "WITH 80 % BETWEEN"),
        [(one.more, _text(one.likely), f"{_text(one.low)} and {_text(one.high)}") for one in found.points[3::4]],
        empty="",
    )
    output.note(
        f"{100 * (found.chance or 0):.0f} % that any is better. Of {found.checked} such answers in its past {found.held} held.",
        "dim",
    )


@app.command()
def clone(
    study: Study,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="PATH=VALUE", help="Change the spec: --set budget.trials=50 (VALUE is YAML)."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="The new study's name.")] = None,
    warm_start: Annotated[bool, typer.Option("--warm-start", help="Learn from the original's trials.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check; print the canonical spec; create nothing.")
    ] = False,
    wait_for_nodes: _WaitForNodes = False,
    json: options.Json = False,
) -> None:
    """Create a study from another one's spec, with changes."""
    from trainmaster.cli.verbs import changes_of

    laid_over = changes_of(changes or [])
    if name is not None:
        laid_over["name"] = name
    with session.client() as client, _of_a_study():
        if dry_run:
            checked = client.check_study_clone(
                study, changes=laid_over, warm_start=warm_start, wait_for_nodes=wait_for_nodes
            )
            _print_spec(checked, as_json=json)
            return
        made = client.clone_study(study, changes=laid_over, warm_start=warm_start, wait_for_nodes=wait_for_nodes)
    if json:
        output.print_json(made)
    else:
        output.say(f"{made.name} ({made.id})")
        _tell_namesakes(made)
        _tell_winner(made)


@app.command()
def watch(study: Study, json: options.Json = False) -> None:
    """Stay until the study has ended, and tell each trial's end."""
    with session.client() as client:
        raise typer.Exit(_follow(client, study, as_json=json))


@app.command()
def stop(study: Study, reason: options.Reason = "", json: options.Json = False) -> None:
    """Cancel its trials and end it; what they have found stays."""
    with session.client() as client:
        _moved(client.stop_study(study, reason=reason), as_json=json)


@app.command()
def pause(study: Study, reason: options.Reason = "", json: options.Json = False) -> None:
    """Begin no more trials for now; those that run go on."""
    with session.client() as client:
        _moved(client.pause_study(study, reason=reason), as_json=json)


@app.command()
def resume(study: Study, reason: options.Reason = "", json: options.Json = False) -> None:
    """Go on with a paused study."""
    with session.client() as client:
        _moved(client.resume_study(study, reason=reason), as_json=json)


@app.command()
def extend(
    study: Study,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="So many more.")] = None,
    max_time: Annotated[
        str | None, typer.Option("--max-time", help="So much longer, like 2h; one that has ended: from now.")
    ] = None,
    gpu_hours: Annotated[float | None, typer.Option("--gpu-hours", help="So many more.")] = None,
    failed_trials: Annotated[int | None, typer.Option("--failed-trials", min=1, help="So many more may fail.")] = None,
    parallel: Annotated[int | None, typer.Option("--parallel", min=1, help="So many at once from now on.")] = None,
    json: options.Json = False,
) -> None:
    """Add to the budget; a study that has ended goes on."""
    from trainmaster.spec.quantity import parse_duration_s

    try:
        seconds = None if max_time is None else parse_duration_s(max_time)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--max-time") from error
    if (trials, seconds, gpu_hours, failed_trials, parallel) == (None,) * 5:
        raise WrongUse("Say by what: --trials, --max-time, --gpu-hours, --failed-trials or --parallel.")
    with session.client() as client:
        changed = client.extend_study(
            study,
            trials=trials,
            max_time=seconds,
            gpu_hours=gpu_hours,
            failed_trials=failed_trials,
            parallel=parallel,
        )
    _moved(changed, as_json=json)


@app.command()
def delete(study: Study, yes: options.Yes = False, json: options.Json = False) -> None:
    """Forget an ended study; the jobs of its trials stay."""
    with session.client() as client:
        if not yes and output.is_interactive():
            detail = client.get_study(study)
            study = detail.id
            typer.confirm(f"Delete study {detail.name} ({detail.id}) with what its trials found?", abort=True, err=True)
        client.delete_study(study)
    if json:
        output.print_json({"deleted": study})
    else:
        output.say(f"{study} deleted")


def _read(spec_file: str) -> dict[str, Any]:
    from trainmaster.client.flows.studying import read_study, study_of_text

    try:
        return dict(study_of_text(sys.stdin.read(), "stdin") if spec_file == "-" else read_study(spec_file))
    except LocalFileProblem as error:
        raise WrongUse(error.sentence) from error


def _list(*, as_json: bool, project: str | None = None, **filters: Any) -> None:
    with session.client() as client:
        found = list(client.list_studies(project=project, **filters))
    if as_json or session.current().as_json:
        output.print_json(found)
        return
    console, now = output.answers(), output.now()
    output.print_table(
        ("NAME", *(("PROJECT",) if project is None else ()), "ID", "STATE", "AGE", "TRIALS", "BEST"),
        [
            (
                view.name,
                *((view.project,) if project is None else ()),
                view.id,
                output.state_text(view.state, console),
                output.duration(now - view.created_at),
                _progress(view),
                _best(view),
            )
            for view in found
        ],
        empty="No studies.",
        wraps=("TRIALS", "BEST"),
    )


def _show(detail: StudyDetail) -> None:
    console = output.answers()
    pairs: list[tuple[str, Any]] = [
        ("Study", f"{detail.name} ({detail.id})"),
        ("State", output.state_text(detail.state, console)),
        ("Reason", detail.reason or None),
        ("Note", detail.note or None),
        ("Goal", _goals(detail)),
        (
            "Algorithm",
            f"{detail.algorithm}: {detail.algorithm_reason}" if detail.algorithm_reason else detail.algorithm,
        ),
        ("Trials", _progress(detail)),
        ("Cloned from", detail.cloned_from),
        ("GPU-hours", f"{detail.gpu_hours:.2f}" if detail.gpu_hours else None),
    ]
    if detail.best is not None and len(detail.metrics) > 1:
        pairs.append(("Best", f"{_best(detail)}; `study best` shows them"))
    elif detail.best is not None:
        pairs.append(("Best", f"{_result(detail.best, detail.metrics)} (trial {detail.best.number})"))
        pairs.append(("", _point(detail.best)))
    if detail.winner is not None:
        pairs.append(("Winner", winner_words(detail.winner)))
    output.print_pairs(pairs)


def winner_words(winner: StudyWinner) -> str:
    """What became of the best trial."""
    job = f"job {winner.job}, {winner.job_state}" if winner.job else "its job was deleted"
    if winner.model is None:
        return f"trial {winner.trial} ({job}); its version was deleted"
    why = f": {winner.reason}" if winner.reason else ""
    return f"trial {winner.trial} as {winner.model}@{winner.version}, {winner.version_state} ({job}){why}"


def _goals(detail: StudyDetail) -> str:
    return ", ".join(f"{metric.goal.value} {metric.name}" for metric in detail.spec.metrics)


def _no_best(detail: StudyDetail) -> str:
    from trainmaster.wire.studies import TERMINAL_STUDY_STATES

    if detail.state not in TERMINAL_STUDY_STATES:
        return "No trial has a result yet."
    if detail.state == "succeeded" and detail.reason:  # as one that warm-starting knew whole: it names the best
        return detail.reason
    return f"No trial has a result. {detail.reason}".strip()


def _best_pairs(found: StudyBest) -> list[tuple[str, Any]]:
    [trial] = found.trials
    return [
        ("Trial", f"{trial.number}" + (f" (job {trial.job})" if trial.job else "")),
        ("Result", _result(trial, found.metrics)),
        *((name, _text(value)) for name, value in trial.parameters.items()),
    ]


def _print_trials(metrics: list[str], trials: list[TrialView], *, study_reason: str = "") -> None:
    console = output.answers()
    told, whole = _short_reasons([trial.reason for trial in trials], study_reason)
    output.print_table(
        ("TRIAL", "STATE", *(name.upper() for name in metrics), "JOB", "PARAMETERS", "WHY"),
        [
            (
                trial.number,
                output.state_text(_state(trial), console),
                *(None if trial.result is None else _text(trial.result.get(name)) for name in metrics),
                trial.job,
                _point(trial),
                ". ".join(filter(None, (_parent(trial), told.get(trial.reason, trial.reason) or _wait(trial)))) or None,
            )
            for trial in trials
        ],
        empty="No trials yet.",
        wraps=("PARAMETERS", "WHY"),
    )
    if whole:
        output.say()
    for line in whole:
        output.say(line)


def _state(trial: TrialView) -> str:
    """A trial that runs has its job's state, but for one whose metric is still waited for behind the job's end."""
    from trainmaster.wire.jobs import TERMINAL_STATES

    is_open = trial.state == "running" and trial.job_state not in TERMINAL_STATES
    return trial.job_state or trial.state if is_open else trial.state


def _wait(trial: TrialView) -> str:
    return "its job has ended, its metric is waited for" if (trial.state, trial.job_state) == _AWAITED else ""


def _parent(trial: TrialView) -> str:
    return "" if trial.parent is None else f"goes on from trial {trial.parent}"


def _short_reasons(reasons: list[str], study_reason: str) -> tuple[dict[str, str], list[str]]:
    """What rows say in place of reasons that are said elsewhere, and lines with those that several rows share, once each."""
    told: dict[str, str] = {}
    whole: list[str] = []
    for reason, count in Counter(reasons).items():
        if reason and reason == study_reason:
            told[reason] = "the study ended"
        elif count > 1 and len(reason) > _LONG:
            mark = f"({len(whole) + 1})"
            told[reason] = f"{reason[:_LONG].rstrip()}… {mark}"
            whole.append(f"{mark} {reason}")
    return told, whole


def _follow(client: Client, study: str, *, as_json: bool) -> int:
    """Tell trials as they end, until the study has."""
    from trainmaster.wire.studies import TERMINAL_STUDY_STATES

    ends = Ends(client)
    noted = ""
    was_paused = False
    detail = client.get_study(study)
    _tell_namesakes(detail)
    while True:
        ended = sum(detail.trials.values()) - detail.trials.get("running", 0)
        if ended > len(ends.told):
            for trial in ends.new(detail.id):
                tell_trial(trial, detail, as_json=as_json)
        if detail.note and detail.note != noted:
            noted = detail.note
            output.note(detail.note, "yellow")
        is_paused = detail.state == "paused"
        if is_paused != was_paused and detail.state not in TERMINAL_STUDY_STATES:
            was_paused = is_paused
            words = (
                f"It is paused, and begins no trials. {detail.reason}".strip()
                if is_paused
                else "It is not paused any more."
            )
            output.note(words, "yellow")
        if detail.state in TERMINAL_STUDY_STATES:
            break
        time.sleep(_WATCH_S)  # noqa: TID251 (a person watches)
        detail = client.get_study(detail.id)  # another one that gets its name meanwhile is not meant
    if as_json:
        output.print_json_line(detail)
    else:
        _show(detail)
    return ExitCode.OK if detail.state == "succeeded" else ExitCode.FAILED


class Ends:
    """Trials that have ended, each once. What has ended from the first page on is not read again: there may be thousands."""

    def __init__(self, client: Client) -> None:
        self.told: set[int] = set()
        self._client = client
        self._cursor: str | None = None

    def new(self, study_id: str) -> Iterator[TrialView]:
        """Those that were not told yet, by number."""
        cursor, is_over = self._cursor, True
        while True:
            page = self._client.list_trials_page(study_id, limit=_PAGE, cursor=cursor)
            for trial in page.items:
                if trial.state == "running":
                    is_over = False
                elif trial.number not in self.told:
                    self.told.add(trial.number)
                    yield trial
            cursor = page.next_cursor
            if cursor is None:
                return
            if is_over:
                self._cursor = cursor


def tell_trial(trial: TrialView, detail: StudyDetail, *, as_json: bool) -> None:
    if as_json:
        output.print_json_line(trial)
        return
    # Of several metrics it is the best by the first one alone.
    is_best = len(detail.metrics) == 1 and detail.best is not None and detail.best.number == trial.number
    why = ". ".join(filter(None, (_parent(trial), trial.reason)))
    why = f": {why}" if why else ""
    result = f" {_result(trial, detail.metrics)}" if trial.result is not None else ""
    output.say(f"trial {trial.number} {trial.state}{result}{' (best so far)' if is_best else ''}  {_point(trial)}{why}")


def _moved(detail: StudyDetail, *, as_json: bool) -> None:
    if as_json:
        output.print_json(detail)
    else:
        output.say(f"{detail.name} ({detail.id}) {detail.state}")
        _tell_namesakes(detail)


def _tell_namesakes(detail: StudyDetail) -> None:
    """That the name means one of several: the newest, as of jobs."""
    if detail.namesakes:
        shown = ", ".join(detail.namesakes)
        others = "another study" if len(detail.namesakes) == 1 else "other studies"
        output.note(
            f"Going on as well: {others} called {detail.name} ({shown}). The name means the newest; an id means one.",
            "yellow",
        )


def _tell_winner(made: StudyDetail) -> None:
    """Of a clone, whose spec nobody has read: that its best trial is registered, and where."""
    winner = made.spec.winner
    if winner is None:
        return
    aliases = ", ".join(winner.aliases)
    moved = f", with the alias {aliases} unless that points to a better one" if aliases else ""
    output.note(
        f"Its best trial becomes a version of the model {winner.model}{moved}; `--set winner=null` clones without that."
    )


def _print_spec(spec: StudySpec, *, as_json: bool) -> None:
    """The canonical spec, to be created from again."""
    from trainmaster.cli.show import study_yaml

    if as_json:
        output.print_json(spec)
    else:
        output.say(study_yaml(spec).rstrip())


def _progress(view: StudyView) -> str:
    ended = sum(view.trials.values()) - view.trials.get("running", 0)
    of = f" of {view.budget_trials}" if view.budget_trials is not None else ""
    counts = {**view.trials, "running": view.trials.get("running", 0) - view.waiting, "waiting": view.waiting}
    more = [
        f"{counts[state]} {state}"
        for state in ("running", "waiting", "stopped", "failed", "cancelled")
        if counts.get(state, 0) > 0
    ]
    return f"{ended}{of} ended" + (f" ({', '.join(more)})" if more else "")


def _best(view: StudyView) -> str | None:
    """Of several metrics no trial is the best one: how many are none worse than another."""
    if view.best is None:
        return None
    if len(view.metrics) > 1 and view.front_size is not None:
        return f"{view.front_size} trial{'s' if view.front_size > 1 else ''} on the Pareto front"
    return f"{_result(view.best, view.metrics[:1])} (trial {view.best.number})"


def _result(trial: TrialView, metrics: list[str]) -> str:
    return ", ".join(f"{name} {_text((trial.result or {}).get(name))}" for name in metrics)


def _point(trial: TrialView) -> str:
    return " ".join(f"{name}={_text(value)}" for name, value in trial.parameters.items())


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
