"""``forecast``: where a job would run if it were submitted now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import options, output, session
from trainmaster.cli.submit import read_spec_argument

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.wire.forecasts import ForecastView, PlaceView
    from trainmaster.wire.jobs import JobDetail


def register(root: typer.Typer) -> None:
    root.command("forecast", rich_help_panel="Jobs")(forecast)


def forecast(
    spec_file: Annotated[str, typer.Argument(metavar="SPEC", help="YAML or JSON file; `-` is stdin.")],
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Ask the planner where a job would run now, or why it would wait and what would start instead. Submits nothing."""
    spec = read_spec_argument(spec_file)
    if project is not None:
        spec["project"] = project
    with session.client() as client:
        # What the code is changes nothing about where it runs, and it need not be uploaded for this.
        found = client.forecast_spec({key: value for key, value in spec.items() if key != "code"})
    if json:
        output.print_json(found)
        return
    waits = found.wait_reason
    output.print_pairs(
        [
            ("Starts", "now" if waits is None else None),
            ("Waits", f"{waits.sentence} (position {found.queue_position} in the queue)" if waits else None),
            ("Places", places_text(found.places)),
            ("Fits now", options_text(found)),
        ]
    )


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
    return " ".join(option.sentence for option in found.options) or "nothing that is close to it"


def fits_now(client: Client, detail: JobDetail) -> str:
    """What a waiting job could ask for to start at once; empty where the planner cannot be asked."""
    from trainmaster.errors import TrainmasterError

    is_looked_after = detail.wait_reason is None or detail.wait_reason.code != "scheduler_away"
    if detail.state != "queued" or not is_looked_after:
        return ""
    try:
        return options_text(client.forecast_job(detail.id))
    except TrainmasterError:
        # It has started meanwhile, or no scheduler answers: all the rest is shown as it is.
        return ""
