"""All settings, from the environment (``TRAINMASTER_*``)."""

from __future__ import annotations

import os
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

# Folders of the first volumes under home, unless ``first_volumes`` is set.
FIRST_FOLDERS: Final = ("output", "data")
_JOB_ID: Final = 1000  # the first user's id on most systems


class Settings(BaseSettings):
    """One instance per process; tests make their own."""

    model_config = SettingsConfigDict(env_prefix="TRAINMASTER_", extra="ignore", frozen=True)

    home: Path = Field(default=Path.home() / ".trainmaster", description="Data folder of the embedded mode.")
    database_url: str = Field(default="", description="SQLAlchemy URL; empty: SQLite under home.")
    broker_url: str = Field(default="", description="Celery broker; empty: embedded, inside the scheduler process.")
    executor: Literal["process", "docker", "kubernetes", "fake"] = "process"
    test_fake_executor: bool = Field(
        default=False,
        description="Allows executor=fake, which only simulates running jobs. For tests of the platform itself.",
    )
    secret_key: SecretStr = Field(default=SecretStr(""), description="Signs attempt tokens; empty: a file under home.")
    api_url: str = Field(default="http://127.0.0.1:8765", description="Where replicas and users reach the API.")
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    listen_fds: str = Field(
        default="",
        pattern=r"^([0-9]+(,[0-9]+)*)?$",
        description="Open listening sockets to serve on, from the supervisor, separated by commas.",
    )
    tick_interval_s: float = Field(default=1.0, gt=0, description="Beat triggers the tick at least this often.")
    reconcile_interval_s: float = Field(default=1.0, gt=0)
    node_grace_s: float = Field(
        default=60.0, ge=0, description="How long a node may be gone before its replicas count as lost."
    )
    lease_ttl_s: float = Field(default=15.0, gt=0)
    archive_limit_bytes: int = Field(default=512 * 2**20, gt=0, description="Largest code archive.")
    model_limit_bytes: int = Field(
        default=2**40, gt=0, description="Largest version of a model that may be registered: all of its files."
    )
    object_limit_bytes: int = Field(
        default=2**40, gt=0, description="Largest object that may be uploaded to a bucket, by Cloud Storage's clients."
    )
    default_volume: str = Field(default="output", description="Volume of jobs that name no output.")
    first_volumes: str = Field(
        default="",
        description="Volumes of a new installation, as a JSON list of {name, kind, root, config}; empty: output and "
        "data, folders under home.",
    )
    process_port_range: str = Field(default="20000-29999", description="Ports for gangs in process mode.")
    job_uids: str = Field(
        default="200000-265535",
        pattern=r"^(off|[1-9][0-9]{3,9}-[1-9][0-9]{3,9})$",
        description="User ids of plain processes where the platform runs as root: one for each project. Not to be "
        "changed later, as the projects' files belong to them. off: they run as root, and one user is served.",
    )
    shared_trust: bool = Field(
        default=False,
        description="Allows several users where their plain processes cannot run as users of their own: each can read "
        "and end the others' jobs, and read the platform's data.",
    )
    warm_parents: int = Field(
        default=2,
        ge=0,
        description="Idle Pythons with an imported framework, to start plain processes from, at most; 0: none.",
    )
    warm_parent_memory_bytes: int = Field(
        default=2 * 2**30, gt=0, description="An idle Python that takes more memory than this ends at once."
    )
    warm_idle_s: float = Field(default=1800.0, gt=0, description="An idle Python ends after so long without a start.")
    database_pool_size: int = Field(default=10, ge=1)
    requests_per_s: float = Field(
        default=500.0,
        gt=0,
        description="Requests a second that one token may send to each API process, on average; five seconds' worth at "
        "once.",
    )
    streams_per_user: int = Field(
        default=200, ge=1, description="Streams of logs, events and metrics that one user may have open at once."
    )
    connections_per_address: int = Field(
        default=2000, ge=1, description="Connections that one address may have open to each API process at once."
    )
    currency: str = Field(
        default="USD", pattern=r"^[A-Z]{3}$", description="Of prices and budgets (ISO 4217), for display alone."
    )
    drain_s: float = Field(
        default=3.0,
        ge=0,
        description="After SIGTERM the API first reports that it is not ready, and serves on for so long.",
    )
    shutdown_grace_s: float = Field(
        default=20.0, gt=0, description="Then it takes no more requests, and finishes the open ones within this time."
    )
    probe_port: int = Field(
        default=0, ge=0, le=65535, description="Scheduler and beat answer /live, /ready and /metrics here; 0: nowhere."
    )
    probe_host: str = Field(default="127.0.0.1", description="The address for it; in a container 0.0.0.0.")
    event_retention_days: float = Field(
        default=90.0, ge=0, description="Events of deleted jobs are kept for so long after the job's end."
    )
    audit_retention_days: float = Field(
        default=0.0, ge=0, description="Entries of the audit log are deleted after so long; 0: they are kept."
    )
    plan_record_days: float = Field(default=7.0, ge=0, description="Plan records are stored for so long, for replay.")
    plan_record_bytes: int = Field(
        default=512 * 2**20,
        ge=0,
        description="Size limit of plan records in the database; the oldest are deleted first.",
    )
    disk_warning_percent: float = Field(
        default=90.0,
        gt=3,
        le=100,
        description="From this use of a disk of the data folder or a volume on, health and events warn.",
    )
    job_log_limit_bytes: int = Field(
        default=2 * 2**30,
        ge=0,
        description="Size limit of one replica's log: its beginning and its newest lines are kept; 0: no limit.",
    )
    metrics_token: SecretStr = Field(
        default=SecretStr(""),
        description="With this bearer token, of 16 or more characters, Prometheus may scrape /metrics and nothing "
        "else; empty: only with a platform admin's token.",
    )
    tensorboard_limit: int = Field(
        default=4, ge=1, description="TensorBoards that one API process runs at once, each for one set of jobs."
    )
    tensorboard_memory_bytes: int = Field(
        default=2**29, ge=2**28, description="Memory that one TensorBoard may take; what does not fit is not shown."
    )
    tensorboard_idle_s: float = Field(
        default=900.0,
        gt=0,
        description="An unused TensorBoard ends after so long; the next request starts it.",
    )
    serving_image: str = Field(
        default="trainmaster/serving:cpu",
        description="Brings the platform's own server of models, for endpoints and batch predictions without an image.",
    )
    tensorflow_serving_image: str = Field(
        default="",
        description="The same for models of TensorFlow. Empty: serving_image where that is stated, else "
        "trainmaster/serving:tensorflow.",
    )
    predict_limit_bytes: int = Field(default=32 * 2**20, gt=0, description="Largest body of a request to an endpoint.")
    predict_open_limit: int = Field(
        default=1000,
        ge=2,
        description="Requests to endpoints that one API process has open at once, at most; an endpoint gets no more "
        "than are free besides.",
    )
    predict_unread_s: float = Field(
        default=60.0,
        gt=0,
        description="A model's response is cut off if the client reads none of it for so long: it takes the room of "
        "other requests.",
    )
    region: str = Field(default="local", description="Value of CLOUD_ML_REGION in jobs.")
    vertex: str = Field(
        default="",
        description="What Vertex AI's machine types, accelerators, images and locations are here, as a JSON object, "
        "laid over the built-in one, and below the one that administrators store while the platform runs (`trainmaster "
        "vertex-table`): docs/howto/vertex.md.",
    )
    vertex_open_staging: Literal["loopback", "anywhere", "never"] = Field(
        default="never",
        description="From where Vertex AI's SDK may stage new packages on registered volumes without a token, as it "
        "does in CustomJob.from_local_script with STORAGE_EMULATOR_HOST: from this machine, which its jobs share; from "
        "anywhere; or never. Never through a proxy.",
    )
    outbound_networks: str = Field(
        default="",
        description="Networks that webhooks and notifications may be sent to besides public addresses, such as "
        "10.1.0.0/16, separated by commas. Whoever is admin of a project can then send requests to services there.",
    )
    webhook_retention_days: float = Field(
        default=14.0,
        ge=0,
        description="Finished messages of webhooks and notifications are listed for so long.",
    )
    oidc_providers: SecretStr = Field(
        default=SecretStr(""),
        description="OpenID Connect providers by which users may log in: a JSON list, or the path of a file with it; "
        "docs/deploy.md. Empty: only tokens and login links.",
    )
    log_level: str = "INFO"

    # Container engines
    instance: str = Field(
        default="trainmaster",
        pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$",
        description="Marks everything this platform makes on an engine; platforms that share one need different names.",
    )
    replica_api_url: str = Field(default="", description="Where replicas reach the API; empty: api_url.")
    default_image: str = Field(default="", description="Image of jobs that name none; empty: such jobs are refused.")
    runtime_image: str = Field(
        default="trainmaster/runtime:latest", description="Brings the runtime into the containers of jobs."
    )
    job_uid: int = Field(
        default_factory=lambda: os.geteuid() or _JOB_ID,
        ge=0,
        description="User id of containers; 0: what the image says. Default: the platform's own, 1000 where that is "
        "root.",
    )
    job_gid: int = Field(default_factory=lambda: os.getegid() if os.geteuid() else _JOB_ID, ge=0)
    docker_gpus: str = Field(
        default="",
        description="GPUs of a Docker engine on another machine: <UUID or index>=<model>:<GiB>, separated by commas.",
    )
    host_paths: str = Field(
        default="",
        description="Folders of the nodes that volumes of kind local may lie under, separated by colons; / is all of "
        "them. Empty: none on Kubernetes, any on a Docker engine.",
    )
    kubernetes_context: str = Field(default="", description="Context of the kubeconfig; empty: its current one.")
    kubernetes_namespace: str = Field(default="trainmaster-jobs", description="Where jobs run.")
    kubernetes_namespace_per_project: bool = Field(
        default=False, description="Each project in a namespace of its own: <kubernetes_namespace>-<project>."
    )
    kubernetes_node_selector: str = Field(
        default="", description="Label selector of the nodes that jobs may use, such as pool=training; empty: all."
    )
    kubernetes_tolerations: str = Field(
        default="",
        description="Taints that jobs tolerate: key, key=value or key=value:NoSchedule, separated by commas. "
        "Those named like a GPU resource always are.",
    )
    kubernetes_rack_labels: str = Field(
        default="topology.kubernetes.io/rack,network.topology.nvidia.com/leaf,"
        "topology.k8s.aws/network-node-layer-3,cloud.google.com/gce-topology-subblock",
        description="Labels that may name a node's rack, the best first, separated by commas.",
    )
    kubernetes_pod_security: Literal["auto", "restricted", "baseline", "privileged", ""] = Field(
        default="auto",
        description="Pod security level of namespaces that the platform makes; auto: the strictest that lets their "
        "jobs run; empty: the cluster's default.",
    )
    kubernetes_network_policy: bool = Field(
        default=True, description="Each gang reaches only itself, DNS and the API, and is reached by no other pod."
    )
    kubernetes_egress: str = Field(
        default="",
        description="What else jobs may connect to: 10.0.0.0/8, 192.0.2.7:5432, :443 (anywhere), separated by commas.",
    )
    kubernetes_qps: float = Field(default=50.0, gt=0, description="Requests per second to the API server at most.")
    image_pull_secrets: str = Field(default="", description="Names of Secrets for pulling images, separated by commas.")
    gpu_resources: str = Field(
        default="nvidia.com/gpu,amd.com/gpu,gpu.intel.com/xe,google.com/tpu",
        description="Extended resources that count as GPUs, separated by commas.",
    )

    @field_validator("process_port_range")
    @classmethod
    def _port_range(cls, value: str) -> str:
        first, _, last = value.partition("-")
        if not (first.isdigit() and last.isdigit() and 1024 <= int(first) <= int(last) <= 65535):
            raise ValueError("write two ports between 1024 and 65535, like 20000-29999")
        return value

    @field_validator("job_uids")
    @classmethod
    def _uid_range(cls, value: str) -> str:
        first, _, last = value.partition("-")
        if value != "off" and not 1000 < int(first) < int(last) < 2**31:
            raise ValueError("write the first and the last user id, like 200000-265535")
        return value

    @model_validator(mode="after")
    def _no_fake_by_accident(self) -> Self:
        if self.executor == "fake" and not self.test_fake_executor:
            raise ValueError(
                "TRAINMASTER_EXECUTOR=fake runs no job, it only simulates that jobs run; choose process, docker or "
                "kubernetes (tests of the platform set TRAINMASTER_TEST_FAKE_EXECUTOR=1)"
            )
        return self

    @field_validator("outbound_networks")
    @classmethod
    def _networks(cls, value: str) -> str:
        for text in filter(None, map(str.strip, value.split(","))):
            try:
                ip_network(text)
            except ValueError as error:
                raise ValueError(f"{error}; write networks like 10.1.0.0/16, separated by commas") from error
        return value

    @field_validator("metrics_token")
    @classmethod
    def _metrics_token(cls, value: SecretStr) -> SecretStr:
        if 0 < len(value.get_secret_value()) < 16:
            raise ValueError("write 16 or more random characters")
        return value

    @field_validator("log_level")
    @classmethod
    def _log_level(cls, value: str) -> str:
        if value.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
            raise ValueError("write DEBUG, INFO, WARNING, ERROR or CRITICAL")
        return value.upper()

    @property
    def serving_image_for_tensorflow(self) -> str:
        if self.tensorflow_serving_image:
            return self.tensorflow_serving_image
        # An explicitly set image may support all frameworks.
        return self.serving_image if "serving_image" in self.model_fields_set else "trainmaster/serving:tensorflow"

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'trainmaster.sqlite3'}"

    @property
    def is_embedded_broker(self) -> bool:
        return not self.broker_url

    @property
    def folder_owner(self) -> tuple[int, int] | None:
        """The owner of folders that jobs write to: containers run as a user of their own, and only root may chown."""
        if self.executor not in ("docker", "kubernetes") or not self.job_uid or os.geteuid() != 0:
            return None
        return (self.job_uid, self.job_gid)

    @property
    def run_dir(self) -> Path:
        """Sockets, pid files and the process executor's records; must survive a restart of the platform."""
        return self.home / "run"

    @property
    def archive_dir(self) -> Path:
        return self.home / "archives"


class BadSettings(Exception):
    """An invalid environment setting; the text names the variable and says what would be valid."""


def read_settings() -> Settings:
    """The current settings from the environment.

    Raises:
        BadSettings: with one sentence for all mistakes.
    """
    try:
        return Settings()
    except ValidationError as error:
        mistakes = [
            # Errors about several settings name them themselves; the whole input would show secrets.
            (
                f"TRAINMASTER_{'_'.join(map(str, mistake['loc'])).upper()}={mistake['input']!s}: "
                if mistake["loc"]
                else ""
            )
            + mistake["msg"].removeprefix("Value error, ")
            for mistake in error.errors(include_url=False)
        ]
        raise BadSettings(f"The environment has a setting that cannot be used: {'; '.join(mistakes)}.") from error


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """``read_settings``, cached."""
    return read_settings()
