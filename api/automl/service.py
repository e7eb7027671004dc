"""From an AutoML request to a study: the data are looked at, what is unstated is decided, what is wrong is told."""

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
from api.automl.profiling import CSV_ENDS, FILES_COUNTED, PARQUET_ENDS, Seen, look
from api.jobs.service import canonical, check_submission, invalid_spec
from api.studies.service import Draft, check_study, demand_place
from core.domain.automl.columns import LEAK
from core.domain.automl.space import CLASSIFICATION, IMAGES, METRICS, REGRESSION, TABULAR, families_of
from core.domain.automl.study import MODULE, Order, study_of
from core.domain.automl.task import Target, left_of, look_at
from core.domain.errors import InvalidRequest, InvalidSpec
from core.model_server_commands import own_automl
from core.storage.volumes import split_location, tree_of

LEAST_ROWS: Final = 20
LEAST_OF_A_CLASS: Final = 3
_LEAST_LEFT: Final = 2  # one to learn from, one to validate by
_MOST_CLASSES: Final = 1_000
_LEAST_TIME_S: Final = 10.0
_MOST_IMAGES: Final = 20_000
_MOST_ROWS: Final = 500_000
_FIELDS: Final = {"input": "data", "mounts.0": "weights", "roles.worker.resources": "resources"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be searched. ``draft``: its study."""

    spec: StudySpec
    draft: Draft


def plan(context: AppContext, caller: Caller, body: AutomlCreate) -> Plan:
    """Prove, without an open transaction, that there is something to be learnt here by this caller.

    Raises:
        InvalidRequest, InvalidSpec: what is wrong, with its field.
    """
    seconds = _seconds(body.budget)
    volume, path = split_location(body.data, field="data")
    _prove_readable(context, caller, body, volume, path)
    seen = _seen(context, body, volume, path)
    is_process = context.settings.executor == "process"
    if is_process and not seen.columns and seen.is_parquet and body.image is None and find_spec("pyarrow") is None:
        raise InvalidRequest(
            "data: it is Parquet, and pyarrow is not installed in the platform's Python, by which trials read it; install it "
            "there, or write CSV.",
            field="data",
        )
    target = _target(seen, body)
    _demand_kept(seen, body)
    task = CLASSIFICATION if seen.kind == IMAGES else (target.task if target is not None else body.task or "")
    metric = _metric(body.metric, task, target)
    families = _families(body, seen.kind)
    name = body.name or _name_of(path or volume)
    weights, _, weights_file = (body.weights or "").rpartition("/")
    order = Order(
        name=name,
        project=body.project,
        model=body.model or name,
        kind=seen.kind,
        task=task,
        metric=metric,
        families=families,
        folder=f"{volume}/{seen.folder}".rstrip("/"),
        file=seen.file,
        options=_options(body, seen.kind),
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
        notes=_notes(seen, target, task, metric, body),
    )
    try:
        spec = parse_study(study_of(order))
    except SpecError as error:
        raise _in_own_words(invalid_spec(error)) from error
    try:
        draft = check_study(context, caller, spec)
        if not body.wait_for_nodes:
            demand_place(context, caller, draft)
        return Plan(spec, draft)
    except InvalidSpec as error:
        raise _in_own_words(error) from error


def _seconds(budget: str | float) -> float:
    try:
        seconds = parse_duration_s(budget)
    except ValueError as error:
        raise InvalidRequest(f"budget: {error}", field="budget") from error
    if seconds < _LEAST_TIME_S:
        raise InvalidRequest(
            f"budget: {seconds:g} s are not enough for anything; give it minutes, such as 10m.", field="budget"
        )
    return seconds


def _prove_readable(context: AppContext, caller: Caller, body: AutomlCreate, volume: str, path: str) -> None:
    """As if a job read it: what is not the caller's is not even looked at."""
    job = canonical(
        {"name": "automl", "project": body.project, "command": "true", "input": f"{volume}/{path}".rstrip("/")}
    )
    try:
        check_submission(context, caller, job)
    except InvalidSpec as error:
        raise _in_own_words(error) from error


def _seen(context: AppContext, body: AutomlCreate, volume: str, path: str) -> Seen:
    known = context.volumes.find(volume, context.clock())
    if known is not None and known.root is not None:
        tree, first, rest = tree_of(known), "", path
        if volume == context.settings.default_volume:
            # Projects share it: no link may lead out of the first folder.
            first, _, rest = path.partition("/")
            tree = tree.below(first)
        seen = look(tree, rest, kind=body.kind, target=body.target)
        return replace(seen, folder="/".join(part for part in (first, seen.folder) if part))
    # Its files are reached from jobs only.
    if body.kind is None or (body.kind == TABULAR and (body.task is None or body.target is None)):
        raise InvalidRequest(
            f"data: the control plane does not see volume {volume}; state kind and, of tables, target and task.",
            field="kind",
        )
    folder, _, name = path.rpartition("/")
    if name.lower().endswith((*CSV_ENDS, *PARQUET_ENDS)):
        return Seen(body.kind, folder, name)
    return Seen(body.kind, path)


def _target(seen: Seen, body: AutomlCreate) -> Target | None:
    """``None``: nothing is known of it; the trials will say what is wrong. Raises ``InvalidRequest``."""
    if seen.kind == IMAGES:
        return _classes_of_images(seen, body)
    if not seen.cells:
        if seen.columns:
            raise InvalidRequest("data: the table has no rows below its header.", field="data")
        if body.task is None:
            raise InvalidRequest(
                "task: Parquet is read by the trials alone; say classification or regression.", field="task"
            )
        return None
    target = look_at(seen.cells, body.task)
    if target.written and (target.task == REGRESSION or body.task is None):
        raise InvalidRequest(
            f"target: the values of {body.target} look like quantities, but are not written as numbers, such as "
            f"{target.written[:50]!r}: take marks between thousands and signs out, and write a point before the fraction (1234.5)."
            + (" If they are names of classes, say task classification." if body.task is None else ""),
            field="target",
        )
    if seen.is_whole and target.has_many_strays:
        raise InvalidRequest(
            f"task: {body.target} is to be a number, and {target.strays} rows have something else, such as "
            f"{target.stray[:50]!r}. Say task classification, or mend them.",
            field="task",
        )
    if seen.is_whole and target.rows < LEAST_ROWS:
        raise InvalidRequest(
            f"data: {target.rows} rows have a {body.target}; at least {LEAST_ROWS} are needed.", field="data"
        )
    if seen.is_whole and len(target.classes) < 2:
        value = target.classes[0][0] if target.classes else "empty"
        raise InvalidRequest(
            f"target: {body.target} is {value} in every row; there is nothing to learn.", field="target"
        )
    if seen.is_whole and target.task == CLASSIFICATION:
        _demand_classes(target.classes, f"the target {body.target}")
        if target.rows <= (body.max_rows or _MOST_ROWS):
            _demand_left(target.classes, body.test_fraction, "rows")
    if seen.is_whole:
        _demand_features(seen, body)
    return target


def _demand_features(seen: Seen, body: AutomlCreate) -> None:
    """Raises ``InvalidRequest``: no column could be learnt from, so every trial would fail."""
    out = {*seen.counters, *(seen.about.useless() if seen.about is not None else ())} - set(body.keep)
    features = [name for name in seen.columns if name != body.target]
    if all(name in out for name in features):
        raise InvalidRequest(
            f"data: nothing beside {body.target} tells rows apart: all other columns ({', '.join(features[:10])}) are empty, the same "
            "everywhere, names, or numbers of the rows. Add one, or keep one that names or numbers rows (`--keep`).",
            field="data",
        )


def _demand_left(classes: Sequence[tuple[str, int]], fraction: float, what: str) -> None:
    """Raises ``InvalidRequest``: after the test's part the trials could not learn and validate some class."""
    left = left_of([count for _, count in classes], fraction)
    rare = [f"{name} ({count})" for (name, _), count in zip(classes, left, strict=True) if count < _LEAST_LEFT]
    if rare:
        raise InvalidRequest(
            f"test_fraction: with {fraction:g} of the {what} kept for the test, too few are left of {', '.join(rare[:10])}; each "
            f"class needs {_LEAST_LEFT} besides. Make it smaller, or give these classes more {what}.",
            field="test_fraction",
        )


def _demand_kept(seen: Seen, body: AutomlCreate) -> None:
    """Raises ``InvalidRequest``: there is no such column, or it is no feature. Of what was not read the trials will say it."""
    if body.keep and seen.kind == IMAGES:
        raise InvalidRequest("keep: it is for columns of tables; take it away.", field="keep")
    for name in body.keep:
        if name == body.target:
            raise InvalidRequest(f"keep: {name} is the target, which is never given to the models.", field="keep")
        if seen.columns and name not in seen.columns:
            close = get_close_matches(name, seen.columns, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InvalidRequest(f"keep: there is no column {name!r}.{hint}", field="keep")


def _classes_of_images(seen: Seen, body: AutomlCreate) -> Target:
    if body.task == REGRESSION:
        raise InvalidRequest("task: images are classified; regression is for tables.", field="task")
    if seen.file:
        return _image_classes(seen, body)
    count = sum(c for _, c in seen.classes)
    if seen.classes and count < LEAST_ROWS:
        raise InvalidRequest(f"data: there are {count} images; at least {LEAST_ROWS} are needed.", field="data")
    _demand_classes(seen.classes, "the folders")
    is_counted = all(images < FILES_COUNTED for _, images in seen.classes)
    if seen.classes and is_counted and count <= (body.max_rows or _MOST_IMAGES):
        _demand_left(seen.classes, body.test_fraction, "images")
    return Target(CLASSIFICATION, "by their folders", sum(c for _, c in seen.classes), seen.classes)


def _image_classes(seen: Seen, body: AutomlCreate) -> Target:
    """Of images whose classes a table says."""
    target = look_at(seen.cells, CLASSIFICATION)
    if seen.is_whole and target.rows < LEAST_ROWS:
        raise InvalidRequest(
            f"data: {target.rows} images have a {body.target}; at least {LEAST_ROWS} are needed.", field="data"
        )
    if seen.is_whole and len(target.classes) < 2:
        raise InvalidRequest(
            f"target: {body.target} is the same for every image; there is nothing to learn.", field="target"
        )
    if seen.is_whole:
        _demand_classes(target.classes, f"the target {body.target}")
        if target.rows <= (body.max_rows or _MOST_IMAGES):
            _demand_left(target.classes, body.test_fraction, "images")
    return target


def _demand_classes(classes: Sequence[tuple[str, int]], what: str) -> None:
    rows = sum(count for _, count in classes)
    if len(classes) > _MOST_CLASSES or LEAST_OF_A_CLASS * len(classes) > rows:
        raise InvalidRequest(
            f"target: {what} has {len(classes)} different values in {rows} rows, too many for classes; choose another "
            "column, or say task regression if it is a quantity.",
            field="target",
        )
    rare = [f"{name} ({count})" for name, count in classes if count < LEAST_OF_A_CLASS]
    if rare:
        raise InvalidRequest(
            f"data: each class needs at least {LEAST_OF_A_CLASS} rows; of {what} these have fewer: {', '.join(rare[:10])}. "
            "Leave them out or join them.",
            field="data",
        )


def _metric(asked: str | None, task: str, target: Target | None) -> str:
    known = METRICS[task]
    if asked is None:
        return target.metric if target is not None else next(iter(known))
    if asked not in known:
        close = get_close_matches(asked, known, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InvalidRequest(f"metric: {asked!r} is none of {task}: {', '.join(known)}.{hint}", field="metric")
    return asked


def _families(body: AutomlCreate, kind: str) -> tuple[str, ...]:
    has_weights = body.weights is not None
    if has_weights and kind != IMAGES:
        raise InvalidRequest("weights: they are of a backbone for images; take them away.", field="weights")
    if has_weights and "/" not in (body.weights or "").strip("/"):
        raise InvalidRequest("weights: must be volume/path of a file.", field="weights")
    known = families_of(kind, has_weights=has_weights)
    for name in body.families:
        if name == "transfer" and kind == IMAGES and not has_weights:
            raise InvalidRequest("families: transfer needs weights, a backbone to start from.", field="weights")
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise InvalidRequest(f"families: {name!r} is none of {kind}: {', '.join(known)}.{hint}", field="families")
    return tuple(name for name in known if name in body.families) if body.families else known


def _options(body: AutomlCreate, kind: str) -> dict[str, Any]:
    most = body.max_rows or (_MOST_IMAGES if kind == IMAGES else _MOST_ROWS)
    options: dict[str, Any] = {"test_fraction": body.test_fraction, "max_rows": most, "data": body.data}
    if kind == IMAGES:
        named = {} if body.target is None else {"target": body.target}
        return {**options, "image_size": body.image_size or 0, **named}
    kept = {"keep": body.keep} if body.keep else {}
    return {**options, "target": body.target, "folds": body.folds or 0, **kept}


def _notes(seen: Seen, target: Target | None, task: str, metric: str, body: AutomlCreate) -> list[str]:
    notes = []
    if seen.kind == IMAGES and seen.classes:
        notes.append(f"{len(seen.classes)} classes of images: {', '.join(name for name, _ in seen.classes[:10])}.")
        if body.target is not None:
            notes.append(
                f"The class of an image is the name of its folder; {body.target} is what the classes are called."
            )
    elif seen.kind == IMAGES and target is not None:
        names = ", ".join(sorted(name for name, _ in target.classes[:10]))
        notes.append(f"{len(target.classes)} classes of images by the column {body.target} of {seen.file}: {names}.")
    elif target is not None and body.task is None:
        other = REGRESSION if task == CLASSIFICATION else CLASSIFICATION
        notes.append(f"{task.capitalize()}, since {target.why}; say task {other} if you know better.")
    if target is not None and target.is_imbalanced and body.metric is None:
        most, least = target.classes[0], target.classes[-1]
        notes.append(
            f"Compared by {metric}: {most[0]} is {most[1] / least[1]:.0f} times as frequent as {least[0]}, so accuracy would deceive."
        )
    if target is not None and target.strays:
        notes.append(
            f"{target.strays} rows have no number as {body.target}, such as {target.stray[:50]!r}; they are left out."
        )
    for name in seen.counters:
        if name in body.keep:
            notes.append(f"Column {name} numbers the rows, and is used since you keep it.")
        else:
            notes.append(
                f"Column {name} is left out: it numbers the rows, which tells nothing of new ones. Where it means something, "
                f"keep it (`--keep {name}`)."
            )
    if seen.about is not None:
        out = set(seen.counters) - set(body.keep)
        notes += [
            LEAK.format(name=name)
            for name in seen.about.mirrors(is_quantity=task == REGRESSION)
            if name not in {*out, *seen.about.useless()}
        ]
        notes += [
            f"Column {name} is taken for text: its numbers are written like {example!r}. Without marks between thousands and signs, "
            "and with a point before the fraction, they would be numbers."
            for name, example in seen.about.grouped()
        ]
    if not seen.is_whole and seen.columns:
        notes.append("Only the beginning of the table was looked at; the trials read all of it.")
    return notes


def _name_of(path: str) -> str:
    last = path.rstrip("/").rpartition("/")[2].lower()
    for end in (*CSV_ENDS[::-1], *PARQUET_ENDS):
        last = last.removesuffix(end)
    slug = re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40].strip("-")
    return f"automl-{slug}" if slug else "automl"


def _in_own_words(error: InvalidSpec) -> InvalidSpec:
    """The same, told of the request's fields."""

    def field(path: str | None) -> str:
        text = (path or "").removeprefix("template.")
        for job, own in _FIELDS.items():
            if text == job or text.startswith(f"{job}."):
                return own + text[len(job) :]
        return f"resources.{text}" if text in Resources.model_fields else text

    def hint_of(one: Mapping[str, Any]) -> str | None:
        hint: str | None = one.get("hint")
        return hint.replace(", or give the template a `max_wait`", "") if hint else hint

    told: list[dict[str, str | None]] = [
        {**one, "path": field(one.get("path")), "hint": hint_of(one)} for one in error.errors
    ]
    first = told[0] if told else {"path": field(error.field), "message": error.sentence}
    hint = f" ({first['hint']})" if first.get("hint") else ""
    return InvalidSpec(f"{first['path']}: {first['message']}{hint}.", field=first["path"], errors=told)
