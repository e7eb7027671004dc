"""Studies and their trials."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, ForeignKey, Index, Integer, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base


class Study(Base):
    """A hyperparameter search. ``state`` changes only by ``core.domain.studies.states``; every write compares
    ``generation``.

    ``spec`` is a canonical ``StudySpec``, of which only ``budget`` ever changes, by extending; next to its fields,
    ``vertex`` holds what a client of Vertex AI set (``api.protocols.vertex.tuning``). ``proposed_count``: the number of
    points drawn so far; ``prefetched_points``: points without a trial yet, each ``{"parameters", "memo"}``, drawn when
    ``prefetched_after`` trials had ended. ``trial_count``: the number of the newest trial. ``note``: a remark for users
    while it runs.
    """

    __tablename__ = "studies"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    seed: Mapped[int] = mapped_column(Integer)
    state: Mapped[str]
    generation: Mapped[int] = mapped_column(Integer, default=1)
    reason: Mapped[str] = mapped_column(Text, default="")  # why it is in this state
    note: Mapped[str] = mapped_column(Text, default="")
    output_volume: Mapped[str] = mapped_column(default="")
    output_path: Mapped[str | None] = mapped_column(Text)  # of the template: each trial has a folder in it
    trial_count: Mapped[int] = mapped_column(Integer, default=0)
    proposed_count: Mapped[int] = mapped_column(Integer, default=0)
    prefetched_points: Mapped[list[Any]] = mapped_column(default=list)
    prefetched_after: Mapped[int] = mapped_column(Integer, default=0)
    # Warm start: trials of other studies, [{"parameters", "values"}], values in the order of the metrics.
    prior_trials: Mapped[list[Any]] = mapped_column(default=list)
    # The best trial's outcome: {"trial", "job", "version"}, ids of the last two; null before the end.
    best_trial: Mapped[dict[str, Any] | None]
    cloned_from: Mapped[str | None]  # the study that it was cloned from
    created_at: Mapped[datetime]
    started_at: Mapped[datetime]  # its time counts from here; extending an ended one restarts it
    finished_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    updated_at: Mapped[datetime]
    __table_args__ = (
        Index("ix_studies_project_id_created_at", "project_id", "created_at", "id"),
        Index("ix_studies_name", "name"),
        Index("ix_studies_state", "state"),
    )


class Trial(Base):
    """One evaluated point. ``number`` counts from 1. ``job_id``: null if an external program evaluates it.

    ``result``: {metric: final value}. ``curve``: {"steps", "values", "counted": step of the final value} of the first
    metric, thinned, once it has ended. ``stop``: {"sentence", "step"}, why it is being stopped early. ``memo``: state
    of the search algorithm, and the halving rung that it passed. ``client``, ``heartbeat_at``: for an external trial,
    the client's name, and its last sign of life.
    """

    __tablename__ = "trials"
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), unique=True)
    state: Mapped[str]
    parameters: Mapped[dict[str, Any]]
    memo: Mapped[dict[str, Any]] = mapped_column(default=dict)
    result: Mapped[dict[str, Any] | None]
    curve: Mapped[dict[str, Any] | None]
    stop: Mapped[dict[str, Any] | None]
    reason: Mapped[str] = mapped_column(Text, default="")
    gpu_s: Mapped[float] = mapped_column(Float, default=0.0)
    client: Mapped[str | None]
    heartbeat_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    __table_args__ = (Index("ix_trials_study_id_state", "study_id", "state"),)
