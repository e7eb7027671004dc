"""``model``: registered models, their versions, aliases and stages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.models import ModelView, Stage, VersionDetail, VersionView

app = typer.Typer(help="Registered models with immutable versions.", invoke_without_command=True)
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")]
Version = Annotated[
    str, typer.Argument(metavar="VERSION", help="Number, alias, or `latest` (the newest ready version).")
]
OnlyVersion = Annotated[str | None, typer.Argument(metavar="[VERSION]", help="Only this version.")]
Force = Annotated[bool, typer.Option("--force", help="Even if protected or in use (project admins).")]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="model", rich_help_panel="Jobs")


@app.callback()
def model(ctx: typer.Context, json: options.Json = False) -> None:
    """Registered models; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_models(json=json)


@app.command("register")
def register_version(
    model: Model,
    job: Annotated[str, typer.Option("--job", help="ID or name of the source job.")],
    path: Annotated[
        str | None, typer.Option("--path", help="File or folder of its output; default: its folder model.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", help="A checkpoint of the job instead.")] = None,
    when_done: Annotated[bool, typer.Option("--when-done", help="Register when the job has succeeded.")] = False,
    alias: Annotated[
        list[str] | None, typer.Option("--alias", help="Alias, set when the version is ready. Repeatable.")
    ] = None,
    stage: Annotated[str, typer.Option("--stage", help="none, staging, production or archived.")] = "none",
    description: Annotated[str, typer.Option("--description", "-d")] = "",
    label: options.Labels = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until its files are copied.")] = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Register a version; creates the model if it does not exist."""
    own = session.project_or_default(project)
    with session.client() as client:
        made = client.register_version(
            own, model, job, path_in_output=path, checkpoint=checkpoint, when_done=when_done, description=description,
            labels=options.labels_of(label), aliases=alias or (), stage=_stage(stage),
        )  # fmt: skip
        if not no_wait and made.state == "registering":
            with output.busy(f"{model} version {made.version}: copying files"):
                made = client.wait_for_version(own, model, made.version)
    _print_version(made, as_json=json)


@app.command("list")
def list_models(
    search: Annotated[str, typer.Option("--search", help="Part of the name.")] = "",
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """List the project's models, by name."""
    with session.client() as client:
        models = list(client.list_models(session.project_or_default(project), search=search or None))
    if json or session.current().as_json:
        output.print_json(models)
        return
    now = output.now()
    output.print_table(
        ("NAME", "VERSIONS", "LATEST", "ALIASES", "CHANGED"),
        [(view.name, view.versions, view.latest, _aliases(view), output.ago(view.updated_at, now)) for view in models],
        empty="No models.",
    )


@app.command()
def show(
    model: Model,
    version: Annotated[str | None, typer.Argument(metavar="[VERSION]", help="One version with its lineage.")] = None,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Show a model with its versions, or one version with its lineage, metrics and files."""
    own = session.project_or_default(project)
    with session.client() as client:
        if version is None:
            summary, versions = client.get_model(own, model), list(client.list_versions(own, model))
            if json:
                output.print_json({**summary.model_dump(mode="json"), "version_list": output.to_plain(versions)})
                return
            _show_model(summary)
            output.say()
            _print_versions(versions)
            return
        detail = client.get_version(own, model, version)
        files = list(client.list_version_files(own, model, version))
    if json:
        output.print_json({**detail.model_dump(mode="json"), "files": output.to_plain(files)})
        return
    _show_version(detail)
    output.say()
    output.print_table(
        ("FILE", "SIZE", "SHA256"),
        [(file.path, output.size(file.size_bytes), file.sha256) for file in files],
        empty="No files yet.",
    )


@app.command()
def versions(
    model: Model,
    stage: Annotated[str | None, typer.Option("--stage", help="Only versions in this stage.")] = None,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """List the versions of a model, newest first."""
    own = session.project_or_default(project)
    with session.client() as client:
        listed = list(client.list_versions(own, model, stage=None if stage is None else _stage(stage)))
    if json:
        output.print_json(listed)
    else:
        _print_versions(listed)


@app.command()
def history(model: Model, project: options.Project = None, json: options.Json = False) -> None:
    """Show the model's history, newest first."""
    with session.client() as client:
        changes = list(client.list_model_changes(session.project_or_default(project), model, limit=200))
    if json:
        output.print_json(changes)
        return
    output.print_table(
        ("TIME", "USER", "CHANGE", "VERSION", "NAME", "FROM", "TO", "REASON"),
        [
            (
                output.local_time(change.at), change.user, change.what, change.version, change.name or None,
                change.before, change.after, change.reason or None,
            )
            for change in changes
        ],
        empty="No changes.",
    )  # fmt: skip


@app.command()
def alias(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="Such as prod.")],
    version: Annotated[int | None, typer.Argument(metavar="[VERSION]", min=1, help="The version to point to.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias.")] = False,
    reason: options.Reason = "",
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Point an alias to a version, or remove it."""
    own = session.project_or_default(project)
    if remove == (version is not None):
        raise typer.BadParameter("give the version to point to, or --remove", param_hint="VERSION")
    with session.client() as client:
        if version is None:
            client.remove_model_alias(own, model, name)
        else:
            client.set_model_alias(own, model, name, version, reason=reason)
        detail = client.get_model(own, model)
    output.print_result(
        detail, f"{model} {name} " + ("removed" if version is None else f"-> version {version}"), as_json=json
    )


@app.command()
def stage(
    model: Model,
    version: Version,
    to: Annotated[str, typer.Argument(metavar="STAGE", help="none, staging, production or archived.")],
    reason: options.Reason = "",
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Move a version to a stage."""
    with session.client() as client:
        own = session.project_or_default(project)
        _print_version(client.set_version_stage(own, model, version, _stage(to), reason=reason), as_json=json)


@app.command()
def download(
    model: Model,
    version: Version,
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Local folder; default: the present one.", show_default=False)
    ] = Path(),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files of the same names with other content.")
    ] = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Download all files of a version and verify their hashes. An interrupted download resumes."""
    own = session.project_or_default(project)
    with session.client() as client:
        if json:
            copied = client.download_version(own, model, version, folder, overwrite=overwrite)
        else:
            with output.progress_bar(f"{model} {version}") as progress:
                copied = client.download_version(own, model, version, folder, overwrite=overwrite, progress=progress)
    output.print_result(
        {"files": [str(path) for path in copied]},
        f"{output.count(len(copied), 'file')} in {folder.absolute()}",
        as_json=json,
    )


@app.command()
def delete(
    model: Model,
    version: OnlyVersion = None,
    force: Force = False,
    yes: options.Yes = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Delete a version, or a model with all of its versions."""
    own = session.project_or_default(project)
    target = f"version {version} of model {model}" if version is not None else f"model {model} with all its versions"
    if not yes and output.is_interactive():
        typer.confirm(f"Delete {target}?", abort=True, err=True)
    with session.client() as client:
        if version is None:
            client.delete_model(own, model, force=force)
        else:
            client.delete_version(own, model, version, force=force)
    output.print_result({"deleted": target}, f"{target} deleted", as_json=json)


@app.command()
def protect(
    model: Model,
    version: OnlyVersion = None,
    off: Annotated[bool, typer.Option("--off", help="Remove the protection.")] = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Protect a version, or the model, from deletion."""
    own = session.project_or_default(project)
    with session.client() as client:
        if version is not None:
            _print_version(client.change_version(own, model, version, is_protected=not off), as_json=json)
            return
        detail = client.change_model(own, model, is_protected=not off)
    output.print_result(detail, f"{model} {'protected' if detail.is_protected else 'not protected'}", as_json=json)


def _show_model(view: ModelView) -> None:
    output.print_pairs(
        [
            ("Model", f"{view.name} ({view.id})"),
            ("Description", view.description or None),
            ("Labels", " ".join(f"{key}={value}" for key, value in view.labels.items()) or None),
            ("Aliases", _aliases(view)),
            ("Protected", "yes" if view.is_protected else None),
        ]
    )


def _show_version(view: VersionDetail) -> None:
    console, lineage = output.answers(), view.lineage
    pairs: list[tuple[str, Any]] = [
        ("Version", f"{view.model} {view.version} ({view.id})"),
        ("State", output.state_text(view.state, console)),
        ("Reason", view.reason or None),
        ("Stage", view.stage),
        ("Aliases", ", ".join(view.aliases) or None),
        ("Protected", "yes" if view.is_protected else None),
        ("Deployed", ", ".join(view.served_by) or None),
        ("Rollback target of", ", ".join(name for name in view.used_by if name not in view.served_by) or None),
        ("Format", view.format or None),
        ("Size", output.size(view.size_bytes)),
        ("Digest", view.digest),
        ("Location", view.location),
        ("From", _origin(view)),
    ]
    if lineage is not None:
        pairs += [
            ("Attempt", lineage.attempt),
            ("User", lineage.user or None),
            *_commands(lineage.commands),
            ("Code", lineage.code),
            ("Image", ", ".join(sorted(set(lineage.images.values()))) or None),
            ("Data", ", ".join(lineage.data) or None),
            ("Study", f"{lineage.study}, trial {lineage.trial}" if lineage.study else None),
            ("Parameters", _values(lineage.parameters)),
            ("Metrics", _values(lineage.metrics)),
        ]
    output.print_pairs(pairs)


def _origin(view: VersionDetail) -> str:
    source, name = view.source, view.lineage.job_name if view.lineage else ""
    origin = f"{source.kind} {source.path}"
    if not source.job:
        return origin
    return f"{origin} of job {name} ({source.job})" if name else f"{origin} of job {source.job}"


def _commands(by_role: dict[str, str]) -> list[tuple[str, str]]:
    """The roles' commands; a single line if all are equal."""
    commands = {role: line for role, line in by_role.items() if line}
    if len(set(commands.values())) == 1:
        return [("Command", next(iter(commands.values())))]
    return [(f"Command of {role}", line) for role, line in commands.items()]


def _print_versions(versions: list[VersionView]) -> None:
    console, now = output.answers(), output.now()
    output.print_table(
        ("VERSION", "STATE", "STAGE", "ALIASES", "SIZE", "JOB", "CREATED", "DETAIL"),
        [
            (
                view.version,
                output.state_text(view.state, console),
                view.stage,
                ", ".join(view.aliases) or None,
                output.size(view.size_bytes),
                view.source.job or None,
                output.ago(view.created_at, now),
                view.reason or _values(view.metrics),
            )
            for view in versions
        ],
        empty="No versions.",
    )


def _print_version(view: VersionView, *, as_json: bool) -> None:
    if as_json:
        output.print_json(view)
        return
    more = "".join(f", {word}" for word in (view.stage if view.stage != "none" else "", *view.aliases) if word)
    protected = ", protected" if view.is_protected else ""
    output.say(f"{view.model} version {view.version} {view.state}{more}{protected}")
    if view.reason:
        output.note(view.reason)


def _aliases(view: ModelView) -> str | None:
    return ", ".join(f"{name} -> {number}" for name, number in view.aliases.items()) or None


def _values(values: Mapping[str, Any]) -> str | None:
    return output.values_text(values) or None


def _stage(text: str) -> Stage:
    from trainmaster.wire.models import STAGES

    for known in STAGES:
        if known == text:
            return known
    raise typer.BadParameter(f"{text!r} is not a stage; stages are {', '.join(STAGES)}", param_hint="STAGE")
