"""What would become of a job now, on the wire."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.jobs import WaitReasonView


class ForecastRequest(WireRequest):
    """``spec`` as the user wrote it, shorthands included, or ``spec_text`` as YAML."""

    spec: dict[str, Any] | None = None
    spec_text: str | None = Field(default=None, max_length=1_048_576)


class PlaceView(WireModel):
    """So many replicas of one role on one node."""

    role: str
    node: str
    replicas: int
    gpu_model: str | None = None


class OptionView(WireModel):
    """A change with which the job would start now.

    ``field``: of the roles in ``roles`` (`replicas`, or `gpus`, `gpu_type`, `cpu`, `memory` of their resources), or of the spec
    itself where ``roles`` is empty. ``value``: what to write there; `null`: leave it out.
    """

    code: str
    sentence: str
    roles: list[str] = Field(default_factory=list)
    field: str
    value: int | str | None = None


class ForecastView(WireModel):
    """Either ``places``, where the next plan would start it, or ``wait_reason``, and what would start instead.

    A look, no promise: the cluster may be another one a moment later. ``queue_position``: 1 is next.
    """

    places: list[PlaceView] = Field(default_factory=list)
    wait_reason: WaitReasonView | None = None
    queue_position: int
    options: list[OptionView] = Field(default_factory=list)

    @property
    def would_start(self) -> bool:
        return self.wait_reason is None
