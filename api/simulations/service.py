"""What-if simulations: a scheduler runs them; their results are stored for an hour."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from trainmaster.wire.forecasts import SimulationReportView, SimulationRequest, SimulationStatusView, SimulationView

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.forecasts.service import unless_error
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

# A running scheduler begins within a second or two.
_LATE: Final = timedelta(seconds=10)


def begin(work: UnitOfWork, caller: Caller, body: SimulationRequest) -> SimulationStatusView:
    """Queue a simulation.

    Raises:
        InvalidRequest: an unknown or invalid setting.
        Unavailable: this user already has two unfinished simulations.
    """
    policy = read_settings(body.policy, at="policy") if body.policy else {}
    parse_policy(policy, base=read_policy(work.session).policy)
    cluster = None if body.cluster is None else body.cluster.model_dump(mode="json")
    simulation_id = new_id("question")
    question = {"policy": dict(policy), "cluster": cluster, "days": body.days}
    questions.put(work.session, simulation_id, caller.user_id, question, work.now, QuestionKind.SIMULATION)
    work.notify(TOPIC_FORECAST)
    return SimulationStatusView(id=simulation_id, state="waiting", sentence="It waits for a scheduler to start it.")


def get(work: UnitOfWork, caller: Caller, simulation_id: str) -> SimulationStatusView:
    """The state of a simulation, with its result when it is done.

    Raises:
        NotFound: there is no such simulation of the caller, or it is more than an hour old.
        TrainmasterError: the simulation failed.
    """
    try:
        found = simulations.status_of(work.session, simulation_id, caller.user_id, work.now)
    except LookupError as error:
        raise NotFound(
            f"There is no simulation {simulation_id!r} of yours; results are stored for an hour. Start it again."
        ) from error
    if found.running is not None:
        return _running(work, simulation_id, found.running)
    if found.answer is None:
        return _waiting(work, simulation_id, found)
    done = unless_error(found.answer)
    result = SimulationView(
        since=done["since"],
        until=done["until"],
        jobs=done["jobs"],
        before=SimulationReportView(**done["before"]),
        after=SimulationReportView(**done["after"]),
        sentences=done["sentences"],
    )
    return SimulationStatusView(id=simulation_id, state="done", sentence="It is done.", result=result)


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
