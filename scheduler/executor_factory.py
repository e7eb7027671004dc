"""The driver that the settings name, and the volumes that it will refuse. The control loop itself knows only
``executors.base``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import select

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Volume
from core.domain.errors import ExecutorRefused, ExecutorTryAgain
from core.job_users import JobUsers, find_job_users
from core.settings import BadSettings, Settings
from core.worker_packages import RUNTIME, PackageMissing, demand_package
from executors.base import Executor, VolumeSource

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExecutorSetup:
    """A driver and the interval of its polling: ``None`` where polling is too expensive. ``job_users``: whose user ids
    it starts the projects' plain processes with.
    """

    executor: Executor
    watch_every: timedelta | None
    job_users: JobUsers | None = None


def make_executor(settings: Settings) -> ExecutorSetup:
    """Build the driver.

    Raises:
        BadSettings: a setting of the driver cannot be used, or plain processes have no runtime here.
    """
    match settings.executor:
        case "process":
            from executors.process import ProcessExecutor, WarmLimits

            try:
                runtime = demand_package(RUNTIME)
            except PackageMissing as missing:
                raise BadSettings(missing.sentence) from missing
            driver = ProcessExecutor(
                settings.run_dir,
                port_range=settings.process_port_range,
                runtime=runtime,
                hidden=(settings.home,),
                api_url=settings.replica_api_url or settings.api_url,
                log_limit_bytes=settings.job_log_limit_bytes,
                warm=WarmLimits(settings.warm_parents, settings.warm_parent_memory_bytes, settings.warm_idle_s),
            )
            # Polling reads one small file per replica. With inotify it only makes up for lost hints.
            users = find_job_users(settings)
            return ExecutorSetup(
                driver,
                timedelta(milliseconds=1_000 if driver.listen() else 150),
                users if isinstance(users, JobUsers) else None,
            )
        case "fake":
            from executors.fake import FakeEngine, FakeExecutor

            return ExecutorSetup(FakeExecutor(FakeEngine()), timedelta(milliseconds=150))
        case "docker":
            return _docker(settings)
        case "kubernetes":
            return _kubernetes(settings)


def _docker(settings: Settings) -> ExecutorSetup:
    from executors.docker import DockerExecutor
    from executors.docker.engine import DockerEngine
    from executors.docker.nodes import find_gpus, parse_gpus
    from executors.docker.render import ContainerSettings

    engine = DockerEngine()
    try:
        listed = parse_gpus(settings.docker_gpus)
    except ValueError as error:
        raise BadSettings(f"TRAINMASTER_DOCKER_GPUS: {error}.") from error
    rules = ContainerSettings(
        settings.instance,
        uid=settings.job_uid,
        gid=settings.job_gid,
        host_paths=tuple(filter(None, settings.host_paths.split(":"))),
        log_limit_bytes=settings.job_log_limit_bytes,
    )
    driver = DockerExecutor(
        engine,
        rules,
        runtime_image=settings.runtime_image,
        default_image=settings.default_image,
        gpus=(lambda: listed) if listed else find_gpus(engine),
    )
    # The engine pushes changes; polling costs a few milliseconds.
    return ExecutorSetup(driver, timedelta(seconds=2))


def _kubernetes(settings: Settings) -> ExecutorSetup:
    from executors.kubernetes.api_server.access import Access, ClusterUnknown
    from executors.kubernetes.api_server.client import KubernetesClient
    from executors.kubernetes.executor import KubernetesExecutor
    from executors.kubernetes.nodes import NodeRules, parse_tolerations
    from executors.kubernetes.options import KubernetesOptions
    from executors.kubernetes.policy import parse_egress

    gpu_resources = _listed(settings.gpu_resources)
    options = KubernetesOptions(
        instance=settings.instance,
        namespace=settings.kubernetes_namespace,
        runtime_image=settings.runtime_image,
        default_image=settings.default_image,
        is_per_project=settings.kubernetes_namespace_per_project,
        uid=settings.job_uid,
        gid=settings.job_gid,
        pull_secrets=_listed(settings.image_pull_secrets),
        rules=NodeRules(
            gpu_resources=gpu_resources,
            rack_labels=_listed(settings.kubernetes_rack_labels),
            tolerations=_parsed(
                "kubernetes_tolerations",
                settings.kubernetes_tolerations,
                lambda text: parse_tolerations(text, gpu_resources),
            ),
        ),
        host_paths=tuple(filter(None, settings.host_paths.split(":"))),
        log_limit_bytes=settings.job_log_limit_bytes,
        pod_security=settings.kubernetes_pod_security,
        is_isolated=settings.kubernetes_network_policy,
        egress=_parsed("kubernetes_egress", settings.kubernetes_egress, parse_egress),
    )
    access = Access(context=settings.kubernetes_context)
    try:
        access.connect()
    except ClusterUnknown as unknown:
        raise BadSettings(str(unknown)) from unknown
    except ExecutorTryAgain:
        pass  # it may be reachable when it is needed
    driver = KubernetesExecutor(
        KubernetesClient(access, qps=settings.kubernetes_qps), options, node_selector=settings.kubernetes_node_selector
    )
    # The driver pushes changes: polling its cache only makes up for lost hints.
    return ExecutorSetup(driver, timedelta(seconds=10))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(piece.strip() for piece in text.split(",") if piece.strip())


def _parsed(name: str, text: str, parse: Callable[[str], T]) -> T:
    """``parse``'s result; its error names the setting.

    Raises:
        BadSettings: the text cannot be used.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise BadSettings(f"TRAINMASTER_{name.upper()}: {error}.") from error


def refused_volumes(sessions: SessionFactory, settings: Settings) -> Sequence[str]:
    """A sentence on each local volume that the Kubernetes driver will refuse, by name; none with another executor.

    Raises:
        Unavailable: the database is away.
    """
    if settings.executor != "kubernetes":
        return ()
    from executors.kubernetes.volumes import render_volume

    host_paths = tuple(filter(None, settings.host_paths.split(":")))
    with unit_of_work(sessions, read_only=True) as session:
        rows = session.scalars(select(Volume).where(Volume.kind == "local").order_by(Volume.name)).all()
        sources = [
            VolumeSource(row.name, row.kind, {**row.config, "path": row.config.get("path") or row.root}) for row in rows
        ]
    sentences = []
    for source in sources:
        try:
            render_volume(source, name="volume", target="/volume", read_only=True, host_paths=host_paths)
        except ExecutorRefused as refused:
            sentences.append(refused.sentence)
    return sentences
