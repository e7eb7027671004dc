"""Asking for simulations: they are worked on by a scheduler, and their results stay for an hour."""

from __future__ import annotations

from trainmaster.wire.forecasts import SimulationReportView, SimulationRequest, SimulationStatusView, SimulationView

from api.auth import Caller
from api.forecasts.service import unless_error
from api.policy.settings import read_settings
from api.work import Work
from core.bell import TOPIC_FORECAST
from core.db.repositories import questions
from core.db.repositories.planning import read_policy
from core.db.repositories.questions import RUNNING, Kind
from core.domain.errors import NotFound
from core.domain.policy import parse_policy
from core.ids import new_id


def begin(work: Work, caller: Caller, body: SimulationRequest) -> SimulationStatusView:
    """Ask for it.

    Raises:
        InvalidRequest: a setting that is none.
        Unavailable: this user has two already that are not done.
    """
    policy = read_settings(body.policy) if body.policy else {}
    parse_policy(policy, base=read_policy(work.session).policy)
    cluster = None if body.cluster is None else body.cluster.model_dump(mode="json")
    simulation_id = new_id("question")
    asked = {"policy": dict(policy), "cluster": cluster, "days": body.days}
    questions.put(work.session, simulation_id, caller.user_id, asked, work.now, Kind.SIMULATION)
    work.ring(TOPIC_FORECAST)
    return SimulationStatusView(id=simulation_id, state="waiting")


def get(work: Work, caller: Caller, simulation_id: str) -> SimulationStatusView:
    """How it stands.

    Raises:
        NotFound: there is none, or it is more than an hour old.
        TrainmasterError: what kept it from being done.
    """
    try:
        told = questions.answer_to(work.session, simulation_id, user_id=caller.user_id)
    except LookupError as error:
        raise NotFound(
            f"There is no simulation {simulation_id!r} of yours; results are kept for an hour. Ask for it again."
        ) from error
    if told is None:
        work.ring(TOPIC_FORECAST)  # the first ring may have been lost
        return SimulationStatusView(id=simulation_id, state="waiting")
    if RUNNING in told:
        return SimulationStatusView(id=simulation_id, state="running")
    done = unless_error(told)
    result = SimulationView(
        since=done["since"],
        until=done["until"],
        jobs=done["jobs"],
        before=SimulationReportView(**done["before"]),
        after=SimulationReportView(**done["after"]),
        sentences=done["sentences"],
    )
    return SimulationStatusView(id=simulation_id, state="done", result=result)
