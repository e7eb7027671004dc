"""The SCIM routes, for identity providers with a token of scope ``scim``.

Not part of our OpenAPI document: RFC 7644 defines them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Body, Depends, Path, Query, Request, Response

from api.app.token_scopes import SCIM
from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import Caller, authenticate
from api.oidc.providers import OidcProvider
from api.protocols.kit.protocol_route import ProtocolRoute
from api.protocols.scim.errors import ScimRefusal
from core.domain.errors import Forbidden, InvalidRequest, NotFound, TrainmasterError

_TYPE: Final = "application/scim+json"
_ERROR: Final = "urn:ietf:params:scim:api:messages:2.0:Error"


class ScimRoute(ProtocolRoute):
    statuses = {InvalidRequest: 400}  # noqa: RUF012 (a ClassVar of its base)
    codes = {400: "invalidValue", 409: "uniqueness", 500: ""}  # noqa: RUF012

    @classmethod
    def error_response(cls, status: int, code: str, message: str) -> Response:
        error = {"schemas": [_ERROR], "status": str(status), "detail": message}
        return answer({**error, "scimType": code} if code else error, status)

    @classmethod
    def response_to(cls, error: TrainmasterError) -> Response:
        if isinstance(error, ScimRefusal):
            return cls.error_response(error.scim_status, error.scim_type, error.sentence)
        return super().response_to(error)


def answer(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type=_TYPE)


router = APIRouter(route_class=ScimRoute, include_in_schema=False, prefix="/scim/v2")


@dataclass(frozen=True, slots=True)
class ScimClient:
    """An identity provider that provisions users."""

    caller: Caller
    provider: OidcProvider
    context: AppContext

    @property
    def base(self) -> str:
        return f"{self.context.settings.api_url.rstrip('/')}/scim/v2"

    def directory(self, work: UnitOfWork) -> Any:
        from api.protocols.scim.resources import Directory  # its models take long to import

        return Directory(work, self.provider, self.base, self.caller.actor)


async def _client(request: Request, context: AppContextDep) -> ScimClient:
    caller = await authenticate(request, context)
    if SCIM not in caller.scopes:
        own = ", ".join(sorted(caller.scopes)) or "nothing"
        raise Forbidden(f"This needs a token of scope scim, which a platform admin creates; yours has {own}.")
    provider = next((each for each in request.app.state.oidc.providers if each.scim), None)
    if provider is None:
        raise NotFound('No provider provisions users: set "scim": true for it in TRAINMASTER_OIDC_PROVIDERS.')
    return ScimClient(caller, provider, context)


Client = Annotated[ScimClient, Depends(_client)]
_DISCOVERY: Final = ("Schemas", "ResourceTypes", "ServiceProviderConfig")


async def _kind(kind: Annotated[str, Path(max_length=50)], request: Request) -> str:
    """The resource type; of a GET also a discovery endpoint. Raises ``NotFound``, or 405 as ``ScimRefusal``."""
    if kind in ("Users", "Groups") or (kind in _DISCOVERY and request.method == "GET"):
        return kind
    if kind in _DISCOVERY:
        raise ScimRefusal(f"{kind} can only be read.", scim_status=405, scim_type="")
    raise NotFound(f"There is no {kind}; there are Users, Groups, {', '.join(_DISCOVERY)}.")


async def _parts(
    attributes: Annotated[str | None, Query(max_length=2000)] = None,
    excluded: Annotated[str | None, Query(alias="excludedAttributes", max_length=2000)] = None,
) -> dict[str, list[str]]:
    stated = {"attributes": attributes, "excludedAttributes": excluded}
    return {name: text.split(",") for name, text in stated.items() if text}


Kind = Annotated[str, Depends(_kind)]
Parts = Annotated[dict[str, list[str]], Depends(_parts)]
ResourceId = Annotated[str, Path(max_length=100)]
Document = Annotated[dict[str, Any], Body()]


@router.get("/ServiceProviderConfig")
def get_service_provider_config(client: Client) -> Response:
    from api.protocols.scim.resources import description

    config = description(client.base).config
    return answer({} if config is None else config.model_dump())


@router.get("/{kind}")
def list_resources(
    kind: Kind,
    client: Client,
    parts: Parts,
    filter_text: Annotated[str | None, Query(alias="filter", max_length=2000)] = None,
    start: Annotated[int, Query(alias="startIndex")] = 1,
    count: Annotated[int | None, Query()] = None,
) -> Response:
    from api.protocols.scim.resources import PAGE_LIMIT, tolerant

    if kind in ("Schemas", "ResourceTypes"):
        return answer(_list_of(_documents(client, kind)))
    limit = PAGE_LIMIT if count is None else min(max(count, 0), PAGE_LIMIT)
    with tolerant(), client.context.read() as work:
        return answer(client.directory(work).find(kind[:-1], filter_text, max(start, 1), limit, parts))


@router.get("/{kind}/{resource_id}")
def get_resource(kind: Kind, resource_id: ResourceId, client: Client, parts: Parts) -> Response:
    from api.protocols.scim.resources import tolerant

    if kind in ("Schemas", "ResourceTypes"):
        found = [each for each in _documents(client, kind) if each["id"] == resource_id]
        if not found:
            raise NotFound(f"{kind} has no {resource_id}.")
        return answer(found[0])
    with tolerant(), client.context.read() as work:
        return answer(client.directory(work).get(kind[:-1], resource_id, parts))


@router.post("/{kind}", status_code=201)
def create_resource(kind: Kind, client: Client, body: Document) -> Response:
    from api.protocols.scim.resources import tolerant

    with tolerant(), client.context.write() as work:
        created = client.directory(work).create(kind[:-1], body)
    response = answer(created, 201)
    response.headers["Location"] = created["meta"]["location"]
    return response


@router.api_route("/{kind}", methods=["PUT", "PATCH", "DELETE"])
def refuse_change_of_all(kind: Kind, client: Client) -> Response:
    del client
    raise ScimRefusal(f"Name one of {kind} by its id.", scim_status=405, scim_type="")


@router.put("/{kind}/{resource_id}")
def replace_resource(kind: Kind, resource_id: ResourceId, client: Client, body: Document) -> Response:
    from api.protocols.scim.resources import tolerant

    with tolerant(), client.context.write() as work:
        return answer(client.directory(work).replace(kind[:-1], resource_id, body))


@router.patch("/{kind}/{resource_id}")
def patch_resource(kind: Kind, resource_id: ResourceId, client: Client, body: Document) -> Response:
    from api.protocols.scim.resources import tolerant

    with tolerant(), client.context.write() as work:
        return answer(client.directory(work).patch(kind[:-1], resource_id, body))


@router.delete("/{kind}/{resource_id}", status_code=204)
def delete_resource(kind: Kind, resource_id: ResourceId, client: Client) -> Response:
    from api.protocols.scim.resources import tolerant

    with tolerant(), client.context.write() as work:
        client.directory(work).delete(kind[:-1], resource_id)
    return Response(status_code=204)


def _documents(client: ScimClient, kind: str) -> list[dict[str, Any]]:
    from api.protocols.scim.resources import description

    served = description(client.base)
    return [each.model_dump() for each in (served.schemas if kind == "Schemas" else served.resource_types)]


def _list_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schemas": ["urn:ietf:params:scim:api:messages:2.0:ListResponse"],
        "totalResults": len(documents),
        "startIndex": 1,
        "itemsPerPage": len(documents),
        "Resources": documents,
    }
