"""What a training does with a part of a GPU. No GPU is here: what torch is asked for is what is looked at."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from trainmaster_train.context import ContextError  # noqa: E402 - after torch is known to be there
from trainmaster_train.distributed import group  # noqa: E402


@pytest.fixture
def requested(monkeypatch):
    """Shares of memory that torch was asked to keep to, on a machine with two devices."""
    shares: list[tuple[float, str]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append((share, str(device)))
    )
    return shares


@pytest.mark.parametrize(("results", "processes", "share"), [("0.5", 1, 0.5), ("0.5", 2, 0.25), ("", 1, None)])
def test_the_processes_of_a_replica_divide_its_part(monkeypatch, results, processes, share):
    monkeypatch.setenv("TRAINMASTER_GPU_FRACTION", results)
    assert group._gpu_share(processes) == share


def test_a_part_limits_the_memory_on_the_own_device(requested):
    group._bind(1, 0.25)
    assert requested == [(0.25, "cuda:1")]


def test_whole_gpus_have_no_limit(requested):
    group._bind(0, None)
    assert requested == []


@pytest.mark.parametrize("results", ["half", "0", "-1", "2", "nan"])
def test_an_invalid_share_is_an_error(monkeypatch, results):
    monkeypatch.setenv("TRAINMASTER_GPU_FRACTION", results)
    with pytest.raises(ContextError, match="TRAINMASTER_GPU_FRACTION"):
        group._gpu_share(1)
