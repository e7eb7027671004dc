"""The next points of a study. The one room that knows Optuna; it knows no database, no clock and no chance but a seed."""

from __future__ import annotations

from scheduler.tuning.propose import choose_algorithm, chosen_algorithm, propose
from scheduler.tuning.request import Observation, Proposal, ProposalRequest, startup_trials

__all__ = [
    "Observation",
    "Proposal",
    "ProposalRequest",
    "choose_algorithm",
    "chosen_algorithm",
    "propose",
    "startup_trials",
]
