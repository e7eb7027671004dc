from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from trainmaster.wire.admin import TokenCreate, TokenCreated, TokenView
from trainmaster.wire.base import Page

from api.app.unit_of_work import AppContextDep
from api.auth import Reader, Writer
from api.http.routing import new_router
from api.tokens import service

router = new_router("tokens", "/tokens")


@router.get("", operation_id="list_tokens", summary="The caller's tokens")
def list_tokens(
    caller: Reader, context: AppContextDep, query: Annotated[service.TokenQuery, Query()]
) -> Page[TokenView]:
    """Newest first; their text is never shown again."""
    with context.read() as work:
        return service.list_tokens(work, caller, query)


@router.post("", operation_id="create_token", summary="Create a token", status_code=201)
def create_token(body: TokenCreate, caller: Writer, context: AppContextDep, response: Response) -> TokenCreated:
    """`token` is shown only once. Its scopes cannot exceed those of the caller's token."""
    response.headers["Cache-Control"] = "no-store"
    with context.write() as work:
        return service.create(work, caller, body)


@router.delete("/{token_id}", operation_id="revoke_token", summary="Revoke a token", status_code=204)
def revoke_token(token_id: str, caller: Writer, context: AppContextDep) -> None:
    """Takes effect at once on this API process, within seconds on others. The caller's own token may be revoked,
    too.
    """
    with context.write() as work:
        service.revoke(work, caller, token_id)
