"""Turns an AutoML request into a study: profiles the data, chooses defaults, and reports mistakes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Final

from trainmaster.spec import SpecError
from trainmaster.spec.model import Resources
from trainmaster.spec.quantity import parse_duration_s
from trainmaster.studies import StudySpec, parse_study
from trainmaster.wire.automl import AutomlCreate

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.automl.profiling import CSV_SUFFIXES, FILE_COUNT_LIMIT, PARQUET_SUFFIXES, DataProfile, profile_data
from api.jobs.service import canonical, check_submission, invalid_spec, request_field
from api.studies.service import StudyDraft, check_study, demand_feasible
from core.domain.automl.columns import LEAK
from core.domain.automl.space import CLASSIFICATION, IMAGES, METRICS, REGRESSION, TABULAR, families_of
from core.domain.automl.study import MODULE, AutoMLStudyRequest, study_of
from core.domain.automl.task import TargetProfile, left_of, profile_target
from core.domain.errors import InvalidRequest, InvalidSpec
from core.storage.volumes import split_location
from core.worker_packages import AUTOML, demand_package, own_automl

MIN_ROWS: Final = 20
MIN_ROWS_PER_CLASS: Final = 3
_MIN_TRAINING_ROWS_PER_CLASS: Final = 2  # one to train on, one to validate with
_MAX_CLASSES: Final = 1_000
_MIN_BUDGET_S: Final = 10.0
_MAX_IMAGES: Final = 20_000
_MAX_ROWS: Final = 500_000
_FIELDS: Final = {"input": "data", "mounts.0": "weights", "roles.worker.resources": "resources"}


@dataclass(frozen=True, slots=True)
class AutomlPlan:
    """The study that a request would create."""

    spec: StudySpec
    draft: StudyDraft


def plan(context: AppContext, caller: Caller, body: AutomlCreate) -> AutomlPlan:
    """Check the request and its data without an open transaction, and plan the study.

    Raises:
        InvalidRequest, InvalidSpec: a mistake of the request or the data, with its field.
    """
    seconds = _seconds(body.budget)
    volume, path = split_location(body.data, field="data")
    _check_readable(context, caller, body, volume, path)
    profile = _profile(context, body, volume, path)
    is_process = context.settings.executor == "process"
    if is_process and body.image is None:
        demand_package(AUTOML)
    if (
        is_process
        and not profile.columns
        and profile.is_parquet
        and body.image is None
        and find_spec("pyarrow") is None
    ):
        raise InvalidRequest(
            "data: trials read Parquet with pyarrow, which is not installed in the platform's Python; install it "
            "there, or use CSV.",
            field="data",
        )
    target = _target(profile, body)
    _demand_valid_keep(profile, body)
    task = CLASSIFICATION if profile.kind == IMAGES else (target.task if target is not None else body.task or "")
    metric = _metric(body.metric, task, target)
    families = _families(body, profile.kind)
    name = body.name or _name_of(path or volume)
    weights, _, weights_file = (body.weights or "").rpartition("/")
    order = AutoMLStudyRequest(
        name=name,
        project=body.project,
        model=body.model or name,
        kind=profile.kind,
        task=task,
        metric=metric,
        families=families,
        folder=f"{volume}/{profile.folder}".rstrip("/"),
        file=profile.file,
        options=_options(body, profile.kind),
        is_imbalanced=target.is_imbalanced if target is not None else False,
        max_time_s=seconds,
        trials=body.trials,
        parallel=body.parallel,
        seed=body.seed,
        resources=body.resources,
        image=body.image or (None if is_process else context.settings.serving_image),
        command=own_automl() if is_process else MODULE,
        aliases=body.aliases,
        weights=weights,
        weights_file=weights_file,
        notes=_notes(profile, target, task, metric, body),
    )
    try:
        spec = parse_study(study_of(order))
    except SpecError as error:
        raise _with_request_fields(invalid_spec(error)) from error
    try:
        draft = check_study(context, caller, spec)
        if not body.wait_for_nodes:
            demand_feasible(context, caller, draft)
        return AutomlPlan(spec, draft)
    except InvalidSpec as error:
        raise _with_request_fields(error) from error


def _seconds(budget: str | float) -> float:
    try:
        seconds = parse_duration_s(budget)
    except ValueError as error:
        raise InvalidRequest(f"budget: {error}", field="budget") from error
    if seconds < _MIN_BUDGET_S:
        raise InvalidRequest(
            f"budget: {seconds:g} s are too little for a trial; allow minutes, such as 10m.", field="budget"
        )
    return seconds


def _check_readable(context: AppContext, caller: Caller, body: AutomlCreate, volume: str, path: str) -> None:
    """Check that the caller's jobs may read the data, before they are profiled."""
    job = canonical(
        {"name": "automl", "project": body.project, "command": "true", "input": f"{volume}/{path}".rstrip("/")}
    )
    try:
        check_submission(context, caller, job)
    except InvalidSpec as error:
        raise _with_request_fields(error) from error


def _profile(context: AppContext, body: AutomlCreate, volume: str, path: str) -> DataProfile:
    found = context.confined(volume, path)
    if found is not None:
        tree, rest = found
        outer = path.removesuffix(rest).rstrip("/")
        profile = profile_data(tree, rest, kind=body.kind, target=body.target)
        return replace(profile, folder="/".join(part for part in (outer, profile.folder) if part))
    # Only jobs can reach the volume's files.
    if body.kind is None or (body.kind == TABULAR and (body.task is None or body.target is None)):
        raise InvalidRequest(
            f"data: the control plane cannot read volume {volume}; state kind and, for tables, target and task.",
            field="kind",
        )
    folder, _, name = path.rpartition("/")
    if name.lower().endswith((*CSV_SUFFIXES, *PARQUET_SUFFIXES)):
        return DataProfile(body.kind, folder, name)
    return DataProfile(body.kind, path)


def _target(profile: DataProfile, body: AutomlCreate) -> TargetProfile | None:
    """``None``: the target could not be read; the trials will report its mistakes. Raises ``InvalidRequest``."""
    if profile.kind == IMAGES:
        return _classes_of_images(profile, body)
    if not profile.cells:
        if profile.columns:
            raise InvalidRequest("data: the table has no rows below its header.", field="data")
        if body.task is None:
            raise InvalidRequest(
                "task: only the trials read Parquet; state classification or regression.", field="task"
            )
        return None
    target = profile_target(profile.cells, body.task)
    if target.written and (target.task == REGRESSION or body.task is None):
        raise InvalidRequest(
            f"target: the values of {body.target} look like quantities but are not written as numbers, such as "
            f"{target.written[:50]!r}: remove thousands separators and units, and use a decimal point (1234.5)."
            + (" If they are names of classes, state task classification." if body.task is None else ""),
            field="target",
        )
    if profile.is_whole and target.has_many_strays:
        raise InvalidRequest(
            f"task: {body.target} must be a number for regression, but {target.strays} rows have another value, such "
            f"as {target.stray[:50]!r}. State task classification, or fix them.",
            field="task",
        )
    if profile.is_whole and target.rows < MIN_ROWS:
        raise InvalidRequest(
            f"data: {target.rows} rows have a value of {body.target}; at least {MIN_ROWS} are needed.", field="data"
        )
    if profile.is_whole and len(target.classes) < 2:
        value = target.classes[0][0] if target.classes else "empty"
        raise InvalidRequest(
            f"target: {body.target} is {value} in every row; there is nothing to learn.", field="target"
        )
    if profile.is_whole and target.task == CLASSIFICATION:
        _demand_classes(target.classes, f"the target {body.target}")
        if target.rows <= (body.max_rows or _MAX_ROWS):
            _demand_left(target.classes, body.test_fraction, "rows")
    if profile.is_whole:
        _demand_features(profile, body)
    return target


def _demand_features(profile: DataProfile, body: AutomlCreate) -> None:
    """Raises ``InvalidRequest``: no column is a usable feature, so every trial would fail."""
    out = {*profile.counters, *(profile.about.uninformative() if profile.about is not None else ())} - set(body.keep)
    features = [name for name in profile.columns if name != body.target]
    if all(name in out for name in features):
        raise InvalidRequest(
            f"data: there is no usable feature: all columns other than {body.target} ({', '.join(features[:10])}) are "
            "empty, constant, names, or row numbers. Add a feature, or keep one that names or numbers rows (`--keep`).",
            field="data",
        )


def _demand_left(classes: Sequence[tuple[str, int]], fraction: float, what: str) -> None:
    """Raises ``InvalidRequest``: without the test set, some class has too few rows for training and validation."""
    left = left_of([count for _, count in classes], fraction)
    rare = [
        f"{name} ({count})"
        for (name, _), count in zip(classes, left, strict=True)
        if count < _MIN_TRAINING_ROWS_PER_CLASS
    ]
    if rare:
        raise InvalidRequest(
            f"test_fraction: with {fraction:g} of the {what} in the test set, too few are left of "
            f"{', '.join(rare[:10])}; each class needs {_MIN_TRAINING_ROWS_PER_CLASS} more. Make it smaller, or add "
            f"{what} of these classes.",
            field="test_fraction",
        )


def _demand_valid_keep(profile: DataProfile, body: AutomlCreate) -> None:
    """Raises ``InvalidRequest``: a column of ``keep`` does not exist, or is not a feature.

    The trials check columns of data that were not read here.
    """
    if body.keep and profile.kind == IMAGES:
        raise InvalidRequest("keep: it applies to columns of tables; remove it.", field="keep")
    for name in body.keep:
        if name == body.target:
            raise InvalidRequest(f"keep: {name} is the target, which cannot be a feature.", field="keep")
        if profile.columns and name not in profile.columns:
            close = get_close_matches(name, profile.columns, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InvalidRequest(f"keep: there is no column {name!r}.{hint}", field="keep")


def _classes_of_images(profile: DataProfile, body: AutomlCreate) -> TargetProfile:
    if body.task == REGRESSION:
        raise InvalidRequest(
            "task: only classification is possible for images; regression is for tables.", field="task"
        )
    if profile.file:
        return _image_classes(profile, body)
    count = sum(c for _, c in profile.classes)
    if profile.classes and count < MIN_ROWS:
        raise InvalidRequest(f"data: there are {count} images; at least {MIN_ROWS} are needed.", field="data")
    _demand_classes(profile.classes, "the folders")
    is_counted = all(images < FILE_COUNT_LIMIT for _, images in profile.classes)
    if profile.classes and is_counted and count <= (body.max_rows or _MAX_IMAGES):
        _demand_left(profile.classes, body.test_fraction, "images")
    return TargetProfile(CLASSIFICATION, "by their folders", sum(c for _, c in profile.classes), profile.classes)


def _image_classes(profile: DataProfile, body: AutomlCreate) -> TargetProfile:
    """The target of images whose classes are in a table."""
    target = profile_target(profile.cells, CLASSIFICATION)
    if profile.is_whole and target.rows < MIN_ROWS:
        raise InvalidRequest(
            f"data: {target.rows} images have a value of {body.target}; at least {MIN_ROWS} are needed.", field="data"
        )
    if profile.is_whole and len(target.classes) < 2:
        raise InvalidRequest(
            f"target: {body.target} is the same for every image; there is nothing to learn.", field="target"
        )
    if profile.is_whole:
        _demand_classes(target.classes, f"the target {body.target}")
        if target.rows <= (body.max_rows or _MAX_IMAGES):
            _demand_left(target.classes, body.test_fraction, "images")
    return target


def _demand_classes(classes: Sequence[tuple[str, int]], what: str) -> None:
    rows = sum(count for _, count in classes)
    if len(classes) > _MAX_CLASSES or MIN_ROWS_PER_CLASS * len(classes) > rows:
        raise InvalidRequest(
            f"target: {what} has {len(classes)} different values in {rows} rows, too many for classes; choose another "
            "column, or state task regression if it is a quantity.",
            field="target",
        )
    rare = [f"{name} ({count})" for name, count in classes if count < MIN_ROWS_PER_CLASS]
    if rare:
        raise InvalidRequest(
            f"data: each class needs at least {MIN_ROWS_PER_CLASS} rows; these classes of {what} have fewer: "
            f"{', '.join(rare[:10])}. Remove them or merge them.",
            field="data",
        )


def _metric(requested: str | None, task: str, target: TargetProfile | None) -> str:
    known = METRICS[task]
    if requested is None:
        return target.metric if target is not None else next(iter(known))
    if requested not in known:
        close = get_close_matches(requested, known, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InvalidRequest(
            f"metric: {requested!r} is not a metric of {task}; use {', '.join(known)}.{hint}", field="metric"
        )
    return requested


def _families(body: AutomlCreate, kind: str) -> tuple[str, ...]:
    has_weights = body.weights is not None
    if has_weights and kind != IMAGES:
        raise InvalidRequest("weights: only image models start from pretrained weights; remove them.", field="weights")
    if has_weights and "/" not in (body.weights or "").strip("/"):
        raise InvalidRequest("weights: must be volume/path of a file.", field="weights")
    known = families_of(kind, has_weights=has_weights)
    for name in body.families:
        if name == "transfer" and kind == IMAGES and not has_weights:
            raise InvalidRequest("families: transfer needs the weights of a pretrained backbone.", field="weights")
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise InvalidRequest(
                f"families: {name!r} is not a model family for {kind}; use {', '.join(known)}.{hint}", field="families"
            )
    return tuple(name for name in known if name in body.families) if body.families else known


def _options(body: AutomlCreate, kind: str) -> dict[str, Any]:
    most = body.max_rows or (_MAX_IMAGES if kind == IMAGES else _MAX_ROWS)
    options: dict[str, Any] = {"test_fraction": body.test_fraction, "max_rows": most, "data": body.data}
    if kind == IMAGES:
        named = {} if body.target is None else {"target": body.target}
        return {**options, "image_size": body.image_size or 0, **named}
    keep = {"keep": body.keep} if body.keep else {}
    return {**options, "target": body.target, "folds": body.folds or 0, **keep}


def _notes(profile: DataProfile, target: TargetProfile | None, task: str, metric: str, body: AutomlCreate) -> list[str]:
    notes = []
    if profile.kind == IMAGES and profile.classes:
        notes.append(
            f"{len(profile.classes)} classes of images: {', '.join(name for name, _ in profile.classes[:10])}."
        )
        if body.target is not None:
            notes.append(f"The class of an image is the name of its folder; {body.target} is the name of the target.")
    elif profile.kind == IMAGES and target is not None:
        names = ", ".join(sorted(name for name, _ in target.classes[:10]))
        notes.append(f"{len(target.classes)} classes of images by the column {body.target} of {profile.file}: {names}.")
    elif target is not None and body.task is None:
        other = REGRESSION if task == CLASSIFICATION else CLASSIFICATION
        notes.append(f"{task.capitalize()}, since {target.why}; state task {other} to override this.")
    if target is not None and target.is_imbalanced and body.metric is None:
        most, least = target.classes[0], target.classes[-1]
        notes.append(
            f"Models are compared by {metric}: {most[0]} is {most[1] / least[1]:.0f} times as frequent as {least[0]}, "
            "so accuracy would be misleading."
        )
    if target is not None and target.strays:
        notes.append(
            f"{target.strays} rows are left out: their {body.target} is not a number, such as {target.stray[:50]!r}."
        )
    for name in profile.counters:
        if name in body.keep:
            notes.append(f"Column {name} numbers the rows; it is used as `keep` names it.")
        else:
            notes.append(
                f"Column {name} is left out: it numbers the rows, which does not generalise to new rows. To use it as "
                f"a feature, keep it (`--keep {name}`)."
            )
    if profile.about is not None:
        out = set(profile.counters) - set(body.keep)
        notes += [
            LEAK.format(name=name)
            for name in profile.about.mirrors(is_quantity=task == REGRESSION)
            if name not in {*out, *profile.about.uninformative()}
        ]
        notes += [
            f"Column {name} is read as text: its values are written like {example!r}. Without thousands separators and "
            "units, and with a decimal point, they would be read as numbers."
            for name, example in profile.about.grouped()
        ]
    if not profile.is_whole and profile.columns:
        notes.append("Only the beginning of the table was profiled; the trials read all of it.")
    return notes


def _name_of(path: str) -> str:
    last = path.rstrip("/").rpartition("/")[2].lower()
    for end in (*CSV_SUFFIXES[::-1], *PARQUET_SUFFIXES):
        last = last.removesuffix(end)
    slug = re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40].strip("-")
    return f"automl-{slug}" if slug else "automl"


def _with_request_fields(error: InvalidSpec) -> InvalidSpec:
    """The same error, in terms of the request's fields instead of the job spec's."""

    def field(path: str | None) -> str:
        text = request_field((path or "").removeprefix("template."), _FIELDS)
        return f"resources.{text}" if text in Resources.model_fields else text

    def hint_of(item: Mapping[str, Any]) -> str | None:
        hint: str | None = item.get("hint")
        return hint.replace(", or give the template a `max_wait`", "") if hint else hint

    errors: list[dict[str, str | None]] = [
        {**item, "path": field(item.get("path")), "hint": hint_of(item)} for item in error.errors
    ]
    first = errors[0] if errors else {"path": field(error.field), "message": error.sentence}
    hint = f" ({first['hint']})" if first.get("hint") else ""
    return InvalidSpec(f"{first['path']}: {first['message']}{hint}.", field=first["path"], errors=errors)
