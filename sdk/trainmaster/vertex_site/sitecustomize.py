"""Configures Google's SDK for Vertex AI for Trainmaster by environment variables; the SDK itself has none for that.

Import hooks change the defaults of ``google.auth`` and of the SDK when a program imports them; nothing else is
imported. Explicit settings such as ``aiplatform.init(api_endpoint=…)`` still win. The SDK's links to Google's console
(`View Custom Job:`) become links to the web interface.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_URL = os.environ.get("TRAINMASTER_API_URL", "")
_BRIDGE = os.environ.get("TRAINMASTER_VERTEX_GRPC", "")
_TOKEN = os.environ.get("TRAINMASTER_TOKEN", "")


def _settings_of_the_sdk(module: ModuleType) -> None:
    config: Any = module.global_config
    config._api_endpoint = _BRIDGE or _URL
    config._api_transport = "grpc" if _BRIDGE else "rest"
    config._credentials = _credentials()
    config._staging_bucket = os.environ.get("TRAINMASTER_VERTEX_STAGING") or None
    # Otherwise the SDK would look up the project at Google for a minute before using the environment.
    config._project = os.environ.get("GOOGLE_CLOUD_PROJECT") or None
    config._location = os.environ.get("GOOGLE_CLOUD_REGION") or None
    if _BRIDGE:
        config.init = _init_over_grpc(config.init)


def _init_over_grpc(init: Callable[..., None]) -> Callable[..., None]:
    """``aiplatform.init`` switches to REST if a script names no project, but the bridge only supports gRPC."""

    @functools.wraps(init)
    def wrapped(**arguments: Any) -> None:
        if arguments.get("api_transport") == "rest":
            arguments = {"api_endpoint": _URL, **arguments}
        elif not arguments.get("api_key"):
            arguments["api_transport"] = arguments.get("api_transport") or "grpc"
        init(**arguments)

    return wrapped


def _default_credentials(module: ModuleType) -> None:
    """Default credentials for clients that the SDK creates without those of ``aiplatform.init``."""

    def default(*_: Any, **__: Any) -> tuple[Any, str | None]:
        return _credentials(), os.environ.get("GOOGLE_CLOUD_PROJECT")

    module.default = default  # type: ignore[attr-defined]


def _credentials() -> Any:
    return importlib.import_module("google.oauth2.credentials").Credentials(token=_TOKEN)


# By the collection in a resource name. A training pipeline and its custom job have the same page.
_PAGES = {
    "customJobs": "jobs/{}",
    "trainingPipelines": "jobs/{}",
    "hyperparameterTuningJobs": "studies/{}",
    "batchPredictionJobs": "batch-predictions",
}


def _page_of(name: str, otherwise: Callable[[], str | None]) -> str | None:
    """The page of the resource ``name``."""
    *_, collection, own = ["", *name.split("/")]
    page = _PAGES.get(collection)
    return f"{_URL}/{page.format(own)}" if page is not None else otherwise()


def _links_of(kind: str) -> Callable[[ModuleType], None]:
    """``kind``: the base class of a module's jobs, which builds their links."""

    def after(module: ModuleType) -> None:
        target: Any = getattr(module, kind, None)
        original = getattr(target, "_dashboard_uri", None)
        if original is not None:
            target._dashboard_uri = lambda job: _page_of(job.resource_name, lambda: original(job))

    return after


def _links_of_jobs_behind(module: ModuleType) -> None:
    google = getattr(module, "custom_job_console_uri", None)
    if google is not None:
        module.custom_job_console_uri = lambda name: _page_of(name, lambda: google(name))  # type: ignore[attr-defined]


_AFTER: dict[str, Callable[[ModuleType], None]] = {
    "google.auth": _default_credentials,
    "google.cloud.aiplatform.initializer": _settings_of_the_sdk,
    "google.cloud.aiplatform.jobs": _links_of("_Job"),
    "google.cloud.aiplatform.training_jobs": _links_of("_TrainingJob"),
    "google.cloud.aiplatform.utils.console_utils": _links_of_jobs_behind,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Adds a post-import hook to the modules in ``_AFTER``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        after = _AFTER.get(fullname)
        spec = None if after is None else PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or after is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            after(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _next_sitecustomize() -> None:
    """Run the ``sitecustomize`` that this one shadows; Python imports only the first."""
    here = os.path.dirname(os.path.abspath(__file__))
    other_paths = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", other_paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if _URL and _TOKEN:
    sys.meta_path.insert(0, _Finder())
_next_sitecustomize()
