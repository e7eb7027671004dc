"""What-if simulations: a scheduler runs them; their results are stored for an hour."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

from fastapi import Path
from trainmaster.wire.forecasts import SimulationReportView, SimulationRequest, SimulationStatusView, SimulationView

from api.app import audit
from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import PlatformAdmin
from api.forecasts.service import unless_error
from api.http.routing import new_router
from api.policy.settings import read_settings
from core.db.repositories import questions, simulations
from core.db.repositories.planning import read_policy
from core.db.repositories.questions import QuestionKind
from core.db.repositories.simulations import SimulationStatus
from core.domain.errors import NotFound
from core.domain.sharing.policy import parse_policy
from core.domain.sharing.wait_phrases import in_full
from core.ids import new_id
from core.wakeups import TOPIC_FORECAST

router = new_router("simulations")

# A running scheduler begins within a second or two.
_LATE: Final = timedelta(seconds=10)


@router.post(
    "/simulations",
    status_code=202,
    operation_id="begin_simulation",
    summary="Simulate another policy or other nodes with recent jobs",
)
def begin_simulation(body: SimulationRequest, caller: PlatformAdmin, context: AppContextDep) -> SimulationStatusView:
    """What-if simulation: replays recently ended jobs through the planner in simulated time, with the current and with
    the changed settings. It takes seconds to minutes; get the result by its id. The cluster is not affected.
    """
    policy = read_settings(body.policy, at="policy") if body.policy else {}
    cluster = None if body.cluster is None else body.cluster.model_dump(mode="json")
    simulation_id = new_id("question")
    question = {"policy": dict(policy), "cluster": cluster, "days": body.days}
    audit.note_object("simulation", simulation_id)
    with context.write() as work:
        parse_policy(policy, base=read_policy(work.session).policy)
        questions.put(work.session, simulation_id, caller.user_id, question, work.now, QuestionKind.SIMULATION)
        work.notify(TOPIC_FORECAST)
    return SimulationStatusView(id=simulation_id, state="waiting", sentence="It waits for a scheduler to start it.")


@router.get(
    "/simulations/{simulation}", operation_id="get_simulation", summary="The state of a simulation, and its result"
)
def get_simulation(
    simulation: Annotated[str, Path(max_length=100)], caller: PlatformAdmin, context: AppContextDep
) -> SimulationStatusView:
    """The result is stored for an hour."""
    with context.write() as work:
        try:
            found = simulations.status_of(work.session, simulation, caller.user_id, work.now)
        except LookupError as error:
            raise NotFound(
                f"There is no simulation {simulation!r} of yours; results are stored for an hour. Start it again."
            ) from error
        if found.running is not None:
            return _running(work, simulation, found.running)
        if found.answer is None:
            return _waiting(work, simulation, found)
        done = unless_error(found.answer)
        result = SimulationView(
            since=done["since"],
            until=done["until"],
            jobs=done["jobs"],
            before=SimulationReportView(**done["before"]),
            after=SimulationReportView(**done["after"]),
            sentences=done["sentences"],
        )
        return SimulationStatusView(id=simulation, state="done", sentence="It is done.", result=result)


def _waiting(work: UnitOfWork, simulation_id: str, found: SimulationStatus) -> SimulationStatusView:
    work.notify(TOPIC_FORECAST)  # the first wake-up may have been lost
    sentence = "It waits for a scheduler to start it."
    if found.before:
        sentence = f"It waits for {found.before} earlier {'simulation' if found.before == 1 else 'simulations'}."
    elif work.now - found.created_at > _LATE:
        sentence = "No scheduler has started it yet; `trainmaster version --server` shows the scheduler's state."
    return SimulationStatusView(id=simulation_id, state="waiting", sentence=sentence)


def _running(work: UnitOfWork, simulation_id: str, running: Mapping[str, Any]) -> SimulationStatusView:
    since, again = running["since"], running.get("tries", 1) > 1
    if simulations.is_lost(running, work.now):
        work.notify(TOPIC_FORECAST)
        sentence = "The scheduler that ran it is gone; the next scheduler starts it again."
        return SimulationStatusView(id=simulation_id, state="waiting", sentence=sentence)
    sentence = in_full(f"it {running['doing']}{', again, as the scheduler ended meanwhile' if again else ''}")
    return SimulationStatusView(id=simulation_id, state="running", sentence=sentence, began_at=since)
