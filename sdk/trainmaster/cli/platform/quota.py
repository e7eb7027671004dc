"""``quota``: limits, guarantees and usage of projects and their users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.scheduling import QuotaLineView, QuotaView


class _OrShow(TyperGroup):
    """``quota vision`` is ``quota show vision``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        is_project = bool(args) and args[0] not in self.commands and not args[0].startswith("-")
        return super().resolve_command(ctx, ["show", *args] if is_project else args)


app = typer.Typer(
    cls=_OrShow,
    help="Limits and guarantees of projects; `quota PROJECT` shows one.",
    invoke_without_command=True,
    subcommand_metavar="[PROJECT] | COMMAND …",
)
Assignments = Annotated[list[str] | None, typer.Argument(metavar="WHAT=AMOUNT…", show_default=False)]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="quota", rich_help_panel="Platform")


@app.callback()
def quota(ctx: typer.Context, json: options.Json = False) -> None:
    """Limits, guarantees and usage; alone: of all your projects."""
    if ctx.invoked_subcommand is None:
        with session.client() as client:
            _print(list(client.list_quotas()), as_json=json)


@app.command()
def show(project: options.ProjectName, json: options.Json = False) -> None:
    """Show a project's quota with its users."""
    with session.client() as client:
        view = client.get_quota(project)
    if json or session.current().as_json:
        output.print_json(view)
        return
    _print([view], as_json=False, is_whole=True)
    _print_storage(view)
    _print_users(view)


@app.command("set")
def set_quota(
    project: options.ProjectName,
    limits: Assignments = None,
    guaranteed: Annotated[
        list[str] | None,
        typer.Option("--guaranteed", "-g", metavar="WHAT=AMOUNT", help="Guarantee, enforced by preemption."),
    ] = None,
    user_limit: Annotated[
        list[str] | None,
        typer.Option("--user-limit", metavar="WHAT=AMOUNT", help="Limit for each user of the project."),
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option("--user", metavar="USER:WHAT=AMOUNT", help="Limit for one user instead.")
    ] = None,
    user_guaranteed: Annotated[
        list[str] | None,
        typer.Option(
            "--user-guaranteed", metavar="USER:WHAT=AMOUNT", help="Guarantee against other users of the project."
        ),
    ] = None,
    user_weight: Annotated[
        list[str] | None,
        typer.Option("--user-weight", metavar="USER=WEIGHT", help="Weight of a user's share in the project."),
    ] = None,
    weight: Annotated[float | None, typer.Option("--weight", help="Weight of the project's fair share.")] = None,
    max_priority: Annotated[
        str | None,
        typer.Option("--max-priority", help="Maximum priority of its jobs: low, normal, high, urgent, 0 to 100."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Set limits, such as gpus=16 gpus/H100=8 cpu=256 memory=2Ti jobs=20 storage=10Ti (platform admins). See also
    `quota unset`.
    """
    more: dict[str, Any] = {} if max_priority is None else {"max_priority": max_priority}
    weights = {
        name: _weight(text) for name, text in options.pairs(user_weight or [], "--user-weight", is_once=True).items()
    }
    changes: dict[str, Any] = {
        "limits": options.pairs(limits or [], "WHAT=AMOUNT", is_once=True),
        "guaranteed": options.pairs(guaranteed or [], "--guaranteed", is_once=True),
        "user_limit": options.pairs(user_limit or [], "--user-limit", is_once=True),
        "users": _by_user(user or [], "--user"),
        "user_guaranteed": _by_user(user_guaranteed or [], "--user-guaranteed"),
        "user_weights": weights,
    }
    if not any(changes.values()) and weight is None and not more:
        raise typer.BadParameter("say what to set, such as gpus=16 or --guaranteed gpus=8", param_hint="WHAT=AMOUNT")
    with session.client() as client:
        view = client.update_quota(project, **{k: v for k, v in changes.items() if v}, weight=weight, **more)
    _tell(view, changes, as_json=json)


@app.command()
def unset(
    project: options.ProjectName,
    limits: Annotated[list[str] | None, typer.Argument(metavar="WHAT…", show_default=False)] = None,
    guaranteed: Annotated[list[str] | None, typer.Option("--guaranteed", "-g", metavar="WHAT")] = None,
    user_limit: Annotated[list[str] | None, typer.Option("--user-limit", metavar="WHAT")] = None,
    user: Annotated[list[str] | None, typer.Option("--user", metavar="USER", help="All limits of this user.")] = None,
    user_guaranteed: Annotated[
        list[str] | None, typer.Option("--user-guaranteed", metavar="USER", help="All guarantees of this user.")
    ] = None,
    user_weight: Annotated[list[str] | None, typer.Option("--user-weight", metavar="USER")] = None,
    max_priority: Annotated[bool, typer.Option("--max-priority", help="The maximum priority.")] = False,
    json: options.Json = False,
) -> None:
    """Remove limits or guarantees (platform admins)."""
    changes: dict[str, Any] = {
        "limits": dict.fromkeys(limits or []),
        "guaranteed": dict.fromkeys(guaranteed or []),
        "user_limit": dict.fromkeys(user_limit or []),
        "users": dict.fromkeys(user or []),
        "user_guaranteed": dict.fromkeys(user_guaranteed or []),
        "user_weights": dict.fromkeys(user_weight or []),
    }
    more: dict[str, Any] = {"max_priority": None} if max_priority else {}
    if not any(changes.values()) and not more:
        raise typer.BadParameter("say what to remove, such as gpus or --guaranteed gpus", param_hint="WHAT")
    with session.client() as client:
        before = client.get_quota(project)
        view = client.update_quota(project, **{k: v for k, v in changes.items() if v}, **more)
    _tell(view, changes, as_json=json)
    for sentence in _unset_before(before, changes):
        output.note(sentence, "yellow")


def _unset_before(before: QuotaView, changes: dict[str, Any]) -> list[str]:
    """Messages for removed settings that were not set, which are probably typing errors."""
    lines = {line.what.casefold(): line for line in before.lines}
    users = {user.user: user for user in before.users}
    sentences = []
    for part, field, message in (
        ("limits", "limit", "no limit on {} was set"),
        ("guaranteed", "guaranteed", "no {} were guaranteed"),
        ("user_limit", "user_limit", "no limit on {} of each user was set"),
    ):
        for resource in changes[part]:
            line = lines.get(resource.casefold())
            if line is None or getattr(line, field) is None:
                sentences.append(message.format(resource))
    for part, field, message in (
        ("users", "limit", "no limits of {} were set"),
        ("user_guaranteed", "guaranteed", "nothing was guaranteed to {}"),
    ):
        sentences += [message.format(user) for user in changes[part] if not getattr(users.get(user), field, None)]
    weighted = {user for user, quota in users.items() if quota.weight != 1}
    sentences += [f"no weight of {user} was set" for user in changes["user_weights"] if user not in weighted]
    return [f"{before.project}: {sentence} before." for sentence in sentences]


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint="--user-weight") from None


def _by_user(assignments: list[str], option: str) -> dict[str, dict[str, str]]:
    amounts_by_user: dict[str, dict[str, str]] = {}
    for assignment in assignments:
        user, colon, limit = assignment.partition(":")
        resource, equals, amount = limit.partition("=")
        if not (colon and equals and user and resource):
            raise typer.BadParameter(f"{assignment!r} is not USER:WHAT=AMOUNT, such as ann:gpus=4", param_hint=option)
        if amounts_by_user.setdefault(user, {}).get(resource, amount) != amount:
            raise typer.BadParameter(
                f"{user}:{resource} is given twice, as {amounts_by_user[user][resource]} and as {amount}",
                param_hint=option,
            )
        amounts_by_user[user][resource] = amount
    return amounts_by_user


# --- how it looks -----------------------------------------------------------------------------------------------------


def _named(changes: dict[str, Any]) -> set[str]:
    """What was set, as it was written: ``gpus``, ``gpus/H100``."""
    of_users = [amounts or {} for part in ("users", "user_guaranteed") for amounts in changes[part].values()]
    maps = [changes["limits"], changes["guaranteed"], changes["user_limit"], *of_users]
    return {resource.casefold() for each in maps for resource in each}


def _print_storage(view: QuotaView) -> None:
    """What takes the storage, and when that was measured."""
    storage = view.storage
    if storage.measured_at is None:
        output.note("Storage: not measured yet.", "dim")
        return
    parts = [f"{part} {amount('storage', size)}" for part, size in storage.parts.items() if size]
    measured = f"measured {output.ago(storage.measured_at, output.now())}"
    output.note(f"Storage: {', '.join([*parts, measured])}.", "dim")


def _print_users(view: QuotaView) -> None:
    if not view.users:
        return
    output.say()
    output.print_table(
        ("USER", "USED", "LIMIT", "GUARANTEED", "WEIGHT"),
        [
            (
                user.user,
                _amounts(user.used),
                _amounts(user.limit) or "default",
                _amounts(user.guaranteed) or None,
                f"{user.weight:g}",
            )
            for user in view.users
        ],
        empty="",
    )


def _tell(view: QuotaView, changes: dict[str, Any], *, as_json: bool) -> None:
    """Print a changed quota, with only the warnings about the changed settings, and with users if theirs changed."""
    named = _named(changes)
    is_of_users = any(changes[part] for part in ("user_limit", "users", "user_guaranteed", "user_weights"))
    if as_json or session.current().as_json:
        output.print_json(view)
        return

    def is_about(warning: str) -> bool:
        text = warning.casefold()
        return any(
            text.startswith(f"{resource}:")
            or ("/" in resource and (text.startswith(resource) or f" {resource[5:]};" in text))
            for resource in named
        )

    warnings = [warning for warning in view.warnings if is_about(warning)]
    _print([view.model_copy(update={"warnings": warnings})], as_json=False)
    if is_of_users:
        _print_users(view)
    if len(warnings) < len(view.warnings):
        more_warnings = output.count(len(view.warnings) - len(warnings), "other warning")
        output.note(f"{more_warnings}: `trainmaster quota {view.project}`.", "dim")


def _print(views: list[QuotaView], *, as_json: bool, is_whole: bool = False) -> None:
    if as_json or session.current().as_json:
        output.print_json(views)
        return
    output.print_table(
        ("PROJECT", "RESOURCE", "USED", "LIMIT", "GUARANTEED", "PER USER", "CAPACITY"),
        [
            _row(view, line, is_first=not number)
            for view in views
            for number, line in enumerate(view.lines if is_whole else _shown(view))
        ],
        empty="No projects.",
    )
    for view in views:
        if view.max_priority is not None:
            output.note(f"{view.project}: maximum priority of its jobs {view.max_priority}.", "dim")
        output.warn(f"{view.project}: {warning}" for warning in view.warnings)


def _shown(view: QuotaView) -> list[QuotaLineView]:
    """All resources except GPU models without limit, guarantee and usage."""
    return [
        line
        for line in view.lines
        if "/" not in line.what
        or line.used
        or any(value is not None for value in (line.limit, line.guaranteed, line.user_limit))
    ]


def _row(view: QuotaView, line: QuotaLineView, *, is_first: bool) -> tuple[Any, ...]:
    from rich.text import Text

    is_full = line.limit is not None and line.used >= line.limit > 0
    used = amount(line.what, line.used)
    return (
        f"{view.project} (weight {view.weight:g})" if is_first else " ",
        line.what,
        Text(used, "yellow") if is_full else used,
        "no limit" if line.limit is None else amount(line.what, line.limit),
        *(None if value is None else amount(line.what, value) for value in (line.guaranteed, line.user_limit)),
        None if line.capacity is None else amount(line.what, line.capacity),
    )


def amount(resource: str, value: float) -> str:
    return (output.size(int(value)) or "0") if resource in ("memory", "storage") else f"{value:g}"


def _amounts(amounts: dict[str, float]) -> str:
    return ", ".join(f"{resource} {amount(resource, value)}" for resource, value in amounts.items())
