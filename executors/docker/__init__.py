"""Replicas as containers on one Docker engine."""

from executors.docker.executor import DockerExecutor

__all__ = ["DockerExecutor"]
