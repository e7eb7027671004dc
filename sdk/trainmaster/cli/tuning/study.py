"""``study``: hyperparameter searches, whose trials are ordinary jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from trainmaster.cli.jobs.spec_files import read_study_argument
from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse, refused_as
from trainmaster.cli.tuning.study_views import (
    best_pairs,
    best_words,
    follow_study,
    goals_words,
    no_best,
    print_spec,
    print_trials,
    progress_words,
    show_study,
    tell_winner,
    value_text,
    warn_of_same_names,
)
from trainmaster.errors import InvalidSpec

if TYPE_CHECKING:
    from trainmaster.wire.studies import StudyDetail

app = typer.Typer(help="Hyperparameter searches; each trial is a job.", invoke_without_command=True)
Study = Annotated[str, typer.Argument(metavar="STUDY", help="ID or name of the study.")]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="study", rich_help_panel="Jobs")


@contextmanager
def _study_errors() -> Iterator[None]:
    """Within the context, a rejected spec is a study's, and hints name options instead of request fields."""
    try:
        with refused_as("study"):
            yield
    except InvalidSpec as error:
        error.mistakes = tuple(
            item._replace(hint=_in_options(item.hint, item.path)) if item.hint else item for item in error.mistakes
        )
        raise


def _in_options(hint: str, path: str) -> str:
    if path == "template.command":
        hint = f"{hint} (or --command 'python train.py')"
    return hint.replace("`wait_for_nodes`", "--wait-for-nodes")


@app.callback()
def study(ctx: typer.Context, json: options.Json = False) -> None:
    """Hyperparameter searches; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_studies(json=json)


@app.command()
def create(
    spec_file: Annotated[
        str,
        typer.Argument(
            metavar="STUDY.YAML", help="YAML or JSON file, also AI Platform's hptuning_config.yaml; `-` is stdin."
        ),
    ],
    code: options.Code = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="The study's name, in place of the file's.")] = None,
    command: Annotated[
        str | None, typer.Option("--command", help="Command of the trials, in place of the template's.")
    ] = None,
    project: options.Project = None,
    dry_run: options.DryRun = False,
    follow: options.Watch = False,
    wait_for_nodes: options.WaitForNodes = False,
    json: options.Json = False,
) -> None:
    """Create a study; its first trials start at once. All mistakes are reported at once."""
    spec = read_study_argument(spec_file)
    if name is not None:
        spec["name"] = name
    if command is not None:
        spec["template"] = {**(spec.get("template") or {}), "command": command}
    named = project or session.project_or_default(None)
    if project is not None or (named != "default" and "project" not in spec):
        spec["project"] = named
    with session.client() as client:
        with _study_errors():
            if dry_run:
                print_spec(client.check_study(spec, wait_for_nodes=wait_for_nodes), as_json=json)
                return
            made = client.create_study(spec, code=code, wait_for_nodes=wait_for_nodes)
        if follow:
            raise typer.Exit(follow_study(client, made.id, as_json=json))
    output.print_result(made, f"{made.name} ({made.id})", as_json=json)
    if not json:
        warn_of_same_names(made)
        reference = made.id if made.namesakes else made.name
        output.note(f"`trainmaster study watch {reference}` shows its trials as they end.", "dim")


@app.command("list")
def list_studies(
    states: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="Only studies in this state. Repeatable.")
    ] = None,
    user: options.User = None,
    search: Annotated[str | None, typer.Option("--search", help="Text in the name, or an ID.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of studies.")] = None,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """List studies, newest first."""
    from trainmaster.wire.studies import StudyState

    known = get_args(StudyState)
    unknown = next((state for state in states or () if state not in known), None)
    if unknown is not None:
        raise typer.BadParameter(f"{unknown!r} is none of {', '.join(known)}", param_hint="--state")
    with session.client() as client:
        studies = list(client.list_studies(project=project, state=states or (), user=user, search=search, limit=limit))
    if json or session.current().as_json:
        output.print_json(studies)
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
                progress_words(view),
                best_words(view),
            )
            for view in studies
        ],
        empty="No studies.",
        wraps=("TRIALS", "BEST"),
    )


@app.command()
def show(study: Study, json: options.Json = False) -> None:
    """Show one study: its state, best trial and all trials."""
    with session.client() as client:
        detail = client.get_study(study)
        trials = list(client.list_trials(detail.id))
    if json:
        output.print_json({**detail.model_dump(mode="json"), "trial_list": output.to_plain(trials)})
        return
    show_study(detail)
    warn_of_same_names(detail)
    output.say()
    print_trials(detail.metrics, trials, study_reason=detail.reason)


@app.command()
def best(study: Study, json: options.Json = False) -> None:
    """Show the best trial or, with several metrics, the Pareto front."""
    with session.client() as client:
        if json:
            output.print_json(client.get_study_best(study))
            return
        detail = client.get_study(study)
        answer = client.get_study_best(detail.id)
    if answer.trials:
        output.print_pairs(
            [
                ("Study", f"{detail.name} ({detail.id}), {detail.state}, {progress_words(detail)}"),
                ("Goal", goals_words(detail)),
                *(best_pairs(answer) if len(answer.trials) == 1 else ()),
            ]
        )
        if len(answer.trials) > 1:
            output.say()
            print_trials(answer.metrics, answer.trials)
    else:
        output.say(no_best(detail))
    warn_of_same_names(detail)


@app.command()
def importance(
    study: Study,
    metric: Annotated[
        str | None, typer.Option("--metric", help="One of several metrics; default: all together.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show the parameters by importance."""
    with session.client() as client:
        answer = client.get_study_importance(study, metric=metric)
    if json:
        output.print_json(answer)
    elif answer.reason:
        output.say(answer.reason)
    else:
        output.print_table(
            ("PARAMETER", "IMPORTANCE", "TRIALS"),
            [
                (item.name, "unknown" if item.importance is None else f"{100 * item.importance:.0f} %", item.trials)
                for item in answer.parameters
            ],
            empty="The study has no parameters.",
        )
        if any(item.importance is None for item in answer.parameters):
            output.note("Unknown: fewer than ten trials have the parameter.", "dim")


@app.command()
def predict(
    study: Study,
    more: Annotated[
        int | None,
        typer.Option("--more", min=1, help="Number of further trials; default: the remaining ones, or as many again."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Predict the best value after more trials: an extrapolation with an interval, or why there is none."""
    with session.client() as client:
        answer = client.get_study_prediction(study, more=more)
    if json:
        output.print_json(answer)
        return
    if answer.reason or not answer.points:
        output.say(answer.reason or "Unknown.")
        return
    output.say(f"Best {answer.metric} now: {value_text(answer.best)}, of {answer.trials} trials with a result.")
    output.print_table(
        ("MORE TRIALS", "LIKELY BEST", "80 % INTERVAL"),
        [
            (point.more, value_text(point.likely), f"{value_text(point.low)} to {value_text(point.high)}")
            for point in answer.points[3::4]
        ],
        empty="",
    )
    output.note(
        f"Probability of an improvement: {100 * (answer.chance or 0):.0f} %. Of {answer.checked} earlier predictions, "
        f"{answer.held} were right.",
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
    dry_run: options.DryRun = False,
    wait_for_nodes: options.WaitForNodes = False,
    json: options.Json = False,
) -> None:
    """Create a study from another one's spec, with changes."""
    from trainmaster.cli.jobs.verbs import changes_of

    patch = changes_of(changes or [])
    if name is not None:
        patch["name"] = name
    with session.client() as client, _study_errors():
        if dry_run:
            checked = client.check_study_clone(
                study, changes=patch, warm_start=warm_start, wait_for_nodes=wait_for_nodes
            )
            print_spec(checked, as_json=json)
            return
        made = client.clone_study(study, changes=patch, warm_start=warm_start, wait_for_nodes=wait_for_nodes)
    output.print_result(made, f"{made.name} ({made.id})", as_json=json)
    if not json:
        warn_of_same_names(made)
        tell_winner(made)


@app.command()
def watch(study: Study, json: options.Json = False) -> None:
    """Follow a study to its end, and print each trial's end."""
    with session.client() as client:
        raise typer.Exit(follow_study(client, study, as_json=json))


@app.command()
def stop(study: Study, reason: options.Reason = "", json: options.Json = False) -> None:
    """Cancel the running trials and end the study; its results stay."""
    with session.client() as client:
        _moved(client.stop_study(study, reason=reason), as_json=json)


@app.command()
def pause(study: Study, reason: options.Reason = "", json: options.Json = False) -> None:
    """Start no more trials for now; running trials continue."""
    with session.client() as client:
        _moved(client.pause_study(study, reason=reason), as_json=json)


@app.command()
def resume(study: Study, reason: options.Reason = "", json: options.Json = False) -> None:
    """Resume a paused study."""
    with session.client() as client:
        _moved(client.resume_study(study, reason=reason), as_json=json)


@app.command()
def extend(
    study: Study,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Additional trials.")] = None,
    max_time: Annotated[
        str | None, typer.Option("--max-time", help="Additional time, like 2h; for an ended study from now.")
    ] = None,
    gpu_hours: Annotated[float | None, typer.Option("--gpu-hours", help="Additional GPU-hours.")] = None,
    failed_trials: Annotated[
        int | None, typer.Option("--failed-trials", min=1, help="Additional failed trials allowed.")
    ] = None,
    parallel: Annotated[int | None, typer.Option("--parallel", min=1, help="New number of concurrent trials.")] = None,
    json: options.Json = False,
) -> None:
    """Add to the budget; an ended study continues."""
    seconds = None if max_time is None else options.seconds_of(max_time, "--max-time")
    if (trials, seconds, gpu_hours, failed_trials, parallel) == (None,) * 5:
        raise WrongUse("Say what to add: --trials, --max-time, --gpu-hours, --failed-trials or --parallel.")
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
    """Delete an ended study; the jobs of its trials stay."""
    with session.client() as client:
        if not yes and output.is_interactive():
            detail = client.get_study(study)
            study = detail.id
            typer.confirm(f"Delete study {detail.name} ({detail.id}) with its results?", abort=True, err=True)
        client.delete_study(study)
    output.print_result({"deleted": study}, f"{study} deleted", as_json=json)


def _moved(detail: StudyDetail, *, as_json: bool) -> None:
    output.print_result(detail, f"{detail.name} ({detail.id}) {detail.state}", as_json=as_json)
    if not as_json:
        warn_of_same_names(detail)
