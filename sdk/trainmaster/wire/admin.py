"""API models of projects, users, tokens, volumes, nodes, secrets, health, and the mapping table of Vertex's names."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field

from trainmaster.spec.fields import EnvName, LabelKey, LabelValue, Name
from trainmaster.spec.model import MAX_ENTRIES
from trainmaster.wire.base import Finite, Weight, WireModel, WireRequest

ProjectRole = Literal["viewer", "member", "admin"]
# A verb for everything, or for one kind of resource; `scim` opens the routes for identity providers, and nothing else.
Scope = Literal[
    "read", "write", "admin", "jobs:read", "jobs:write", "files:read", "files:write", "models:read", "models:write",
    "endpoints:read", "endpoints:write", "scim",
]  # fmt: skip
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


class ProjectView(WireModel):
    name: str
    description: str = ""
    weight: float = 1.0
    quota: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime
    my_role: str | None = None


EVERYONE: Final = "everyone"  # as the grantee of a volume: the members of all projects


def _project_name(name: str) -> str:
    if name == EVERYONE:
        raise ValueError(f"cannot be {EVERYONE!r}, which names all projects in grants of volumes; choose another name")
    return name


class ProjectCreate(WireRequest):
    name: Annotated[Name, AfterValidator(_project_name)]
    description: str = Field(default="", max_length=4000)
    weight: Weight = 1.0


class ProjectUpdate(WireRequest):
    description: str | None = Field(default=None, max_length=4000)
    weight: Weight | None = None


class MemberView(WireModel):
    user: str
    role: ProjectRole
    is_service_account: bool = False


class MemberSet(WireRequest):
    role: ProjectRole


class UserView(WireModel):
    name: str
    is_admin: bool
    is_service_account: bool = False
    created_at: datetime
    disabled_at: datetime | None = None


class UserCreate(WireRequest):
    name: Name
    is_admin: bool = False


class UserUpdate(WireRequest):
    is_admin: bool | None = None
    is_disabled: bool | None = None


class TokenView(WireModel):
    """``parent_id``: of the token that it was created with, and is revoked with; ``None``: it has none.

    ``projects``: the projects that it is limited to; ``None``: it has all rights of its user.
    """

    id: str
    user: str
    name: str
    scopes: list[Scope]
    projects: list[str] | None = None
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    parent_id: str | None = None


class TokenCreate(WireRequest):
    name: str = Field(min_length=1, max_length=100)
    scopes: list[Scope] = Field(default=["read", "write"], min_length=1)
    expires_in_s: float | None = Field(default=None, gt=0)
    user: str | None = None  # another user's token: platform admins only
    projects: Annotated[
        list[Name] | None, Field(min_length=1, max_length=100, description="Limits the token to these projects.")
    ] = None


class TokenCreated(TokenView):
    """``token`` is the token's text, which only this response contains."""

    token: str


class ServiceAccountView(WireModel):
    """``name``: with its project, `ci@vision`, as jobs and tokens show it."""

    name: str
    role: ProjectRole
    created_at: datetime
    disabled_at: datetime | None = None


class ServiceAccountCreate(WireRequest):
    """``name``: without its project."""

    name: Name
    role: ProjectRole = "member"


class ServiceAccountUpdate(WireRequest):
    role: ProjectRole | None = None
    is_disabled: bool | None = None


class ServiceAccountDeleted(WireModel):
    """``user``: its name in lists of its jobs from now on. ``unfinished_jobs`` continue."""

    name: str
    user: str
    revoked_tokens: int
    unfinished_jobs: int


class ServiceAccountTokenCreate(WireRequest):
    name: str = Field(min_length=1, max_length=100)
    scopes: list[Scope] = Field(default=["read", "write"], min_length=1)
    expires_in_s: float | None = Field(default=None, gt=0, description="Default: 90 days.")


class LoginExchange(WireRequest):
    code: str


class SessionOpen(WireRequest):
    """Login of a browser, with either a token or a one-time code."""

    token: str | None = Field(default=None, max_length=500)
    code: str | None = Field(default=None, max_length=200)


class LoginCodeCreated(WireModel):
    """``code`` logs in once at ``<server>/login?code=…``, until ``expires_at``."""

    user: str
    code: str
    expires_at: datetime


class LoginProviderView(WireModel):
    """An identity provider (OpenID Connect). ``label``: its name for users."""

    name: str
    label: str


class ProviderLoginStart(WireRequest):
    """``next``: the page to open after the login, such as /jobs."""

    next: str | None = Field(default=None, max_length=2000)


class ProviderLogin(WireModel):
    """``authorization_url``: the provider's page at which the user logs in."""

    authorization_url: str


class ProviderLoginResponse(WireRequest):
    """The query of the address to which the provider sent the browser back."""

    state: str = Field(min_length=1, max_length=500)
    code: str | None = Field(default=None, max_length=8000)
    iss: str | None = Field(default=None, max_length=2000)
    error: str | None = Field(default=None, max_length=500)
    error_description: str | None = Field(default=None, max_length=8000)


class DeviceLoginStarted(WireModel):
    """A login on another device: the user opens ``verification_uri`` there and enters ``user_code``, or opens
    ``verification_uri_complete``. ``device_code`` is for polls, ``interval_s`` apart.
    """

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None
    expires_in_s: float
    interval_s: float


class DeviceLoginPoll(WireRequest):
    device_code: str = Field(max_length=16_000)


class DeviceLogin(WireModel):
    """``token``: ``None`` while the user has not finished. ``slow_down_s``: to add to the time between polls."""

    token: TokenCreated | None = None
    slow_down_s: float = 0.0


class IdentityView(WireModel):
    """An identity by which a user logs in; ``subject`` is the issuer's ID of the user."""

    id: str
    provider: str
    issuer: str
    subject: str
    email: str | None = None
    created_at: datetime
    last_login_at: datetime | None = None


class IdentityLink(WireRequest):
    """``provider``: the name in the settings. ``subject``: the provider's ID of the user (claim ``sub``)."""

    provider: str = Field(max_length=100)
    subject: str = Field(min_length=1, max_length=255)


VolumeAccess = Literal["read", "write"]


class VolumePart(WireModel):
    """A folder of a volume and what the caller may do there. ``prefix``: empty for the whole volume."""

    prefix: str = ""
    access: VolumeAccess


class VolumeGrantView(WireModel):
    """``grantee``: a project, or ``everyone``: the members of all projects."""

    grantee: str
    access: VolumeAccess
    prefix: str = ""


class VolumeView(WireModel):
    """``parts``: those that the caller may use. ``grants``: shown to platform admins only."""

    name: str
    kind: Literal["local", "nfs", "pvc", "csi"]
    root: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    is_read_only: bool = False
    parts: list[VolumePart] = Field(default_factory=list)
    grants: list[VolumeGrantView] = Field(default_factory=list)
    created_at: datetime


class SecretSet(WireRequest):
    value: str = Field(max_length=65_536)


class SecretView(WireModel):
    name: EnvName
    updated_at: datetime


class QuarantineJob(WireModel):
    """A job that ended on the node because of the machine.

    A job that the caller may not see has only time and error.
    """

    job_id: str | None = None
    job: str | None = None  # its name
    at: datetime
    error: str  # such as "uncorrectable ECC error"


class QuarantineView(WireModel):
    """Quarantine of a node on which jobs ended because of the machine: it is unschedulable, running replicas continue.

    ``until``: when the quarantine ends automatically; `null`: only by a release. ``count``: consecutive quarantines.
    """

    since: datetime
    until: datetime | None = None
    why: str
    jobs: list[QuarantineJob] = Field(default_factory=list)
    count: int = 1


class SuspicionView(WireModel):
    """Why a node should be quarantined, and why it is not: the last schedulable node never is, nor too many at once."""

    why: str
    why_not: str
    jobs: list[QuarantineJob] = Field(default_factory=list)


class NodeView(WireModel):
    name: str
    executor: str
    labels: dict[str, str]  # effective labels: the executor's, overridden by the admins'
    admin_labels: dict[str, str] = Field(default_factory=dict)
    allocatable: dict[str, Any]  # cpu_milli, memory_bytes, gpus {model: count}
    used: dict[str, Any]  # same keys; with fractions of GPUs
    gpus: list[dict[str, Any]] = Field(default_factory=list)
    is_ready: bool
    condition: str = ""
    is_cordoned: bool = False
    is_draining: bool = False  # its jobs are being moved to other nodes; implies is_cordoned
    cordon_reason: str = ""
    quarantine: QuarantineView | None = None
    suspicion: SuspicionView | None = None
    seen_at: datetime
    replicas: int = 0  # running here now


class HolderView(WireModel):
    """A replica and its resources on a node. Of jobs that the caller may not see, only the resources are shown."""

    node: str
    gpus: list[str] = Field(default_factory=list)
    gpu_model: str | None = None
    gpu_part: float | None = None  # fraction of a shared GPU; none: whole GPUs
    cpu_milli: int
    memory_bytes: int
    job_id: str | None = None
    job: str | None = None  # its name
    project: str | None = None
    role: str | None = None
    index: int | None = None
    state: str | None = None


class NodeLabelsSet(WireRequest):
    """All labels set by admins; replaces the previous ones."""

    labels: dict[LabelKey, LabelValue] = Field(max_length=MAX_ENTRIES)


class CallerIdentity(WireModel):
    """The user and rights of the caller's token."""

    user: str
    is_admin: bool
    scopes: list[Scope]
    projects: dict[str, str] = Field(default_factory=dict)  # name -> role


class ProviderSession(CallerIdentity):
    """The user who logged in, and the page to open."""

    next: str


class Alive(WireModel):
    """Liveness: the process answers. ``HealthView`` shows the health of its parts."""

    status: Literal["ok"] = "ok"
    version: str
    revision: str = Field(default="", description="The commit of this build; empty: unknown.")


class HealthView(WireModel):
    """Health of the server; ``parts``: the state of each part as a word or a sentence."""

    status: Literal["ok", "degraded"]
    version: str
    revision: str = Field(default="", description="The commit of this build; empty: unknown.")
    parts: dict[str, str] = Field(default_factory=dict)


class VertexEntryView(WireModel):
    """One entry. ``name``: Google's name, or a pattern of such names; empty for a switch.

    ``source``: stored by an administrator, from `TRAINMASTER_VERTEX`, or built in (machines of the process executor
    request nothing).
    """

    section: str
    name: str
    value: Any
    source: Literal["stored", "environment", "platform"]


class VertexTableView(WireModel):
    """``table``: the stored table. ``entries``: all effective entries, stored and built in, in the order of evaluation.

    ``generation``: 0 if no table is stored. ``warnings``: for platform admins, about valid but probably unintended
    entries.
    """

    table: dict[str, Any]
    entries: list[VertexEntryView]
    generation: int
    updated_at: datetime | None = None
    updated_by: str | None = None
    warnings: list[str] = Field(default_factory=list)


class VertexTableUpdate(WireRequest):
    """``generation``: of the table that was edited. ``table``: the whole table; the order of its names matters."""

    generation: int = Field(ge=0, le=2**31 - 2)
    table: dict[str, Finite]


class VertexMachineView(WireModel):
    """Resources of a replica on such a machine, as in a job spec. ``entries``: the entries that apply; none: built in.

    ``warnings``: requirements that no node meets.
    """

    machine_type: str
    resources: dict[str, Any]
    node_selector: dict[str, str]
    entries: list[VertexEntryView]
    warnings: list[str] = Field(default_factory=list)
