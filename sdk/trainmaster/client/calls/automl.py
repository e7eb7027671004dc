"""AutoML: the best model for a table or a folder of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from trainmaster.client.calls.build import params, path, typed
from trainmaster.client.steps import Call
from trainmaster.wire.automl import AutomlCreate, AutomlDetail


def create_automl(
    data: str,
    target: str | None = None,
    *,
    budget: str | float = "1h",
    trials: int = 60,
    parallel: int = 1,
    project: str = "default",
    name: str | None = None,
    model: str | None = None,
    aliases: Sequence[str] = (),
    resources: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    idempotency_key: str | None = None,
    **more: Any,
) -> Call[AutomlDetail]:
    """Begin to look for the best model; it goes on by itself, and registers the best one at its end.

    Args:
        data: volume/path of a table, a folder of tables, or a folder with one folder of images for each class.
        target: of tables: the column to be predicted.
        budget: time of the search, such as ``"1h"``.
        model: what the best is registered as; ``None``: as the study is called.
        resources: of one trial, as in a job spec: ``{"cpu": 2}``.
        dry_run: look at the data and tell the plan; create nothing.
        idempotency_key: the same key never makes a second study; made when none is given, so that a repeat after a lost answer
            is safe.
        more: ``kind``, ``task``, ``metric``, ``families``, ``test_fraction``, ``folds``, ``image_size``, ``weights``, ``max_rows``,
            ``keep``, ``seed``, ``image``, ``wait_for_nodes``: as ``docs/howto/automl.md`` tells them.

    Raises:
        InvalidRequest: there is nothing to learn from, with the field at fault.
    """
    body = AutomlCreate(
        data=data, target=target, budget=budget, trials=trials, parallel=parallel, project=project, name=name, model=model,
        aliases=list(aliases), resources=dict(resources or {}), dry_run=dry_run, **more,
    )  # fmt: skip
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    return typed(AutomlDetail, "create_automl", "POST", "/automl", body=body, headers=headers, is_repeatable=True)


def get_automl(study: str, *, limit: int | None = None) -> Call[AutomlDetail]:
    """An AutoML study with its leaderboard and, once its best model is tested, that. ``limit``: lines of the leaderboard."""
    return typed(AutomlDetail, "get_automl", "GET", path("/automl/{study}", study=study), query=params(limit=limit))
