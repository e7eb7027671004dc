from __future__ import annotations

from dataclasses import replace

from core.domain.sharing.resources import ResourceRequest
from executors.base import Gpu
from executors.node_resources import with_memory_limit
from tests.orders import bare_order

GPUS = (Gpu("GPU-a", "a100", 40 * 2**30), Gpu("GPU-b", "a100", 80 * 2**30))
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def order(milli=250, gpu="GPU-a", **fields):
    return bare_order(gpus=(gpu,), request=ResourceRequest(gpu_milli=milli), **fields)


def test_a_part_has_its_share_of_the_devices_memory():
    assert with_memory_limit(order(), GPUS).env == {LIMIT: "0=10240M"}
    assert with_memory_limit(order(gpu="GPU-b"), GPUS).env == {LIMIT: "0=20480M"}


def test_the_processes_of_a_replica_divide_its_share():
    assert with_memory_limit(order(process_env=({}, {})), GPUS).env == {LIMIT: "0=5120M"}


def test_the_users_own_limit_stays():
    assert with_memory_limit(order(env={LIMIT: "0=1G"}), GPUS).env == {LIMIT: "0=1G"}


def test_whole_devices_and_those_of_unknown_memory_have_no_limit():
    whole = bare_order(gpus=("GPU-a",), request=ResourceRequest(gpu_count=1))
    assert with_memory_limit(whole, GPUS) is whole
    assert with_memory_limit(order(gpu="GPU-c"), GPUS).env == {}
    assert with_memory_limit(order(), (replace(GPUS[0], memory_bytes=0),)).env == {}
