"""The next points of a study. The only package that uses Optuna; free of database, clock, and randomness without a
seed.
"""

from __future__ import annotations

from scheduler.tuning.propose import choose_algorithm, chosen_algorithm, propose
from scheduler.tuning.request import ObservedTrial, Proposal, ProposalRequest, startup_trials

__all__ = [
    "ObservedTrial",
    "Proposal",
    "ProposalRequest",
    "choose_algorithm",
    "chosen_algorithm",
    "propose",
    "startup_trials",
]
