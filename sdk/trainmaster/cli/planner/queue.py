"""``queue``: the waiting jobs with reasons, the running jobs, and the projects' shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    from trainmaster.client import Client
    from trainmaster.wire.forecasts import ExpectedStartView
    from trainmaster.wire.scheduling import QueuePage, RunningJobView, SharesView, ShareView, WaitingJobView

_WATCH_EVERY_S: Final = 2.0
_BAR: Final = 20  # characters
_ROOMY: Final = 100  # terminal width from which users and priority classes have columns
_WIDE: Final = 150  # terminal width from which reasons have a column
_WIDEST: Final = 30
_MOST_RUNNING: Final = 12
_OTHERS: Final = "(others)"


def register(root: typer.Typer) -> None:
    root.command("queue", rich_help_panel="Jobs")(queue)


def queue(
    project: options.Project = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of waiting jobs to show.")] = 20,
    watch: options.Refresh = False,
    json: options.Json = False,
) -> None:
    """Show the projects' shares, the running jobs, and the queue with the reasons why jobs wait."""
    with session.client() as client:
        if json:
            waiting, running, shares = _read(client, project, limit)
            output.print_json(
                {
                    "waiting": waiting.waiting,
                    "planned_at": waiting.planned_at.isoformat() if waiting.planned_at else None,
                    "accuracy": output.to_plain(waiting.accuracy),
                    "jobs": output.to_plain(waiting.items),
                    "running": output.to_plain(running),
                    "shares": output.to_plain(shares),
                }
            )
        elif watch:
            _watch(client, project, limit)
        else:
            console = output.answers()
            snapshot = _read(client, project, limit)
            is_piped = not console.is_terminal
            for part in picture(*snapshot, console=console, now=output.now(), limit=limit, is_roomy=is_piped or None):
                if isinstance(part, _Table) and not console.is_terminal:
                    output.print_table([head.strip() for head in part.heads], part.rows, empty="")
                else:
                    console.print(part)


def _read(client: Client, project: str | None, limit: int) -> tuple[QueuePage, list[RunningJobView], SharesView]:
    page = client.list_queue_page(project=project, limit=min(limit, 200))
    items = list(page.items)
    while page.next_cursor is not None and len(items) < limit:
        following = client.list_queue_page(project=project, limit=min(limit - len(items), 200), cursor=page.next_cursor)
        items += following.items
        page = page.model_copy(update={"next_cursor": following.next_cursor})
    running = [job for job in client.list_running() if project in (None, job.project)]
    return page.model_copy(update={"items": items}), running, client.get_shares()


def _watch(client: Client, project: str | None, limit: int) -> None:
    import threading

    from rich.console import Group
    from rich.live import Live

    from trainmaster.errors import ServerFailure, ServerUnreachable

    console = output.answers()

    def render() -> Any:
        found = _read(client, project, limit)
        return Group(*picture(*found, console=console, now=output.now(), limit=limit))

    pause = threading.Event()
    with Live(render(), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while not pause.wait(_WATCH_EVERY_S):
            try:
                live.update(render(), refresh=True)
            except (ServerUnreachable, ServerFailure):
                continue  # the last view stays until the server is back


def picture(
    waiting: QueuePage,
    running: list[RunningJobView],
    shares: SharesView,
    *,
    console: Console,
    now: datetime,
    limit: int,
    is_roomy: bool | None = None,
) -> list[Any]:
    """Shares as bars, running jobs and waiting jobs, each with a headline.

    Args:
        is_roomy: whether to show all columns; ``None``: if the console is wide enough.
    """
    from rich.text import Text

    is_roomy = console.width >= _ROOMY if is_roomy is None else is_roomy
    shown = len(waiting.items)
    more = f", the first {shown} of them:" if waiting.waiting > shown and shown == limit else ":"
    known = [job for job in running if job.job_id]
    parts: list[Any] = [
        Text("Shares", "bold"),
        _share_table(shares, console, is_roomy=is_roomy) if shares.projects else Text("  No usage or demand.", "dim"),
    ]
    parts += [Text(""), Text(f"{output.count(len(running), 'running job')}", "bold")]
    if known:
        parts.append(_running_table(known[:_MOST_RUNNING], now, is_roomy=is_roomy))
    if len(known) > _MOST_RUNNING:
        parts.append(Text(f"  and {len(known) - _MOST_RUNNING} more", "dim"))
    others = [job for job in running if not job.job_id]
    if others:
        holds = amounts(sum(job.gpus for job in others), sum(job.cpus for job in others))
        foreign = f"{'and ' if known else ''}{len(others)} of other projects"
        parts.append(Text(f"  {foreign}, using {holds}", "dim"))
    never = sum(map(_is_never, waiting.items)) if shown == waiting.waiting else 0  # otherwise not all are known
    headline = output.count(waiting.waiting - never, "waiting job")
    if never:
        headline += f", and {never} that can never start on the present cluster"
    parts += [Text(""), Text(headline + (more if shown else ""), "bold")]
    if shown:
        parts.append(_waiting_table(waiting.items, now, is_roomy=is_roomy, is_wide=console.width >= _WIDE))
    if waiting.accuracy is not None:
        parts.append(Text(f"  {waiting.accuracy.sentence}", "dim"))
    return parts


# --- shares -----------------------------------------------------------------------------------------------------------


def bar(usage: float, fair_share: float, width: int = _BAR, *, is_fancy: bool = True) -> str:
    """Present usage as a bar, of ``width`` for the whole cluster, with a mark at the fair share."""
    full, empty, mark = ("█", "·", "│") if is_fancy else ("#", ".", "|")
    filled = min(width, max(0, round(usage * width)))
    at = min(width - 1, max(0, round(fair_share * width) - 1)) if fair_share > 0 else None
    return "".join(mark if place == at else full if place < filled else empty for place in range(width))


def _share_table(shares: SharesView, console: Console, *, is_roomy: bool) -> _Table:
    from rich.text import Text

    is_fancy = output.is_fancy(console)
    has_cpus = is_roomy or not shares.gpus
    rows: list[list[Any]] = []
    for share in sorted(shares.projects, key=lambda each: (each.project is None, -each.allocated, each.project or "")):
        is_over = share.allocated > share.entitlement + 0.005
        rows.append(
            [
                f"  {share.project or _OTHERS}",
                f"{share.allocated:.0%}",
                Text(bar(share.allocated, share.entitlement, is_fancy=is_fancy), "yellow" if is_over else "green"),
                f"{share.entitlement:.0%}",
                "–" if share.usage is None else f"{share.usage:.0%}",
                f"{share.weight:g}",
                *([_gpus(share, shares)] if shares.gpus else []),
                *([f"{share.cpus:g}/{shares.cpu_milli / 1000:g}"] if has_cpus else []),
            ]
        )
    heads = ["  PROJECT", "USING", "SHARE", "FAIR SHARE", "RECENT", "WEIGHT"]
    return _Table([*heads, *(["GPUS"] if shares.gpus else []), *(["CPUS"] if has_cpus else [])], rows)


def _gpus(share: ShareView, shares: SharesView) -> str:
    return ", ".join(f"{count:g}/{shares.gpus.get(model, 0):g} {model}" for model, count in share.gpus.items()) or "–"


# --- jobs -------------------------------------------------------------------------------------------------------------


def _running_table(jobs: list[RunningJobView], now: datetime, *, is_roomy: bool) -> _Table:
    rows = [
        [
            f"  {job.name}",
            job.project or "",
            *([job.user or ""] if is_roomy else []),
            _number(job.gpus),
            _number(job.cpus),
            (output.duration(now - job.started_at) or "") if job.started_at else "–",
            _until(job, now),
        ]
        for job in sorted(jobs, key=lambda each: (each.ends_at is None, each.ends_at or now, each.name or ""))
    ]
    heads = ["  JOB", "PROJECT", *(["USER"] if is_roomy else []), "GPUS", "CPUS", "RUNTIME", "EXPECTED END"]
    return _Table(heads, rows)


def _until(job: RunningJobView, now: datetime) -> str:
    if job.likely_end_at is not None:
        return f"in about {output.duration(job.likely_end_at - now)}"
    if job.ends_at is not None:
        return f"within {output.duration(job.ends_at - now)}"
    return "not stated"


def _waiting_table(jobs: list[WaitingJobView], now: datetime, *, is_roomy: bool, is_wide: bool) -> _Table:
    rows = []
    for group in _grouped(jobs):
        first, *rest = group
        last = rest[-1] if rest else first
        has_same_priority = {job.priority for job in group} == {first.priority}
        rows.append(
            [
                "  –" if _is_never(first) else f"  {first.position}" + (f"–{last.position}" if rest else ""),
                first.name or (f"({len(group)} of other projects)" if rest else "(of another project)"),
                first.project or "",
                *([first.user or ""] if is_roomy else []),
                _number(sum(job.gpus for job in group)),
                _number(sum(job.cpus for job in group)),
                _priority(first, is_roomy=is_roomy) if has_same_priority else "",
                "" if rest else "never" if _is_never(first) else start_text(first.start, now),
                first.reason.sentence if first.reason else "",
            ]
        )
    priority = "PRIORITY" if is_roomy else "PRI"
    heads = [
        "  #",
        "JOB",
        "PROJECT",
        *(["USER"] if is_roomy else []),
        "GPUS",
        "CPUS",
        priority,
        "EXPECTED START",
        "REASON",
    ]
    return _Table(heads, rows, is_below=not is_wide)


def _is_never(job: WaitingJobView) -> bool:
    """Whether it has no queue position, since it can never start on the present cluster."""
    return job.position is None or (job.reason is not None and job.reason.is_infeasible)


def _grouped(jobs: list[WaitingJobView]) -> list[list[WaitingJobView]]:
    """Groups consecutive jobs of other projects, of which only the position is visible, into one line."""
    found: list[list[WaitingJobView]] = []
    for job in jobs:
        last = found[-1][-1] if found else None
        is_next = (
            last is not None and None not in (job.position, last.position) and job.position == (last.position or 0) + 1
        )
        if last is not None and is_next and not job.job_id and not last.job_id:
            found[-1].append(job)
        else:
            found.append([job])
    return found


def _priority(job: WaitingJobView, *, is_roomy: bool) -> str:
    return (job.priority_class or str(job.priority)) if is_roomy else str(job.priority)


def amounts(gpus: float, cpus: float) -> str:
    """``26 GPUs and 48 CPUs``."""
    parts = [output.count(float(count), noun) for count, noun in ((gpus, "GPU"), (cpus, "CPU")) if count]
    return " and ".join(parts) or "nothing"


def start_text(start: ExpectedStartView | None, now: datetime) -> str:
    """``14:20 (13:50–16:00)`` as on the web pages, with the date if it is not today."""
    if start is None or (start.likely_at is None and start.early_at is None):
        return "–"
    if start.code == "now":
        return "now"

    def clock(at: datetime) -> str:
        local, today = at.astimezone(), now.astimezone()
        return local.strftime("%H:%M" if local.date() == today.date() else "%b %d %H:%M")

    early = clock(start.early_at) if start.early_at else None
    if start.likely_at is None:
        return f"after {early}"
    if early is None:
        return clock(start.likely_at)
    return f"{clock(start.likely_at)} ({early}{f'–{clock(start.late_at)}' if start.late_at else ' or later'})"


def _number(gpus: float) -> str:
    return f"{gpus:g}" if gpus else "–"


@dataclass(slots=True)
class _Table:
    """A table for a terminal, whose last column wraps, or is shown on its own line below each row (``is_below``)."""

    heads: list[str]
    rows: list[list[Any]]
    is_below: bool = False

    def __rich_console__(self, console: Console, _options: ConsoleOptions) -> Iterator[Any]:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        heads = self.heads[:-1] if self.is_below else self.heads
        cells = [[_text(cell) for cell in row] for row in self.rows]
        for at, head in enumerate(heads):
            is_flexible = at == len(self.heads) - 1
            least = None if is_flexible else min(_WIDEST, max(len(head), *(len(row[at]) for row in cells)))
            table.add_column(
                head,
                no_wrap=not is_flexible,
                overflow="fold" if is_flexible else "ellipsis",
                min_width=least,
                max_width=None if is_flexible else _WIDEST,
            )
        for row in cells:
            table.add_row(*row[: len(heads)])
        if not self.is_below:
            yield table
            return
        # Rendered as a whole to align the columns; each row is followed by its last cell.
        for number, line in enumerate(console.render_lines(table, pad=False)):
            yield Text("").join(Text(segment.text, segment.style or "") for segment in line)
            if number and self.rows[number - 1][-1]:
                yield Padding(Text(cells[number - 1][-1].plain, "dim"), (0, 0, 0, 5))


def _text(cell: Any) -> Text:
    from rich.text import Text

    from trainmaster.cli.terminal.output import without_escapes

    return cell if isinstance(cell, Text) else Text(without_escapes(str(cell)) or "–")
