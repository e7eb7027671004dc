"""Replica specs for the executor, from rows: rendered contracts, volumes as mounts, secrets, token and limits.

:class:`AddressCache` has the addresses allocated to live attempts, where attempts share hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.spec import JobSpec, Warm

from core import tokens
from core.db.repositories.nodes import is_live
from core.db.tables import Attempt, Volume
from core.domain.contracts import mlflow, render
from core.domain.errors import ExecutorRefused, ExecutorTryAgain, TrainmasterError, Unavailable
from core.domain.jobs.layout import Layout, Ports, ReplicaAddress
from core.domain.sharing.resources import gang_of
from core.job_users import FolderOwners
from core.storage.archives import ArchiveStore
from core.storage.tree import LeavesVolume, has_lasting_inodes
from core.storage.volumes import boundaries_of, find_place, grant_prefixes, make_place, split_location, tree_of
from executors.base import ENVIRONMENTS, MountOrder, ReplicaKey, ReplicaOrder, VolumeSource
from scheduler.control.attempts.attempt_snapshot import AttemptFacts, GangMember, JobFacts
from scheduler.control.attempts.launching.environment import attempt_context
from scheduler.control.context import ControlContext

DATA_PATH = "/data/data"
OUTPUT_PATH = "/data/output"
# Folder of a project's layers, in the project's own on the default volume.
_LAYERS: Final = ".environments"
# Kinds of volumes that are no path on any node before the engine has mounted them.
_ENGINE_KINDS: Final = ("pvc", "csi")
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class OrderVolume:
    """A registered volume. ``source``: its root as the nodes see it. ``prefixes``: of its grants."""

    name: str
    root: str | None
    source: str | None
    is_read_only: bool
    kind: str = "local"
    config: Mapping[str, Any] = field(default_factory=dict)
    prefixes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class OrderContext:
    """What the orders of one attempt share. ``database_id``: of the database that has the attempt. ``inodes``: as
    :func:`check_paths` found them. ``owners``: of the folders, where projects have user ids.
    """

    job: JobFacts
    attempt: AttemptFacts
    volumes: Mapping[str, OrderVolume]
    secrets: Mapping[str, str]
    database_id: str = ""
    joins_warm: bool = False  # the gang's processes go from world to world without a restart
    inodes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    owners: FolderOwners | None = None

    @property
    def layout(self) -> Layout:
        if self.attempt.layout is None:
            raise ValueError("an attempt without addresses has no orders")
        return self.attempt.layout

    def layout_for(self, member: GangMember) -> Layout:
        """The layout with ``member`` in it. A joining replica gets an address only with its world; until then it is
        last.
        """
        layout = self.layout
        if any((r.role, r.index) == (member.role, member.index) for r in layout.replicas):
            return layout
        processes = self.job.spec.roles[member.role].process_count
        joining = ReplicaAddress(member.role, member.index, "", Ports(), member.node, member.gpus, processes)
        return Layout((*layout.replicas, joining))


def load_volumes(session: Session, jobs: Sequence[JobFacts], default_volume: str) -> list[dict[str, OrderVolume]]:
    """The volumes that each job uses, by name. ``default_volume``: has the layers of environments."""
    wanted = [_volumes_of(job) | ({default_volume} if _has_requirements(job.spec) else set()) for job in jobs]
    rows = session.scalars(select(Volume).where(Volume.name.in_(set().union(*wanted)))).all()
    prefixes = grant_prefixes(session, [row.name for row in rows])
    known = {
        row.name: OrderVolume(
            row.name,
            row.root,
            row.config.get("path") or row.root,
            row.is_read_only,
            row.kind,
            row.config,
            prefixes.get(row.name, ()),
        )
        for row in rows
    }
    return [{name: known[name] for name in names if name in known} for names in wanted]


def _volumes_of(job: JobFacts) -> set[str]:
    wanted = {job.output_volume, *(mount.volume for mount in job.spec.mounts)}
    if job.spec.input is not None:
        wanted.add(split_location(job.spec.input, field="input")[0])
    return wanted


def projects_of(job: JobFacts, default_volume: str) -> set[str]:
    """The job's project, and the first folders of its paths on the volume of the projects' own folders."""
    places = [(job.output_volume, job.output_path), *((mount.volume, mount.path) for mount in job.spec.mounts)]
    if job.spec.input is not None:
        places.append(split_location(job.spec.input, field="input"))
    return {job.project, *(path.partition("/")[0] for volume, path in places if volume == default_volume and path)}


def build_order(control: ControlContext, order_context: OrderContext, member: GangMember) -> ReplicaOrder:
    """The order of one replica; the same rows always give the same order.

    Raises:
        ExecutorRefused: a volume or the code archive is gone.
    """
    bare = world_order(control, order_context, member)
    mounts = _mounts(order_context) + _layer_mounts(control, order_context)
    code_path = _code_path(control, order_context.job.spec)
    owners = order_context.owners
    if owners is None:
        return replace(bare, code_path=code_path, mounts=mounts)
    groups = {owners.of(mount.volume.name, mount.volume.path)[1] for mount in mounts if mount.volume is not None}
    return replace(
        bare, code_path=code_path, mounts=mounts, uid=owners.uid, groups=tuple(sorted(groups - {owners.uid}))
    )


def world_order(control: ControlContext, order_context: OrderContext, member: GangMember) -> ReplicaOrder:
    """Like :func:`build_order` without code and mounts: all that can change for a running replica. Cannot be
    refused.
    """
    job, attempt, spec = order_context.job, order_context.attempt, order_context.job.spec
    role = spec.roles[member.role]
    layout = order_context.layout_for(member)
    is_joining = layout is not order_context.layout
    context = attempt_context(control, job, attempt, attempt.resume_from)
    address = layout.find(member.role, member.index)
    rendered = render(spec, layout, address, context, secrets=order_context.secrets)
    request = next(r.request for r in gang_of(spec).roles if r.role == member.role)
    return ReplicaOrder(
        key=ReplicaKey(job.id, attempt.id, member.role, member.index, member.generation),
        job_name=job.name,
        attempt_number=attempt.number,
        node=member.node,
        command=rendered.command,
        args=rendered.args,
        env=rendered.env,
        process_env=rendered.process_env,
        files=rendered.files,
        request=request,
        image=role.image or spec.image,
        project=job.project,
        database_id=order_context.database_id,
        code_digest=spec.code,
        gpus=member.gpus,
        cpu_limit_milli=role.resources.cpu_milli,
        memory_limit_bytes=role.resources.memory_bytes,
        shm_bytes=role.resources.shm_bytes,
        stop_grace=timedelta(seconds=spec.grace.stop),
        exit_grace=timedelta(seconds=spec.grace.exit),
        peers_grace=timedelta(seconds=spec.grace.peers),
        peer_hosts=tuple(dict.fromkeys(replica.host for replica in order_context.layout.replicas)),
        deadline_s=spec.max_run_time,
        # Another Python than the preloaded parents' own.
        may_start_warm=spec.warm is Warm.AUTO and spec.environment is None,
        environment={} if spec.environment is None else spec.environment.model_dump(mode="json", exclude_defaults=True),
        api_url=control.api_url,
        token=tokens.attempt_token(control.secret_key, attempt.id),
        world=None if elastic_role_of(control, spec) is None else 0 if is_joining else attempt.world,
        joins_warm=is_joining and order_context.joins_warm,
        secret_names=frozenset(spec.secrets),
        # The environment of a later world may be readable for other users.
        job_variables=frozenset((*spec.secrets, *spec.role_env(member.role), *mlflow.SECRETS)),
    )


def elastic_role_of(control: ControlContext, spec: JobSpec) -> str | None:
    """The role whose replicas may join and leave, where the executor can send new worlds to running replicas."""
    return spec.elastic_role if control.can_change_worlds else None


def check_paths(control: ControlContext, order_context: OrderContext) -> dict[tuple[str, str], int]:
    """Check again, before each start, whether the job's paths lie where its user may go.

    Since the submission another job of the same project may have put a link in the way. Blocks on the file system.

    Returns:
        The inode of each folder by (volume name, path), for drivers whose engine resolves the path again later. Not of
        folders whose file system changes its inode numbers at any time (FUSE).

    Raises:
        ExecutorRefused: a link leads out of the volume, or to another project's folder.
        ExecutorTryAgain: a volume is away.
    """
    job, spec = order_context.job, order_context.job.spec
    places = [("output", job.output_volume, job.output_path)]
    if spec.input is not None:
        places.append(("input", *split_location(spec.input, field="input")))
    places += [(f"mounts.{number}", mount.volume, mount.path) for number, mount in enumerate(spec.mounts)]
    if layers := _layer_folder(control, order_context):
        shared, path = layers
        if shared.root is not None:
            try:
                make_place(tree_of(shared), path, boundaries_of(path, (), is_shared=True), control.output_owner)
            except Unavailable as away:
                raise ExecutorTryAgain(away.sentence) from away
            except TrainmasterError as error:
                raise ExecutorRefused(f"environment: {error.sentence}") from error
        places.append(("environment", shared.name, path))
    inodes = {}
    for where, name, path in places:
        volume = order_context.volumes.get(name)
        if volume is None or volume.root is None:
            continue
        try:
            boundaries = boundaries_of(path, volume.prefixes, is_shared=name == control.default_volume)
            found = find_place(tree_of(volume), path, boundaries)
            if has_lasting_inodes(found.device):
                inodes[name, path] = found.inode
        except LeavesVolume as error:
            raise ExecutorRefused(f"{where}: {error.sentence}") from error
        except Unavailable as away:
            raise ExecutorTryAgain(away.sentence) from away
        except TrainmasterError:
            pass  # missing, or invisible from here: the engine finds out
    return inodes


def _code_path(control: ControlContext, spec: JobSpec) -> str | None:
    if spec.code is None:
        return None
    if control.archive_dir is None:
        raise ExecutorRefused("code: this scheduler has no archive folder; set TRAINMASTER_HOME to the platform's.")
    # The limit concerns uploads only; here the store only locates an archive.
    path = ArchiveStore(control.archive_dir, limit_bytes=0).path_of(spec.code)
    if not path.is_file():
        raise ExecutorRefused("code: the uploaded archive is gone; submit the job again to upload it again.")
    return str(path)


def _mounts(order_context: OrderContext) -> tuple[MountOrder, ...]:
    job, spec = order_context.job, order_context.job.spec
    mounts = []
    if spec.input is not None:
        volume, path = split_location(spec.input, field="input")
        mounts.append(_mount(order_context, volume, path, DATA_PATH, where="input", read_only=True))
    mounts.append(
        _mount(order_context, job.output_volume, job.output_path, OUTPUT_PATH, where="output", read_only=False)
    )
    for number, mount in enumerate(spec.mounts):
        mounts.append(
            _mount(
                order_context, mount.volume, mount.path, mount.at, where=f"mounts.{number}", read_only=mount.read_only
            )
        )
    return tuple(mounts)


def _has_requirements(spec: JobSpec) -> bool:
    return spec.environment is not None and bool(spec.environment.requirements)


def _layer_folder(control: ControlContext, order_context: OrderContext) -> tuple[OrderVolume, str] | None:
    """Volume and path of the project's layers for containers; ``None``: the job needs none, or the default volume
    cannot be written to, and each container builds its own.
    """
    volume = order_context.volumes.get(control.default_volume)
    if not _has_requirements(order_context.job.spec) or volume is None or volume.is_read_only:
        return None
    return volume, f"{order_context.job.project}/{_LAYERS}"


def _layer_mounts(control: ControlContext, order_context: OrderContext) -> tuple[MountOrder, ...]:
    layers = _layer_folder(control, order_context)
    if layers is None:
        return ()
    volume, path = layers
    return (_mount(order_context, volume.name, path, ENVIRONMENTS, where="environment", read_only=False),)


def _mount(
    order_context: OrderContext, name: str, path: str, target: str, *, where: str, read_only: bool
) -> MountOrder:
    volume = order_context.volumes.get(name)
    if volume is None:
        raise ExecutorRefused(f"{where}: volume {name} is not registered any more; ask an administrator to add it.")
    if volume.is_read_only and not read_only:
        raise ExecutorRefused(f"{where}: volume {name} is read-only; choose another one to write to.")
    if volume.source is None and volume.kind not in _ENGINE_KINDS:
        raise ExecutorRefused(f"{where}: volume {name} has no path that this executor could mount.")
    source = "" if volume.source is None else str(PurePosixPath(volume.source) / path)
    config = {**volume.config, "path": volume.source} if volume.kind == "local" else volume.config
    inode = order_context.inodes.get((name, path))
    owners, owner = order_context.owners, None
    if owners is not None and not read_only:
        is_projects = name == owners.shared_volume
        is_platforms = volume.root is not None and Path(volume.root).is_relative_to(owners.users.home)
        if path if is_projects else is_platforms:
            owner = owners.of(name, path)
    return MountOrder(source, target, read_only, VolumeSource(name, volume.kind, config, path), inode, owner)


Address = tuple[str, int]  # host, port


class AddressCache:
    """Reads the layout of each live attempt once: it changes only with the number of its world. Thread-safe.

    A start asks twice, and with a thousand live attempts reading all layouts again would take a tenth of a second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], frozenset[Address]] = {}  # (attempt, world) -> addresses

    def read(self, session: Session) -> set[Address]:
        """Every address of a live attempt, as of this transaction."""
        rows = select(Attempt.id, Attempt.world).where(is_live(), Attempt.layout.is_not(None))
        live = {(attempt, world) for attempt, world in session.execute(rows)}
        with self._lock:
            known = {attempt: taken for attempt, taken in self._known.items() if attempt in live}
        new = sorted(attempt for attempt, _ in live - known.keys())
        for begin in range(0, len(new), _AT_ONCE):
            chunk = new[begin : begin + _AT_ONCE]
            found = select(Attempt.id, Attempt.world, Attempt.layout).where(Attempt.id.in_(chunk))
            for attempt, world, layout in session.execute(found):
                known[attempt, world] = frozenset(addresses_of(Layout.from_json(layout or [])))
        with self._lock:
            self._known = known
        return set().union(*known.values())


def addresses_of(layout: Layout) -> set[Address]:
    """Every address of ``layout``."""
    return {
        (replica.host, port)
        for replica in layout.replicas
        for port in (replica.ports.framework, replica.ports.torch, replica.ports.dmlc, replica.ports.gloo)
    }
