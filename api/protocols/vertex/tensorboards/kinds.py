"""Record kinds of TensorBoards.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.tensorboards
"""

from __future__ import annotations

from typing import Final

from api.protocols.vertex.records.kinds import SHOWN, RecordKind, enum, flag, text
from core.domain.metrics.points import SERIES_OF_REPLICA

SCALAR: Final = "SCALAR"
TENSOR: Final = "TENSOR"
BLOBS: Final = "BLOB_SEQUENCE"
VALUE_TYPES: Final = {0: "VALUE_TYPE_UNSPECIFIED", 1: SCALAR, 2: TENSOR, 3: BLOBS}

BOARD: Final = RecordKind(
    "tensorboards",
    "tensorboard",
    {**SHOWN, "isDefault": flag},
    limit=1_000,
    output=frozenset({"blobStoragePathPrefix", "runCount"}),
    message="Tensorboard",
    is_slow=True,
)
EXPERIMENT: Final = RecordKind(
    "experiments",
    "tensorboard_experiment",
    {**SHOWN, "source": text(1_000)},
    limit=10_000,
)
RUN: Final = RecordKind("runs", "tensorboard_run", SHOWN, limit=10_000)
SERIES: Final = RecordKind(
    "timeSeries",
    "tensorboard_time_series",
    {
        "displayName": text(250),
        "description": text(10_000),
        "valueType": enum(VALUE_TYPES),
        "pluginName": text(100),
        "pluginData": text(64 * 1024),  # bytes in base64
    },
    limit=SERIES_OF_REPLICA,
    fixed=frozenset({"valueType", "pluginName", "pluginData"}),
    output=frozenset({"metadata"}),
)
