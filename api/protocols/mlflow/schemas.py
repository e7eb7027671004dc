"""Requests of MLflow's clients. Fields are the protocol's; unused ones are ignored.

Limits are MLflow's own: https://github.com/mlflow/mlflow/blob/v3.17.2/mlflow/utils/validation.py
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from api.protocols.kit.json_values import read_double
from core.domain.metrics import NAME_LIMIT, STEP_LIMIT, TIME_LIMIT_MS, name_fault

_KEY: Final = 250
_PARAM: Final = 6_000
TAG: Final = 8_000
_DESCRIPTION: Final = 100_000
PAGE: Final = 50_000  # results of one search
_METRICS: Final = 1_000
_PAIRS: Final = 100
_PATH: Final = 4_096

Number = Annotated[float, BeforeValidator(read_double)]
Id = Annotated[str, Field(min_length=1, max_length=256)]
Key = Annotated[str, Field(min_length=1, max_length=_KEY)]
Time = Annotated[int, Field(ge=0, le=TIME_LIMIT_MS)]
Step = Annotated[int, Field(ge=-STEP_LIMIT, le=STEP_LIMIT)]


class MlflowRequest(BaseModel):
    """A request. Numbers may be text, as protocol buffers write large ones."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class OfRun(MlflowRequest):
    """``run_uuid``: the run id's name before MLflow 1."""

    run_id: Annotated[str, Field(max_length=256)] = ""
    run_uuid: Annotated[str, Field(max_length=256)] = ""

    @property
    def run(self) -> str:
        return self.run_id or self.run_uuid


class Tag(MlflowRequest):
    key: Key
    value: Annotated[str, Field(max_length=TAG)] = ""


class Param(MlflowRequest):
    key: Key
    value: Annotated[str, Field(max_length=_PARAM)] = ""


class LoggedMetric(MlflowRequest):
    key: Annotated[str, Field(min_length=1, max_length=NAME_LIMIT)]
    value: Number
    timestamp: Time
    step: Step = 0
    model_id: str | None = None
    dataset_name: Annotated[str | None, Field(max_length=500)] = None
    dataset_digest: Annotated[str | None, Field(max_length=100)] = None

    @field_validator("key")
    @classmethod
    def _has_a_name(cls, value: str) -> str:
        if fault := name_fault(value):
            raise ValueError(fault)
        return value


class CreateRun(MlflowRequest):
    experiment_id: str = ""
    run_name: Annotated[str, Field(max_length=TAG)] = ""
    start_time: Time | None = None
    tags: Annotated[list[Tag], Field(max_length=_PAIRS)] = []


class UpdateRun(OfRun):
    status: str | int | None = None
    end_time: Time | None = None
    run_name: Annotated[str | None, Field(max_length=TAG)] = None


class LogMetric(OfRun, LoggedMetric):
    pass


class LogParam(OfRun, Param):
    pass


class SetTag(OfRun, Tag):
    pass


class DeleteTag(OfRun):
    key: Key


class LogBatch(OfRun):
    metrics: Annotated[list[LoggedMetric], Field(max_length=_METRICS)] = []
    params: Annotated[list[Param], Field(max_length=_PAIRS)] = []
    tags: Annotated[list[Tag], Field(max_length=_PAIRS)] = []


class LogModel(OfRun):
    model_json: Annotated[str, Field(max_length=1_000_000)]


class Dataset(MlflowRequest):
    name: Annotated[str, Field(max_length=500)]
    digest: Annotated[str, Field(max_length=100)]
    source_type: Annotated[str, Field(max_length=500)] = ""
    source: Annotated[str, Field(max_length=65_535)] = ""
    # Schemas of large tables are large; views show their beginning.
    schema_: Annotated[str | None, Field(alias="schema", max_length=1_048_575)] = None
    profile: Annotated[str | None, Field(max_length=1_048_575)] = None


class DatasetInput(MlflowRequest):
    tags: Annotated[list[Tag], Field(max_length=_PAIRS)] = []
    dataset: Dataset


class ModelInput(MlflowRequest):
    model_id: Id


class ModelOutput(MlflowRequest):
    model_id: Id
    step: Step = 0


class LogInputs(OfRun):
    datasets: Annotated[list[DatasetInput], Field(max_length=_PAIRS)] = []
    models: Annotated[list[ModelInput], Field(max_length=_PAIRS)] = []


class LogOutputs(OfRun):
    models: Annotated[list[ModelOutput], Field(max_length=_PAIRS)] = []


class SearchRuns(MlflowRequest):
    experiment_ids: Annotated[list[str], Field(max_length=1_000)] = []
    filter: str = ""
    run_view_type: str | int = "ACTIVE_ONLY"
    max_results: Annotated[int, Field(ge=1, le=PAGE)] = 1_000
    order_by: Annotated[list[str], Field(max_length=20)] = []
    page_token: Annotated[str, Field(max_length=100)] = ""


class SearchPage(MlflowRequest):
    """A search of experiments, or of versions of registered models."""

    filter: str = ""
    max_results: Annotated[int, Field(ge=1, le=PAGE)] = 1_000
    order_by: Annotated[list[str], Field(max_length=20)] = []
    page_token: Annotated[str, Field(max_length=100)] = ""


class SearchRegistered(SearchPage):
    max_results: Annotated[int, Field(ge=1, le=PAGE)] = 100


class CreateExperiment(MlflowRequest):
    name: Annotated[str, Field(min_length=1, max_length=500)]


class OfExperiment(MlflowRequest):
    experiment_id: str = ""


class OrderOfModels(MlflowRequest):
    field_name: Annotated[str, Field(max_length=500)]
    ascending: bool = True


class SearchModels(MlflowRequest):
    experiment_ids: Annotated[list[str], Field(max_length=1_000)] = []
    filter: str = ""
    max_results: Annotated[int, Field(ge=1, le=1_000)] = 100
    order_by: Annotated[list[OrderOfModels], Field(max_length=20)] = []
    page_token: Annotated[str, Field(max_length=100)] = ""


class CreateModel(MlflowRequest):
    experiment_id: str = ""
    name: Annotated[str, Field(max_length=_KEY)] = ""
    model_type: Annotated[str, Field(max_length=_KEY)] = ""
    source_run_id: Annotated[str, Field(max_length=256)] = ""
    params: Annotated[list[Param], Field(max_length=_PAIRS)] = []
    tags: Annotated[list[Tag], Field(max_length=_PAIRS)] = []


class FinalizeModel(MlflowRequest):
    status: str | int


class Params(MlflowRequest):
    params: Annotated[list[Param], Field(max_length=_PAIRS)] = []


class Tags(MlflowRequest):
    tags: Annotated[list[Tag], Field(max_length=_PAIRS)] = []


class CreateRegistered(MlflowRequest):
    name: Key
    description: Annotated[str, Field(max_length=_DESCRIPTION)] = ""
    tags: Annotated[list[Tag], Field(max_length=_PAIRS)] = []


class CreateVersion(MlflowRequest):
    name: Key
    source: Annotated[str, Field(max_length=_PATH)]
    run_id: Annotated[str, Field(max_length=256)] = ""
    model_id: Annotated[str, Field(max_length=256)] = ""
    description: Annotated[str, Field(max_length=_DESCRIPTION)] = ""
    tags: Annotated[list[Tag], Field(max_length=_PAIRS)] = []
