"""``automl``: the best model for a table or a folder of images, found by a study and registered."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import ExitCode, WrongUse, refused_as
from trainmaster.errors import FieldMistake, InvalidRequest

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.wire.automl import AutomlDetail, AutomlRow

app = typer.Typer(help="Find the best model for a table or a folder of images.", invoke_without_command=True)
Study = Annotated[str, typer.Argument(metavar="STUDY", help="ID or name of the AutoML study.")]

_WATCH_S: Final = 1.0
_LINES: Final = 20
# The server's limit of the leaderboard; read completely to show how many rows there are.
_WHOLE: Final = 1000
_BASELINE: Final = "baseline"
# Request fields with differently named options.
_OPTIONS: Final = {"families": "--family", "aliases": "--alias"}
_RESOURCES: Final = ("cpu", "memory", "gpus")
_FIELD: Final = re.compile(r"^[a-z_][\w.]*(?=: )")
_SAY_TASK: Final = re.compile(r"\b([Ss])ay task (?=classification|regression)")
_STATE_KIND: Final = "state kind and, of tables, target and task"


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="automl", rich_help_panel="Jobs")


@app.callback()
def automl(
    ctx: typer.Context,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="volume/path of a table, or of a folder with a folder of images per class."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Column to predict; not needed for images in folders.")
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", "-b", help="Time of the search, like 30m, without the final run.")
    ] = "1h",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Maximum number of models to try.")] = 60,
    parallel: Annotated[int, typer.Option("--parallel", min=1, help="Number of concurrent trials.")] = 1,
    kind: Annotated[str | None, typer.Option("--kind", help="tabular or images; default: by the data.")] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="classification or regression; default: by the target.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="accuracy, balanced_accuracy, f1_macro, roc_auc, log_loss; rmse, mae, r2."),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(
            "--family", help="baseline, linear, boosting, forest, neighbors; cnn, transfer. Repeatable; default: all."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Name of the registered model; default: the study's.")
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option("--alias", help="Alias of the registered version. Repeatable.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Name of the study; default: automl- and the data's.")
    ] = None,
    test_fraction: Annotated[
        float, typer.Option("--test-fraction", help="Fraction held out for the final test.")
    ] = 0.2,
    folds: Annotated[
        int | None, typer.Option("--folds", min=1, help="Folds of the cross-validation; default: by the rows.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", help="Side length in pixels; default: by the images.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="volume/path of a TorchScript backbone, for transfer.")
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option("--max-rows", help="Sample larger data down to N rows or images.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Column to use even if it looks uninformative. Repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    cpu: options.Cpu = None,
    memory: options.Memory = None,
    gpus: options.Gpus = 0,
    image: options.Image = None,
    project: options.Project = None,
    dry_run: options.DryRun = False,
    follow: options.Watch = False,
    wait_for_nodes: options.WaitForNodes = False,
    json: options.Json = False,
) -> None:
    """Find the best model for a table or a folder of images, test it, and register it.

    Resources are those of a trial. An image of your own must contain trainmaster_automl.
    """
    if ctx.invoked_subcommand is not None:
        return
    if data is None:
        raise WrongUse("--data is missing: trainmaster automl --data VOLUME/PATH --target COLUMN --budget 1h.")
    resources = options.resources_of(cpu, memory, gpus)
    more: dict[str, Any] = {"wait_for_nodes": True} if wait_for_nodes else {}  # unknown to older servers
    with session.client() as client, refused_as("AutoML"), _errors_name_options(as_is=json):
        made = client.create_automl(
            data, target, budget=budget, trials=trials, parallel=parallel, project=session.project_or_default(project),
            name=name, model=model, aliases=alias or (), resources=resources, dry_run=dry_run, kind=kind, task=task,
            metric=metric,
            families=family or [], test_fraction=test_fraction, folds=folds, image_size=image_size, weights=weights,
            max_rows=max_rows, keep=keep or [], seed=seed, image=image, **more,
        )  # fmt: skip
        if follow and made.id is not None:
            if not json:
                _tell_plan(made)
            raise typer.Exit(_follow(client, made.id, as_json=json, shown_notes=() if json else made.notes))
    if json:
        output.print_json(made)
        return
    _tell_plan(made)
    if made.id is not None:
        output.note(f"`trainmaster automl watch {made.name}` follows it; `automl show` shows the leaderboard.", "dim")


@contextmanager
def _errors_name_options(*, as_is: bool) -> Iterator[None]:
    """Replaces request fields in error messages by options; ``as_is``: not, for programs."""
    try:
        yield
    except InvalidRequest as error:
        if not as_is:
            is_local = error.status is None  # rejected by pydantic, before the request was sent
            mistakes = [item._replace(message=_plain(item)) if is_local else item for item in error.mistakes]
            error.mistakes = tuple(
                item._replace(
                    path=_option(item.path),
                    hint=item.hint.replace("`wait_for_nodes`", "--wait-for-nodes") if item.hint else item.hint,
                )
                for item in mistakes
            )
            sentence = error.sentence.replace(_STATE_KIND, "say --kind and, of tables, --target and --task")
            error.sentence = _SAY_TASK.sub(r"\1ay --task ", _FIELD.sub(lambda match: _option(match[0]), sentence))
            if is_local and error.mistakes:
                error.sentence = "The AutoML request is invalid:"
        raise


def _option(field: str) -> str:
    """The option for a request field such as ``families.0``; the field itself if there is none."""
    from trainmaster.wire.automl import AutomlCreate

    name, _, below = field.partition(".")
    if name == "resources":
        return f"--{below}" if below in _RESOURCES else field
    return _OPTIONS.get(name, "--" + name.replace("_", "-")) if name in AutomlCreate.model_fields else field


def _plain(mistake: FieldMistake) -> str:
    """The message of pydantic in plain English, with both ends of a range."""
    from trainmaster.wire.automl import AutomlCreate

    info = AutomlCreate.model_fields.get(mistake.path)
    ends = {
        end: getattr(item, end)
        for item in (info.metadata if info else ())
        for end in ("ge", "le")
        if hasattr(item, end)
    }
    if "than" in mistake.message and len(ends) == 2:
        return f"must be from {ends['ge']} to {ends['le']}"
    if mistake.path == "name" and "pattern" in mistake.message:
        return "must be 1 to 63 letters, digits, '.', '_' and '-', with a letter or digit at both ends"
    return mistake.message.replace("Input should be", "must be").replace("String should", "must")


@app.command()
def show(
    study: Study,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Rows of the leaderboard.")] = _LINES,
    json: options.Json = False,
) -> None:
    """Show the leaderboard, the final test and the registered model."""
    with session.client() as client:
        detail = client.get_automl(study, limit=limit if json else _WHOLE)
    if json:
        output.print_json(detail)
    else:
        _show(detail, limit=limit)


@app.command()
def watch(study: Study, json: options.Json = False) -> None:
    """Wait until the best model is registered, and print each trial's end."""
    with session.client() as client:
        raise typer.Exit(_follow(client, study, as_json=json))


def _tell_plan(made: AutomlDetail) -> None:
    named = f"{made.name} ({made.id})" if made.id is not None else f"{made.name}: a plan, nothing was created"
    output.say(named)
    goal = f"{made.task} of {made.target}" if made.target else made.task
    output.say(f"{goal} by {', '.join(made.families)}; {made.goal} {made.metric}")
    for note in made.notes:
        output.note(note, "dim")


def _follow(client: Client, study: str, *, as_json: bool, shown_notes: Sequence[str] = ()) -> int:
    """``shown_notes``: notes that were printed already."""
    from trainmaster.cli.tuning.study_views import EndedTrials, tell_trial
    from trainmaster.client.flows.studies import is_automl_over

    ended = EndedTrials(client)
    has_shown_winner = False
    while True:
        progress = client.get_automl(study, limit=1)
        study = progress.id or study  # the name may soon refer to a newer study
        if sum(progress.trials.values()) - progress.trials.get("running", 0) > len(ended.reported):
            detail = client.get_study(study)
            for trial in ended.new(study):
                tell_trial(trial, detail, as_json=as_json)
        if progress.winner is not None and not has_shown_winner and not as_json:
            has_shown_winner = True
            output.note(
                f"The final run of the best trial, {progress.winner.trial}, tests and registers the model.", "dim"
            )
        if is_automl_over(progress):
            break
        time.sleep(_WATCH_S)  # noqa: TID251 (a person watches)
    progress = client.get_automl(study, limit=_LINES if as_json else _WHOLE)
    if as_json:
        output.print_json_line(progress)
    else:
        _show(progress, shown_notes=shown_notes)
    is_registered = progress.winner is not None and progress.winner.version_state == "ready"
    return ExitCode.OK if is_registered else ExitCode.FAILED


def _show(detail: AutomlDetail, *, limit: int = _LINES, shown_notes: Sequence[str] = ()) -> None:
    from trainmaster.cli.tuning.study_views import winner_words

    console = output.answers()
    pairs: list[tuple[str, Any]] = [
        ("AutoML", f"{detail.name} ({detail.id})"),
        ("State", output.state_text(detail.state or "", console)),
        ("Reason", detail.reason or None),
        ("Data", detail.data + (f", target {detail.target}" if detail.target else "")),
        ("Goal", f"{detail.goal} {detail.metric} ({detail.task})"),
    ]
    if detail.winner is not None:
        pairs.append(("Winner", winner_words(detail.winner)))
    if detail.test is not None:
        test = detail.test
        range_ = f" (95 %: {test.low:.4g} to {test.high:.4g})" if test.low is not None and test.high is not None else ""
        pairs.append(("Test", f"{detail.metric} {test.score:.4g}{range_}, on {test.rows} held-out rows"))
        pairs.append(("", test.hint or None))
    output.print_pairs(pairs)
    output.say()
    baseline = next((row for row in detail.leaderboard if row.family == _BASELINE), None)
    # The baseline is always shown, whatever its rank.
    rows = [row for row in detail.leaderboard if row.rank <= limit or row is baseline]
    is_any_stopped = not all(row.is_whole for row in rows)
    output.print_table(
        (
            "RANK", "TRIAL", "FAMILY", detail.metric.upper(), "SECONDS", "PARAMETERS",
            *(("END",) if is_any_stopped else ()),
        ),
        [
            (
                row.rank, row.trial, row.family, _score(row), None if row.seconds is None else f"{row.seconds:.1f}",
                output.values_text(row.parameters, " "),
                *((None if row.is_whole else "stopped early",) if is_any_stopped else ()),
            )
            for row in rows
        ],
        empty="No trial has a result yet.",
    )  # fmt: skip
    if len(rows) < len(detail.leaderboard):
        output.note(f"{len(rows)} of {len(detail.leaderboard)}; --limit of `automl show` shows more.", "dim")
    for note in detail.notes:
        if note not in shown_notes:
            output.note(note, "dim")


def _score(row: AutomlRow) -> str:
    return f"{row.score:.4g}" + (f" ± {row.spread:.2g}" if row.spread is not None else "")
