"""``cancel``, ``pause``, ``resume``, ``clone`` and ``delete`` jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import exit_code_of, tell_error
from trainmaster.errors import ServerUnreachable, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.wire.jobs import JobDetail

_PANEL = "Jobs"


def register(app: typer.Typer) -> None:
    for command in (cancel, pause, resume, clone, delete):
        app.command(rich_help_panel=_PANEL)(command)


def cancel(jobs: options.Jobs, reason: options.Reason = "", json: options.Json = False) -> None:
    """Cancel jobs: SIGTERM to every replica, SIGKILL after the grace period."""
    _each(jobs, lambda client, job: client.cancel_job(job, reason=reason), as_json=json)


def pause(jobs: options.Jobs, reason: options.Reason = "", json: options.Json = False) -> None:
    """Pause jobs: they leave their nodes until they are resumed, then continue from their newest checkpoint."""
    _each(jobs, lambda client, job: client.pause_job(job, reason=reason), as_json=json)


def resume(
    jobs: options.Jobs,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="PATH", help="Resume from this checkpoint; a running job is restarted."),
    ] = None,
    reason: options.Reason = "",
    json: options.Json = False,
) -> None:
    """Put paused jobs back into the queue; with --checkpoint, restart a running job."""
    if checkpoint is not None and len(jobs) > 1:
        raise typer.BadParameter("a checkpoint belongs to one job; name only one", param_hint="--checkpoint")
    _each(jobs, lambda client, job: client.resume_job(job, reason=reason, checkpoint=checkpoint), as_json=json)


def _each(jobs: list[str], ask: Callable[[Client, str], JobDetail], *, as_json: bool) -> None:
    with session.client() as client:
        done, failures = _attempted(jobs, lambda job: ask(client, job))
    # Successes are printed before failures.
    views = [view for _, view in done]
    if as_json:
        if views:
            output.print_json(views if len(jobs) > 1 else views[0])
    else:
        console = output.answers()
        for view in views:
            console.print(
                view.name, f"({view.id})", output.state_text(view.state, console, desired=view.wanted), soft_wrap=True
            )
    _tell_failures(failures, as_json=as_json)


_Done = TypeVar("_Done")


def _attempted(jobs: list[str], ask: Callable[[str], _Done]) -> tuple[list[tuple[str, _Done]], list[TrainmasterError]]:
    """The result for each job, and the failures; after a failure the other jobs are still tried."""
    done: list[tuple[str, _Done]] = []
    failures: list[TrainmasterError] = []
    for place, job in enumerate(jobs):
        try:
            done.append((job, ask(job)))
        except ServerUnreachable as error:
            failures.append(error)
            left = jobs[place + 1 :]
            if left:
                failures.append(TrainmasterError(f"Not tried: {', '.join(left)}."))
            break
        except TrainmasterError as error:
            failures.append(error)
    return done, failures


def _tell_failures(failures: list[TrainmasterError], *, as_json: bool) -> None:
    """Print all failures to stderr; the exit code is that of the first."""
    if len(failures) == 1:
        raise failures[0]
    sys.stdout.flush()
    for error in failures:
        tell_error(error, as_json=as_json)
    if failures:
        raise typer.Exit(exit_code_of(failures[0]))


def clone(
    job: options.Job,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="PATH=VALUE", help="Change the spec: --set env.LR=0.1 (VALUE is YAML)."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="The new job's name.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Start from the newest checkpoint of the original.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="PATH", help="Start from this checkpoint of the original.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Submit a job again, with changes."""
    patch = changes_of(changes or [])
    if name is not None:
        patch["name"] = name
    with session.client() as client:
        view = client.clone_job(job, changes=patch, resume=resume, checkpoint=checkpoint)
    output.print_result(view, f"{view.name} ({view.id})", as_json=json)


def changes_of(assignments: list[str]) -> dict[str, object]:
    """The merge patch for ``path.to.field=value`` arguments; values are YAML, an empty value removes the field."""
    import yaml

    changes: dict[str, object] = {}
    for assignment in assignments:
        at, separator, text = assignment.partition("=")
        if not separator or not at:
            raise typer.BadParameter(f"{assignment!r} is not PATH=VALUE, such as env.LR=0.1", param_hint="--set")
        try:
            value = yaml.safe_load(text) if text else None
        except yaml.YAMLError as error:
            raise typer.BadParameter(f"the value of {at} is not YAML: {text!r}", param_hint="--set") from error
        *parents, leaf = at.split(".")
        place: dict[str, object] = changes
        for parent in parents:
            inner = place.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise typer.BadParameter(f"{at} is inside {parent}, which is also set as a whole", param_hint="--set")
            place = inner
        place[leaf] = value
    return changes


def delete(
    jobs: options.Jobs,
    files: Annotated[
        bool, typer.Option("--files", help="Also delete the output, if it is the job's own folder.")
    ] = False,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Delete ended jobs, after confirmation on a terminal; their output stays unless --files."""
    if not yes:
        if output.is_interactive():
            scope = " with all checkpoints and logs" if files else "; their output stays"
            typer.confirm(f"Delete {', '.join(jobs)}{scope}?", abort=True, err=True)
        elif files:
            raise typer.BadParameter("deleting files without a terminal requires --yes", param_hint="--files")
    with session.client() as client:
        done, failures = _attempted(jobs, lambda job: client.delete_job(job, files=files))
    deleted = [job for job, _ in done]
    if json:
        output.print_json({"deleted": deleted})
    elif deleted:
        output.say("\n".join(f"{job} deleted" for job in deleted))
    _tell_failures(failures, as_json=json)
