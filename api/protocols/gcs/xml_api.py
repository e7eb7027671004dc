"""Cloud Storage's XML API (``/bucket/object``, signed URLs, multipart uploads) is not served: answers 501 in its
format.

https://cloud.google.com/storage/docs/xml-api/reference-status
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from api.pages import PAGE_PATHS

_OTHER_APIS: Final = frozenset(
    {"api", "apis", "ajax-api", "assets", "compute", "mlflow", "storage", "upload", "download", "resumable"}
    | {"batch", "kubernetes", "ray"}
)  # fmt: skip
_VERSION: Final = re.compile(r"v\d+(?:(?:alpha|beta)\d*)?")  # first path segment of Google's other APIs
_SIGNED: Final = ("x-goog-", "x-amz-")
# Headers that Google's clients send to each of its APIs.
_COMMON_HEADERS: Final = frozenset(
    {"x-goog-api-client", "x-goog-api-key", "x-goog-fieldmask", "x-goog-request-params", "x-goog-request-reason"}
    | {"x-goog-user-project"}
)  # fmt: skip
_PARAMETERS: Final = frozenset({"uploads", "uploadid", "googleaccessid"})
_SCHEMES: Final = ("goog1 ", "goog4-", "aws4-", "aws ")


def is_xml_request(scope: Scope) -> bool:
    """Whether a request without a route belongs to the XML API.

    It does if it is a PUT or DELETE to an address of at least two segments, has the API's headers, or a signed URL. At
    addresses of the web pages only headers and signatures count.
    """
    bucket, _, name = str(scope["path"]).strip("/").partition("/")
    if not bucket or bucket in _OTHER_APIS or _VERSION.fullmatch(bucket):
        return False
    if scope["method"] in ("PUT", "DELETE") and name and bucket not in PAGE_PATHS:
        return True
    headers = Headers(scope=scope)
    if any(key.startswith(_SIGNED) and key not in _COMMON_HEADERS for key in headers):
        return True
    if headers.get("authorization", "").lower().startswith(_SCHEMES):
        return True
    keys = [key.lower() for key, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)]
    return any(key in _PARAMETERS or key.startswith(_SIGNED) for key in keys)


def refusal(request: Request) -> Response | None:
    """The response to a request of the XML API; ``None`` for other requests."""
    if not is_xml_request(request.scope):
        return None
    message = (
        "Cloud Storage's XML API is not served by this platform, nor are signed addresses; its JSON API is, "
        "under /storage/v1 and /upload/storage/v1."
    )
    details = f"{request.method} {request.url.path[:200]}"
    body = (
        "<?xml version='1.0' encoding='UTF-8'?><Error><Code>NotImplemented</Code>"
        f"<Message>{escape(message)}</Message><Details>{escape(details)}</Details></Error>"
    )
    return Response(body, 501, media_type="application/xml")
