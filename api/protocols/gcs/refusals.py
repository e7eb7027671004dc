"""Addresses of Cloud Storage's API without a counterpart here: each answers 501 with the feature's name."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Response

from api.protocols.gcs.callers import StorageReader
from api.protocols.gcs.route import RefusingRoute
from api.protocols.kit.errors import NotServed

router = APIRouter(route_class=RefusingRoute, include_in_schema=False)

_ALL: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_ADVICE: Final = {
    "acl": "who may use a bucket is told by projects and their members",
    "defaultObjectAcl": "who may use a bucket is told by projects and their members",
    "iam": "who may use a bucket is told by projects and their members",
    "hmacKeys": "clients send a token of the platform (`trainmaster token create`)",
    "serviceAccount": "clients send a token of the platform (`trainmaster token create`)",
    "notificationConfigs": "the platform's own events tell of jobs",
    "channels": "list the objects again instead",
    "watch": "list the objects again instead",
    "compose": "read the objects and upload one",
    "copyTo": "read the object and upload it",
    "rewriteTo": "read the object and upload it",
    "moveTo": "read the object, upload it and delete the first",
    "restore": "what is deleted is gone",
    "folders": "folders are made as objects are, and go with them",
    "managedFolders": "folders are made as objects are, and go with them",
}


@router.api_route("/storage/v1/{rest:path}", methods=_ALL)
def not_served(rest: str, caller: StorageReader) -> Response:  # noqa: ARG001 (who may ask)
    raise NotServed(_sentence(rest))


@router.api_route("/upload/storage/v1/{rest:path}", methods=_ALL)
@router.api_route("/download/storage/v1/{rest:path}", methods=_ALL)
@router.api_route("/resumable/upload/storage/v1/{rest:path}", methods=_ALL)
@router.api_route("/batch/{rest:path}", methods=_ALL)
def not_served_here(rest: str, caller: StorageReader) -> Response:  # noqa: ARG001 (who may ask)
    raise NotServed(_sentence(rest))


def _sentence(rest: str) -> str:
    """``rest``: of the address, such as ``b/data/o/a%2Fb/acl`` or ``projects/x/hmacKeys``."""
    names = rest.split("/")
    noun = next((name for name in names if name in _ADVICE), None)
    if noun is not None:
        return f"{noun} is not served by this platform: {_ADVICE[noun]}."
    if names[0] == "b" and names[2:3] == ["o"]:  # its name may have slashes
        return "Changing an object where it lies is not served by this platform; read it and upload it again."
    return (
        f"{names[-1][:50]!r} is not served by this platform; buckets, and listing, reading, uploading and "
        "deleting objects are."
    )
