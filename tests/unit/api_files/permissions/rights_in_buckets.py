"""Cloud Storage's routes in the table of who may do what."""

from __future__ import annotations

from tests.unit.api_files.permissions.rights import (
    BUCKET_READER,
    BUCKET_WRITER,
    NOT_IN_STORAGE,
    NOT_SERVED,
    PEOPLE,
    Case,
    case,
)

_OBJECT, _MODEL_FILE = "/storage/v1/b/{bucket}/o/{name:path}", "/storage/v1/b/vision/o/job-1%2Fmodel.bin"
_UPLOAD = "/upload/storage/v1/b/{bucket}/o"
_NO_SESSION = {**dict.fromkeys(PEOPLE, 404), **NOT_IN_STORAGE, "reader": 403}
GCS: dict[str, Case] = {
    "GET /storage/v1/b": case(NOT_IN_STORAGE),
    "POST /storage/v1/b": case(dict.fromkeys(PEOPLE, 403), json={"name": "x"}),
    "GET /storage/v1/b/{bucket}": case(BUCKET_READER, "/storage/v1/b/vision"),
    "GET /storage/v1/b/{bucket}/o": case(BUCKET_READER, "/storage/v1/b/vision/o"),
    **{
        f"{method} {place}{_OBJECT}": case(BUCKET_READER, place + _MODEL_FILE)
        for method in ("GET", "HEAD")
        for place in ("", "/download")
    },
    f"DELETE {_OBJECT}": case(BUCKET_WRITER, "/storage/v1/b/vision/o/job-1%2Fspare.bin"),
    f"POST {_UPLOAD}": case(
        BUCKET_WRITER,
        "/upload/storage/v1/b/vision/o",
        params={"uploadType": "media", "name": "job-1/new.bin"},
        content=b"x",
    ),
    **{
        f"{method} {_UPLOAD}": case(_NO_SESSION, "/upload/storage/v1/b/vision/o", params={"upload_id": "none.of-ours"})
        for method in ("PUT", "DELETE")
    },
    # Each part of a batch is answered by itself.
    "POST /batch/storage/v1": case(
        {**NOT_IN_STORAGE, "reader": 403},
        content=b"--x\r\nContent-Type: application/http\r\n\r\nGET /storage/v1/b HTTP/1.1\r\n\r\n--x--",
        headers={"content-type": "multipart/mixed; boundary=x"},
    ),
    **{
        f"{method} {place}/{{rest:path}}": case({**NOT_SERVED, "attempt": 501}, f"{place}/{path}")
        for place, path in (
            ("/storage/v1", "b/vision/iam"),
            ("/upload/storage/v1", "b/vision"),
            ("/download/storage/v1", "b/vision"),
            ("/resumable/upload/storage/v1", "b/vision/o"),
            ("/batch", "compute/v1"),
        )
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
}
