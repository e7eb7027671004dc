"""``usage``, ``price`` and ``budget``: what jobs held, what it cost, and what projects may spend."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.usage import BudgetAction, BudgetView, UsageReport

price_app = typer.Typer(help="Prices of GPUs, cores and memory.", invoke_without_command=True)
budget_app = typer.Typer(help="What projects may spend in a month.", invoke_without_command=True)


def register(root: typer.Typer) -> None:
    root.command("usage", rich_help_panel="Platform")(usage)
    root.add_typer(price_app, name="price", rich_help_panel="Platform")
    root.add_typer(budget_app, name="budget", rich_help_panel="Platform")


def usage(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Of this job alone.", autocompletion=options.complete_job),
    ] = None,
    group_by: Annotated[
        str, typer.Option("--by", help="project, user, job, study, gpu_model, node, or label:KEY.")
    ] = "project",
    since: Annotated[
        str | None, typer.Option("--since", help="2026-11-01, or 7d for a week ago; default: this month (UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="The same; default: now.")] = None,
    project: options.Project = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's jobs.")] = None,
    is_daily: Annotated[bool, typer.Option("--daily", help="A line for each day as well.")] = False,
    is_monthly: Annotated[bool, typer.Option("--monthly", help="A line for each month as well.")] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write all groups to this file; - for stdout.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show GPU-hours and cost: `trainmaster usage --by user --since 30d`, or of one job."""
    if is_daily and is_monthly:
        raise typer.BadParameter("one of --daily and --monthly", param_hint="--monthly")
    if job is not None:
        with session.client() as client:
            view = client.get_job_usage(job)
        if json or session.current().as_json:
            output.print_json(view)
        else:
            output.print_pairs(_pairs(view, view.currency))
        return
    now = output.now()
    query: dict[str, Any] = {
        "since": options.moment(since, now, "--since"),
        "until": options.moment(until, now, "--until"),
        "group_by": group_by,
        "project": project,
        "user": user,
    }
    with session.client() as client:
        if csv is not None:
            _write_csv(csv, client.get_usage_csv(**query))
            return
        report = client.get_usage(**query, interval="day" if is_daily else "month" if is_monthly else None)
    if json or session.current().as_json:
        output.print_json(report)
        return
    _print_report(report)


def _write_csv(path: Path, text: str) -> None:
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    path.write_text(text, encoding="utf-8", newline="")
    output.note(f"Wrote {output.count(len(text.splitlines()) - 1, 'line')} to {path}.")


def _pairs(view: Any, currency: str) -> list[tuple[str, Any]]:
    return [
        ("GPU-hours", f"{view.gpu_hours:.2f}"),
        ("Core-hours", f"{view.cpu_hours:.2f}"),
        ("GiB-hours", f"{view.memory_gib_hours:.2f}"),
        ("Cost", f"{view.cost:.2f} {currency}"),
        ("Idle", f"{view.idle_gpu_hours:.2f} GPU-hours, {view.idle_cost:.2f} {currency}"),
        ("Lost", f"{view.lost_gpu_hours:.2f} GPU-hours, {view.lost_cost:.2f} {currency}"),
    ]


def _print_report(report: UsageReport) -> None:
    head = report.group_by.removeprefix("label:").replace("_", " ").upper()
    columns = (
        head,
        "JOBS",
        "GPU-HOURS",
        "CORE-HOURS",
        "GIB-HOURS",
        f"COST ({report.currency})",
        "IDLE COST",
        "LOST COST",
    )
    rows = [(group.key or "(none)", *_figures(group)) for group in report.groups]
    if report.others is not None:
        rows.append(("(others)", *_figures(report.others)))
    if len(rows) > 1:
        rows.append(("total", *_figures(report.total)))
    begin, end = output.local_time(report.since), output.local_time(report.until)
    output.print_table(columns, rows, empty=f"No usage from {begin} to {end}.")
    if report.periods:
        output.say()
        output.print_table(
            ("FROM (UTC)", "GPU-HOURS", f"COST ({report.currency})"),
            [
                (
                    f"{period.start:%Y-%m-%d}",
                    f"{sum(value.gpu_hours for value in period.values):.2f}",
                    f"{sum((value.cost for value in period.values), Decimal()):.2f}",
                )
                for period in report.periods
            ],
            empty="No usage.",
        )


def _figures(view: Any) -> tuple[str, ...]:
    hours = (f"{value:.2f}" for value in (view.gpu_hours, view.cpu_hours, view.memory_gib_hours))
    return (str(view.jobs), *hours, f"{view.cost:.2f}", f"{view.idle_cost:.2f}", f"{view.lost_cost:.2f}")


def _amount(text: str, name: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation as error:
        raise typer.BadParameter(f"{text!r} is not an amount; write 2.5", param_hint=name) from error
    if not amount.is_finite() or amount < 0:
        raise typer.BadParameter(f"{text!r} is not an amount; write 2.5", param_hint=name)
    return amount


# --- prices ---------------------------------------------------------------------------------------------------------


@price_app.callback()
def price(ctx: typer.Context, json: options.Json = False) -> None:
    """Prices of a GPU, core or GiB of memory for an hour; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_prices(json=json)


@price_app.command("list")
def list_prices(json: options.Json = False) -> None:
    """List the prices, the newest first."""
    with session.client() as client:
        prices = list(client.list_prices())
    if json or session.current().as_json:
        output.print_json(prices)
        return
    output.print_table(
        ("ID", "RESOURCE", "MODEL", "NODES", "PER HOUR", "FROM"),
        [
            (
                view.id,
                view.resource,
                view.gpu_model or "any",
                output.values_text(view.node_selector) or "all",
                f"{view.per_hour} {view.currency}",
                output.local_time(view.effective_from),
            )
            for view in prices
        ],
        empty="No prices: all usage is free. Add one: trainmaster price set gpu 2.50",
    )


@price_app.command("set")
def set_price(
    resource: Annotated[str, typer.Argument(metavar="gpu|cpu|memory", help="Of a GPU, core, or GiB of memory.")],
    per_hour: Annotated[str, typer.Argument(metavar="PER_HOUR", help="Such as 2.50.")],
    gpu_model: Annotated[str, typer.Option("--model", help="Only GPUs of this model, such as H100.")] = "",
    selector: Annotated[
        list[str] | None,
        typer.Option("--select", "-s", metavar="LABEL=VALUE", help="Only nodes with this label. Repeatable."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="2026-12-01, or 2d for two days ago; default: now.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Set a price from now on, or from --from (platform admins); the most specific price counts."""
    if resource not in ("gpu", "cpu", "memory"):
        raise typer.BadParameter(f"{resource!r} is none of gpu, cpu and memory", param_hint="gpu|cpu|memory")
    amount = _amount(per_hour, "PER_HOUR")
    with session.client() as client:
        view = client.create_price(
            resource,
            amount,
            gpu_model=gpu_model,
            node_selector=options.pairs(selector or [], "--select", is_once=True),
            effective_from=options.moment(since, output.now(), "--from"),
        )
    what = f"{view.gpu_model} GPU" if view.gpu_model else {"gpu": "GPU", "cpu": "core", "memory": "GiB"}[view.resource]
    text = f"A {what} costs {view.per_hour} {view.currency} an hour from {output.local_time(view.effective_from)} on."
    output.print_result(view, text, as_json=json)


@price_app.command("delete")
def delete_price(price_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Delete a price as if it had never been (platform admins); to end one, set another."""
    with session.client() as client:
        client.delete_price(price_id)
    output.note(f"Deleted price {price_id}.")


# --- budgets --------------------------------------------------------------------------------------------------------


@budget_app.callback()
def budget(ctx: typer.Context, json: options.Json = False) -> None:
    """What projects may spend in a calendar month (UTC), and have spent in this one; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_budgets(json=json)


@budget_app.command("list")
def list_budgets(json: options.Json = False) -> None:
    """List the budgets of your projects."""
    with session.client() as client:
        budgets = list(client.list_budgets())
    _print_budgets(budgets, as_json=json)


@budget_app.command("set")
def set_budget(
    project: options.ProjectName,
    per_month: Annotated[str, typer.Argument(metavar="PER_MONTH", help="Such as 5000.")],
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse new jobs once it is spent; default: warn.")] = False,
    lower_priority: Annotated[
        bool, typer.Option("--lower-priority", help="Once it is spent, jobs wait behind those of all other projects.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Set what a project may spend in a calendar month (platform admins)."""
    amount = _amount(per_month, "PER_MONTH")
    if refuse and lower_priority:
        raise typer.BadParameter("one of --refuse and --lower-priority", param_hint="--lower-priority")
    action: BudgetAction = "refuse" if refuse else "lower_priority" if lower_priority else "warn"
    with session.client() as client:
        view = client.set_budget(project, amount, action=action)
    _print_budgets([view], as_json=json)


@budget_app.command("unset")
def unset_budget(project: options.ProjectName) -> None:
    """Remove a project's budget (platform admins)."""
    with session.client() as client:
        client.delete_budget(project)
    output.note(f"Project {project} has no budget.")


def _print_budgets(budgets: list[BudgetView], *, as_json: bool) -> None:
    if as_json or session.current().as_json:
        output.print_json(budgets)
        return
    output.print_table(
        ("PROJECT", "PER MONTH", "SPENT", "LEFT", "THEN"),
        [
            (
                view.project,
                "no budget" if view.per_month is None else f"{view.per_month} {view.currency}",
                f"{view.spent:.2f}",
                None if view.per_month is None else f"{view.per_month - view.spent:.2f}",
                view.action,
            )
            for view in budgets
        ],
        empty="No projects.",
    )
