"""The client of a Trainmaster server, blocking (:class:`Client`) and asynchronous (:class:`AsyncClient`)."""

from __future__ import annotations

from trainmaster.client.clients import AsyncClient, AsyncJob, Client, Job
from trainmaster.client.compose import RunOptions
from trainmaster.client.flows.streams import StateNotice
from trainmaster.client.steps import RetryPolicy

__all__ = ["AsyncClient", "AsyncJob", "Client", "Job", "RetryPolicy", "RunOptions", "StateNotice"]
