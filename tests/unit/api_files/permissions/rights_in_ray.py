"""The routes of Ray's clients in the table of who may do what."""

from __future__ import annotations

import io
import zipfile

from tests.unit.api_files.permissions.rights import MEMBER, OUT, PEOPLE, VIEWER, Case, case


def _zipped() -> bytes:
    retained = io.BytesIO()
    with zipfile.ZipFile(retained, "w") as archive:
        archive.writestr("train.py", "pass")
    return retained.getvalue()


# Whoever asks first is told of a project that is none to them: a client shows what comes with a 403.
_VERSION = {**OUT, "stranger": 403, "plain": 403}
_NOTHING = {**dict.fromkeys(PEOPLE, 404), **OUT}
_PACKAGE = "/ray/vision/api/packages/gcs/_ray_pkg_1.zip"
# There is no project `default` in that house.
_NO_DEFAULT = {**_NOTHING, "reader": 403}

RAY: dict[str, Case] = {
    "GET /ray/{project}/api/version": case(_VERSION),
    "GET /ray/{project}/api/packages/{protocol}/{name}": case(_NOTHING, _PACKAGE),
    "PUT /ray/{project}/api/packages/{protocol}/{name}": case(MEMBER, _PACKAGE, content=_zipped()),
    "POST /ray/{project}/api/jobs/": case(MEMBER, json={"entrypoint": "true"}),
    "GET /ray/{project}/api/jobs/": case(VIEWER),
    "GET /ray/{project}/api/jobs/{ref}": case(VIEWER, "/ray/vision/api/jobs/told"),
    "DELETE /ray/{project}/api/jobs/{ref}": case(MEMBER, "/ray/vision/api/jobs/ended"),
    "GET /ray/{project}/api/jobs/{ref}/logs": case(VIEWER, "/ray/vision/api/jobs/told/logs"),
    "POST /ray/{project}/api/jobs/{ref}/stop": case(MEMBER, "/ray/vision/api/jobs/told/stop"),
    "GET /ray/api/version": case({**_NOTHING, **dict.fromkeys(PEOPLE[3:], 403)}),
    "GET /ray/api/packages/{protocol}/{name}": case(_NOTHING, _PACKAGE.replace("/vision", "")),
    "PUT /ray/api/packages/{protocol}/{name}": case(_NO_DEFAULT, _PACKAGE.replace("/vision", ""), content=_zipped()),
    "POST /ray/api/jobs/": case(_NO_DEFAULT, json={"entrypoint": "true"}),
    "GET /ray/api/jobs/": case(_NOTHING),
    "GET /ray/api/jobs/{ref}": case(_NOTHING, "/ray/api/jobs/told"),
    "DELETE /ray/api/jobs/{ref}": case(_NO_DEFAULT, "/ray/api/jobs/ended"),
    "GET /ray/api/jobs/{ref}/logs": case(_NOTHING, "/ray/api/jobs/told/logs"),
    "POST /ray/api/jobs/{ref}/stop": case(_NO_DEFAULT, "/ray/api/jobs/told/stop"),
    **{
        f"{method} /ray/{{rest:path}}": case(_NOTHING, "/ray/api/serve/applications/")
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
}
