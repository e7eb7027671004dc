"""``nodes``: the nodes, their labels, cordon and drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.admin import NodeView
    from trainmaster.wire.scheduling import ReservationView

app = typer.Typer(help="The machines that training runs on.", invoke_without_command=True)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="nodes", rich_help_panel="Platform")


@app.callback()
def nodes(ctx: typer.Context, json: options.Json = False) -> None:
    """The machines that training runs on; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_nodes(json=json)


@app.command("list")
def list_nodes(json: options.Json = False) -> None:
    """List the nodes with their capacity and usage."""
    with session.client() as client:
        nodes = list(client.list_nodes())
        if json or session.current().as_json:
            output.print_json(nodes)
            return
        active = [reservation for reservation in client.list_reservations() if reservation.is_active]
    now = output.now()
    reserved = {
        name: f", reserved for {reservation.project or 'another project'}"
        for reservation in active
        for name in reservation.nodes
    }
    output.print_table(
        ("NODE", "STATE", "CPU", "MEMORY", "GPUS", "REPLICAS", "LAST SEEN"),
        [
            (
                node.name,
                _state(node) + reserved.get(node.name, ""),
                _of(node, "cpu_milli", lambda value: f"{value / 1000:g}"),
                _of(node, "memory_bytes", lambda value: output.size(int(value)) or ""),
                _gpus(node),
                str(node.replicas),
                output.ago(node.seen_at, now),
            )
            for node in nodes
        ],
        empty="No nodes; the scheduler adds them when it starts.",
    )


def _state(node: NodeView) -> str:
    if not node.is_ready:
        return f"not ready: {node.condition}" if node.condition else "not ready"
    if node.is_draining:
        word = "draining" if node.replicas else "drained"
        return f"{word}: {node.cordon_reason}" if node.cordon_reason else word
    if node.is_cordoned:
        return f"cordoned: {node.cordon_reason}" if node.cordon_reason else "cordoned"
    if node.quarantine is not None:
        until = f" until {output.local_time(node.quarantine.until)}" if node.quarantine.until else ""
        return f"quarantined{until}: {node.quarantine.why}"
    state = f"unschedulable: {node.condition}" if node.condition else "ready"
    return f"{state}, suspected: {node.suspicion.why}" if node.suspicion is not None else state


def _quarantine(node: NodeView) -> list[tuple[str, str | None]]:
    """Details of the node's quarantine, or why a suspected node is not quarantined."""
    details: list[tuple[str, str | None]]
    if node.quarantine is not None:
        until, jobs = node.quarantine.until, node.quarantine.jobs
        details = [
            ("Quarantined", f"since {output.local_time(node.quarantine.since)}"),
            ("Until", output.local_time(until) if until else "it is released"),
            ("Why", node.quarantine.why),
            ("Release", f"trainmaster nodes release {node.name}"),
        ]
    elif node.suspicion is not None:
        jobs = node.suspicion.jobs
        details = [("Suspected", node.suspicion.why), ("Not quarantined", f"since {node.suspicion.why_not}")]
    else:
        return []
    lines = [f"{job.job} ({job.job_id}), {output.local_time(job.at)}: {job.error}" for job in jobs if job.job_id]
    return [*details, *(("Job", line) for line in lines)]


def _reserved(view: ReservationView) -> str:
    begin = "" if view.is_active else f", from {output.local_time(view.begins_at)}"
    project = view.project or "another project"
    return f"for {project}{begin} until {output.local_time(view.ends_at)} ({view.name or view.id})"


def _of(node: NodeView, key: str, show: Any) -> str | None:
    total = node.allocatable.get(key)
    return None if total is None else f"{show(node.used.get(key) or 0)} / {show(total)}"


def _gpus(node: NodeView) -> str | None:
    has: Any = node.allocatable.get("gpus") or {}
    used: Any = node.used.get("gpus") or {}
    if not isinstance(has, dict):
        return str(has)
    used = used if isinstance(used, dict) else {}
    return ", ".join(f"{used.get(model, 0):g} / {count} {model}" for model, count in sorted(has.items()))


@app.command()
def show(node: options.Node, json: options.Json = False) -> None:
    """Show one node."""
    with session.client() as client:
        view = client.get_node(node)
        if json:
            output.print_json(view)
            return
        reservations = [item for item in client.list_reservations() if view.name in item.nodes]
    output.print_pairs(
        [
            ("Node", view.name),
            ("State", _state(view)),
            *_quarantine(view),
            *(("Reserved", _reserved(item)) for item in reservations),
            ("Executor", view.executor),
            ("CPU", _of(view, "cpu_milli", lambda value: f"{value / 1000:g}")),
            ("Memory", _of(view, "memory_bytes", lambda value: output.size(int(value)) or "")),
            ("GPUs", _gpus(view)),
            ("Replicas", str(view.replicas)),
            ("Labels", _labels(view)),
            ("Seen", output.local_time(view.seen_at)),
        ]
    )
    for gpu in view.gpus:
        output.say("  " + "  ".join(f"{key}={value}" for key, value in gpu.items()))


@app.command()
def cordon(node: options.Node, reason: options.Reason = "", json: options.Json = False) -> None:
    """Mark a node unschedulable; running replicas continue."""
    with session.client() as client:
        _tell(client.cordon_node(node, reason=reason), as_json=json)


@app.command()
def drain(node: options.Node, reason: options.Reason = "", json: options.Json = False) -> None:
    """Cordon a node and move its jobs to other nodes, from their last checkpoints."""
    with session.client() as client:
        _tell(client.drain_node(node, reason=reason), as_json=json)


@app.command()
def uncordon(node: options.Node, json: options.Json = False) -> None:
    """Mark a node schedulable again."""
    with session.client() as client:
        _tell(client.uncordon_node(node), as_json=json)


@app.command()
def release(node: options.Node, reason: options.Reason = "", json: options.Json = False) -> None:
    """End a node's quarantine: it is schedulable again (platform admins)."""
    with session.client() as client:
        _tell(client.release_node(node, reason=reason), as_json=json)


@app.command()
def label(
    node: options.Node,
    changes: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE|KEY-…", help="pool=fast sets a label, pool- removes it.", show_default=False),
    ],
    json: options.Json = False,
) -> None:
    """Label a node for node selectors (platform admins)."""
    removals = [change for change in changes if change.endswith("-") and "=" not in change]
    removed = [change[:-1] for change in removals]
    added = options.pairs([change for change in changes if change not in removals], "KEY=VALUE")
    if both := sorted(added.keys() & set(removed)):
        raise typer.BadParameter(f"{both[0]!r} is both set and removed", param_hint="KEY-")
    with session.client() as client:
        before = client.get_node(node)
        labels = {key: value for key, value in before.admin_labels.items() if key not in removed} | added
        for key in removed:
            if key not in before.admin_labels:
                why = "is set by the executor, not by admins" if key in before.labels else "is not a label of the node"
                raise typer.BadParameter(f"{key!r} {why}", param_hint="KEY-")
        view = client.set_node_labels(node, labels)
    output.print_result(view, f"{view.name}: {_labels(view) or 'no labels'}", as_json=json)


@app.command()
def remove(node: options.Node, json: options.Json = False) -> None:
    """Remove a node that no longer exists (platform admins)."""
    with session.client() as client:
        client.delete_node(node)
    output.print_result({"removed": node}, f"{node} removed", as_json=json)


def _labels(view: NodeView) -> str:
    return "  ".join(f"{key}={value}" for key, value in sorted(view.labels.items()))


def _tell(view: NodeView, *, as_json: bool) -> None:
    output.print_result(view, f"{view.name}: {_state(view)}", as_json=as_json)
