"""Whether a batch prediction may go on in its output: what the predictions there are of stands in ``batch.json`` beside them.

Its replicas look, too (``trainmaster_serving.manifest``): at the instances, and where the control plane does not see the volume.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from trainmaster.wire.serving import BatchPredictRequest

from api.app.unit_of_work import AppContext
from api.jobs.places import Output
from core.domain.errors import Conflict, TrainmasterError
from core.storage.volumes import output_tree

_MANIFEST: Final = "batch.json"
_MOST_BYTES: Final = 64 * 2**10
# Of the content of files, which replicas look at; others are the registry's.
_BY_FILES: Final = "content:"
_OPTIONS: Final = (("shard_size", "--shard-size"), ("csv_rows", "--csv-rows"))


def demand_own_output(context: AppContext, output: Output, body: BatchPredictRequest, model: str, digest: str) -> None:
    """After the caller has proved to write there.

    Args:
        model: as people call it. digest: of the registry's version; empty: a place on a volume.

    Raises:
        Conflict: there are predictions of another model, or made with other options.
    """
    there = _manifest(context, output)
    made_by = there.get("model_digest")
    if not isinstance(made_by, str):
        return
    if made_by != digest and (digest or not made_by.startswith(_BY_FILES)):
        raise Conflict(
            f"output: {body.output} holds predictions of model {there.get('model')!s:.200}, and this is {model}; choose another "
            "output, or delete this one first.",
            field="output",
        )
    for field, option in _OPTIONS:
        own = getattr(body, field)
        if there.get(field) != own:
            raise Conflict(
                f"output: {body.output} holds predictions that were made with {option} {there.get(field)!s:.50}, not {own}: say that to "
                "go on, or choose another output.",
                field=field,
            )


def _manifest(context: AppContext, output: Output) -> dict[str, Any]:
    """Empty: there is none, or none that can be seen from here."""
    if not output.path:
        return {}
    known = context.volumes.find(output.volume, context.clock())
    if known is None or known.root is None:
        return {}
    try:
        with os.fdopen(output_tree(known, output.path).open_file(_MANIFEST), "rb") as stream:
            found = json.loads(stream.read(_MOST_BYTES))
    except (TrainmasterError, OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
