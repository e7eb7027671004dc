"""SCIM users and groups: their rows, and what they give to users of the platform."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from scim2_models import AuthenticationScheme as Scheme
from scim2_models import (
    Context,
    EnterpriseUser,
    Group,
    ListResponse,
    Meta,
    PatchOp,
    Resource,
    ResourceType,
    ResponseParameters,
    SCIMException,
    ScimFilter,
    ScimPolicy,
    ScimProvider,
    ServiceProviderConfig,
    User,
)
from sqlalchemy import delete, func, select

from api.app import audit
from api.app.unit_of_work import UnitOfWork
from api.oidc.id_tokens import LoginClaims
from api.oidc.providers import OidcProvider
from api.oidc.provisioning import apply_groups, ensure_identity, groups_by_scim, is_last_admin, link, revoke_grants
from api.protocols.scim.errors import ScimRefusal
from core.db.repositories.tokens import revoke_all
from core.db.tables import ScimResource, UserIdentity
from core.db.tables import User as UserRow
from core.domain.errors import Conflict, NotFound
from core.ids import new_id

ScimUser = User[EnterpriseUser]
MODELS: Final[Mapping[str, Any]] = {"User": ScimUser, "Group": Group}
PAGE_LIMIT: Final = 200
Parts = dict[str, list[str]]  # `attributes` or `excludedAttributes`: what to show of a resource
# What Entra ID and Okta send beside the specification.
_POLICY: Final = ScimPolicy(
    unknown=ScimPolicy.Unknown.ignore,
    remove_value_as_filter=ScimPolicy.RemoveValue.apply,
    unmatched_path_filter=ScimPolicy.UnmatchedPathFilter.create,
)
# Providers look users and groups up by these before they create one; the index answers.
_LOOKUP: Final = re.compile(r'\s*(userName|displayName|externalId)\s+eq\s+"([^"\\]*)"\s*', re.IGNORECASE)


@contextmanager
def tolerant() -> Iterator[None]:
    """Reads what providers send; raises ``ScimRefusal`` for what the models refuse."""
    try:
        with _POLICY:
            yield
    except SCIMException as error:
        raise ScimRefusal(f"{error}.", scim_status=error.status, scim_type=error.scim_type) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ScimRefusal(f"{field}: {first['msg']}.", scim_type=_type_of(first)) from error


def _type_of(mistake: Mapping[str, Any]) -> str:
    return str(mistake.get("ctx", {}).get("scim_type") or "invalidValue")


def description(base: str) -> ScimProvider:
    """What the service serves. ``base``: the URL of the platform."""
    config = ServiceProviderConfig.model_validate(
        {
            "documentationUri": f"{base}/openapi.json",
            "patch": {"supported": True},
            "bulk": {"supported": False, "maxOperations": 0, "maxPayloadSize": 0},
            "filter": {"supported": True, "maxResults": PAGE_LIMIT},
            "changePassword": {"supported": False},
            "sort": {"supported": False},
            "etag": {"supported": False},
            "authenticationSchemes": [
                Scheme(
                    type=Scheme.Type.oauthbearertoken, name="Bearer token", description="A token of scope scim."
                ).model_dump()
            ],
        }
    )
    types = [ResourceType.from_resource(model) for model in MODELS.values()]
    return ScimProvider([User, EnterpriseUser, Group], resource_types=types, config=config)


@dataclass(frozen=True, slots=True)
class Directory:
    """The users and groups of one provider, in one transaction. ``base``: the URL of ``/scim/v2``."""

    work: UnitOfWork
    provider: OidcProvider
    base: str
    actor: str

    def find(self, kind: str, text: str | None, start: int, count: int, parts: Parts) -> dict[str, Any]:
        """A page of the resources that a filter selects. ``start``: from 1."""
        query = select(ScimResource).where(ScimResource.kind == kind).order_by(ScimResource.created_at, ScimResource.id)
        looked_up = None if text is None else _LOOKUP.fullmatch(text)
        if looked_up is not None and looked_up[1].lower() == "externalid":
            query, text = query.where(ScimResource.external_id == looked_up[2]), None
        elif looked_up is not None and (looked_up[1].lower() == "username") == (kind == "User"):
            query, text = query.where(ScimResource.key == looked_up[2].lower()), None
        if text is None:
            total = self.work.session.scalars(select(func.count()).select_from(query.subquery())).one()
            rows = list(self.work.session.scalars(query.offset(start - 1).limit(count)))
        else:
            condition = _typed(ScimFilter, kind)(text)
            found = [row for row in self.work.session.scalars(query) if condition.match(_model_of(row))]
            total, rows = len(found), found[start - 1 : start - 1 + count]
        page: ListResponse[Any] = _typed(ListResponse, kind)(
            total_results=total,
            start_index=start,
            items_per_page=len(rows),
            resources=[self._view(row) for row in rows],
        )
        return page.model_dump(scim_ctx=Context.RESOURCE_QUERY_RESPONSE, response_parameters=_shown_parts(kind, parts))

    def get(self, kind: str, resource_id: str, parts: Parts) -> dict[str, Any]:
        return self._shown(self._load(kind, resource_id, is_locked=False), parts)

    def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        resource = MODELS[kind].model_validate(body, scim_ctx=Context.RESOURCE_CREATION_REQUEST)
        row = ScimResource(id=new_id("scim"), kind=kind, created_at=self.work.now, updated_at=self.work.now, key="")
        if kind == "User":
            identity = ensure_identity(self.work, self.provider, _claims_of(self.provider, resource, row.id))
            row.id, row.identity_id = identity.user_id, identity.id
        _demand_free(self.work, row, resource)
        self._write(row, resource, before=None)
        return self._shown(row)

    def replace(self, kind: str, resource_id: str, body: dict[str, Any]) -> dict[str, Any]:
        row = self._load(kind, resource_id)
        resource = MODELS[kind].model_validate(body, scim_ctx=Context.RESOURCE_REPLACEMENT_REQUEST)
        self._change(row, resource)
        return self._shown(row)

    def patch(self, kind: str, resource_id: str, body: dict[str, Any]) -> dict[str, Any]:
        row = self._load(kind, resource_id)
        for operation in body.get("Operations") or ():
            if isinstance(operation, dict) and isinstance(operation.get("value"), dict) and not operation.get("path"):
                operation["value"].pop("id", None)  # Okta repeats the id of a group
        patch = _typed(PatchOp, kind).model_validate(body, scim_ctx=Context.RESOURCE_PATCH_REQUEST)
        resource = _model_of(row)
        patch.patch(resource)
        self._change(row, resource)
        return self._shown(row)

    def delete(self, kind: str, resource_id: str) -> None:
        """A user is disabled, and its groups' memberships end; the user's name stays with the jobs."""
        row = self._load(kind, resource_id)
        if kind == "User":
            self._set_active(row, is_active=False)
            revoke_grants(self.work, self.work.session.get_one(UserIdentity, row.identity_id))
            for group in self._groups():
                group.body = {**group.body, "members": [m for m in _members(group.body) if m["value"] != row.id]}
        self.work.session.execute(delete(ScimResource).where(ScimResource.id == row.id))
        if kind == "Group":
            self._grant({member["value"] for member in _members(row.body)})
        self._record("deleted", row)

    def _load(self, kind: str, resource_id: str, *, is_locked: bool = True) -> ScimResource:
        query = select(ScimResource).where(ScimResource.id == resource_id, ScimResource.kind == kind)
        query = query.with_for_update() if is_locked else query
        row = self.work.session.execute(query).scalar_one_or_none()
        if row is None:
            raise NotFound(f"There is no {kind} {resource_id}.")
        return row

    def _groups(self) -> list[ScimResource]:
        query = select(ScimResource).where(ScimResource.kind == "Group").order_by(ScimResource.id).with_for_update()
        return list(self.work.session.scalars(query))

    def _change(self, row: ScimResource, resource: Resource[Any]) -> None:
        before = row.body
        _demand_free(self.work, row, resource)
        if row.kind == "User" and resource.external_id not in (None, row.external_id):
            user = self.work.session.get_one(UserRow, row.id)
            row.identity_id = link(self.work, self.provider, resource.external_id or "", user).id
        self._write(row, resource, before=before)

    def _write(self, row: ScimResource, resource: Resource[Any], *, before: dict[str, Any] | None) -> None:
        resource.id, resource.meta = row.id, None
        body = resource.model_dump(scim_ctx=Context.RESOURCE_QUERY_RESPONSE)  # without a password
        row.body, row.key, row.external_id = body, _key_of(resource), resource.external_id
        row.updated_at = self.work.now
        members = {member["value"] for member in _members(body)}
        users = select(ScimResource.id).where(ScimResource.kind == "User", ScimResource.id.in_(members))
        if members - set(self.work.session.scalars(users)):
            raise ScimRefusal("members: a value is not the id of a user here; create the user first.")
        if before is None:
            self.work.session.add(row)
        self.work.session.flush()
        if isinstance(resource, User):
            self._set_active(row, is_active=resource.active is not False)
            self._grant({row.id})
        else:
            names = ("displayName", "externalId")
            is_renamed = before is None or any(before.get(name) != body.get(name) for name in names)
            old = {member["value"] for member in _members(before or {})}
            self._grant(members | old if is_renamed else members ^ old)
        self._record("created" if before is None else "changed", row)

    def _set_active(self, row: ScimResource, *, is_active: bool) -> None:
        """A disabled user's tokens and sessions end for good. Jobs are the project's and continue."""
        user = self.work.session.execute(select(UserRow).where(UserRow.id == row.id).with_for_update()).scalar_one()
        if is_active == (user.disabled_at is None):
            return
        if not is_active:
            if user.is_admin and is_last_admin(self.work, user):
                raise Conflict(f"{user.name} is the last platform admin; make another user admin first.")
            revoke_all(self.work.session, user.id, self.work.now)
        user.disabled_at = None if is_active else self.work.now
        data = {"user": user.name, "is_disabled": not is_active}
        self.work.record_event("user.changed", self.actor, data=data)

    def _grant(self, user_ids: set[str]) -> None:
        """Give the users the memberships of all their groups."""
        rows = self.work.session.execute(
            select(UserIdentity, UserRow)
            .join(ScimResource, ScimResource.identity_id == UserIdentity.id)
            .join(UserRow, UserRow.id == UserIdentity.user_id)
            .where(ScimResource.id.in_(user_ids))
        ).all()
        groups = [group.body for group in self._groups()]
        for identity, user in rows:
            apply_groups(self.work, self.provider, identity, user, groups_by_scim(groups, user.id))

    def _record(self, verb: str, row: ScimResource) -> None:
        audit.note_object(row.kind.lower(), row.id)
        self.work.record_event(f"scim.{row.kind.lower()}_{verb}", self.actor, data={"id": row.id, "name": row.key})

    def _view(self, row: ScimResource) -> Resource[Any]:
        resource: Resource[Any] = _model_of(row)
        resource.meta = Meta(
            resource_type=row.kind, created=row.created_at, last_modified=row.updated_at,
            location=f"{self.base}/{row.kind}s/{row.id}",
        )  # fmt: skip
        return resource

    def _shown(self, row: ScimResource, parts: Parts | None = None) -> dict[str, Any]:
        selected = _shown_parts(row.kind, parts or {})
        return self._view(row).model_dump(scim_ctx=Context.RESOURCE_QUERY_RESPONSE, response_parameters=selected)


def _typed(generic: Any, kind: str) -> Any:
    """A generic class of the library for the model of ``kind``, which is known at run time alone."""
    return generic[MODELS[kind]]


def _shown_parts(kind: str, parts: Parts) -> ResponseParameters[Any]:
    shown: ResponseParameters[Any] = _typed(ResponseParameters, kind).model_validate(parts)
    return shown


def _model_of(row: ScimResource) -> Any:
    resource = MODELS[row.kind].model_validate(row.body)
    resource.id = row.id
    return resource


def _members(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(body.get("members") or ())


def _key_of(resource: Resource[Any]) -> str:
    name = resource.user_name if isinstance(resource, User) else getattr(resource, "display_name", None)
    if not name:
        raise ScimRefusal("userName, or displayName of a group, is missing.")
    return str(name).lower()


def _demand_free(work: UnitOfWork, row: ScimResource, resource: Resource[Any]) -> None:
    taken = select(ScimResource.id).where(ScimResource.kind == row.kind, ScimResource.key == _key_of(resource))
    by_id = select(ScimResource.id).where(ScimResource.id == row.id)
    found = set(work.session.scalars(taken)) | (set(work.session.scalars(by_id)) if not row.key else set())
    if found - ({row.id} if row.key else set()):
        raise ScimRefusal(f"A {row.kind} {_key_of(resource)} already exists.", scim_status=409, scim_type="uniqueness")


def _claims_of(provider: OidcProvider, resource: Resource[Any], fallback: str) -> LoginClaims:
    """``externalId`` is the subject by which the user logs in; without it no login finds the user."""
    name = _key_of(resource)
    return LoginClaims(
        issuer=provider.issuer,
        subject=resource.external_id or fallback,
        names=(name.partition("@")[0], name),
        email=name if "@" in name else None,
        groups=frozenset(),
    )
