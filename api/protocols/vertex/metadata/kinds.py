"""Record kinds of metadata stores:
https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.
"""

from __future__ import annotations

from typing import Final

from api.protocols.vertex.records.kinds import SHOWN, RecordKind, enum, struct, text

_SCHEMA: Final = {"schemaTitle": text(256), "schemaVersion": text(100)}
_FIXED: Final = frozenset(_SCHEMA)
_NODES: Final = 50_000  # of each kind in a store

STORE: Final = RecordKind(
    "metadataStores",
    "metadata_store",
    {"description": text(10_000)},
    limit=100,
    output=frozenset({"state"}),
    absent={"encryptionSpec": "encryption by keys of one's own is", "dataplexConfig": "Dataplex is"},
    message="MetadataStore",
    is_slow=True,
)
CONTEXT: Final = RecordKind(
    "contexts",
    "context",
    {**SHOWN, **_SCHEMA, "metadata": struct},
    limit=_NODES,
    fixed=_FIXED,
    output=frozenset({"parentContexts"}),
)
ARTIFACT: Final = RecordKind(
    "artifacts",
    "artifact",
    {
        **SHOWN,
        **_SCHEMA,
        "uri": text(4_000),
        "state": enum({0: "STATE_UNSPECIFIED", 1: "PENDING", 2: "LIVE"}),
        "metadata": struct,
    },
    limit=_NODES,
    fixed=_FIXED,
)
EXECUTION: Final = RecordKind(
    "executions",
    "execution",
    {
        **SHOWN,
        **_SCHEMA,
        "state": enum(
            {
                0: "STATE_UNSPECIFIED",
                1: "NEW",
                2: "RUNNING",
                3: "COMPLETE",
                4: "FAILED",
                5: "CACHED",
                6: "CANCELLED",
            }
        ),
        "metadata": struct,
    },
    limit=_NODES,
    fixed=_FIXED,
)
