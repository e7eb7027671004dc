from __future__ import annotations

from types import SimpleNamespace

import pytest

from executors.process import machine


class NoDriver(Exception):
    pass


def nvml(devices, *, fails=False):
    """The part of pynvml that is used, over a list of ``(name, memory)`` or ``None`` for a broken one."""

    def init():
        if fails:
            raise NoDriver

    def handle(index):
        if devices[index] is None:
            raise NoDriver
        return index

    return SimpleNamespace(
        NVMLError=NoDriver,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(devices),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetName=lambda index: devices[index][0],
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(total=devices[index][1]),
    )


def test_gpus_are_found_with_their_model_and_memory():
    found = machine.find_gpus(nvml([("NVIDIA A100-SXM4-80GB", 85_899_345_920), (b"Tesla T4", 16_000_000_000)]))
    assert [(gpu.id, gpu.model) for gpu in found] == [("GPU-0", "a100-sxm4-80gb"), ("GPU-1", "t4")]
    assert [gpu.formerly for gpu in found] == [("0",), ("1",)]
    assert found[0].memory_bytes == 85_899_345_920


def test_a_broken_device_is_left_out_and_the_others_keep_their_numbers():
    found = machine.find_gpus(nvml([None, ("NVIDIA H200", 1)]))
    assert [gpu.id for gpu in found] == ["GPU-1"]


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        ("1", ["GPU-1"]),
        ("GPU-0", ["GPU-0"]),
        ("0,1", ["GPU-0", "GPU-1"]),
        ("", []),
        (None, ["GPU-0", "GPU-1"]),
    ],
)
def test_devices_that_the_platform_may_not_see_are_not_given_out(visible, ids):
    found = machine.find_gpus(nvml([("NVIDIA H200", 1), ("NVIDIA H200", 1)]), visible=visible)
    assert [gpu.id for gpu in found] == ids


def sliced(profiles, *, is_sliced=True):
    """A machine with one A100 that is sliced into ``profiles``, of seven that could be, and one that is whole."""
    fake = nvml([("NVIDIA A100-SXM4-40GB", 40 * 2**30), ("NVIDIA A100-SXM4-40GB", 40 * 2**30)])
    whole_name, whole_uuid, whole_memory = fake.nvmlDeviceGetName, fake.nvmlDeviceGetUUID, fake.nvmlDeviceGetMemoryInfo

    def slice_of(_, number):
        if number >= len(profiles):
            raise NoDriver
        return ("mig", number)

    def either(of_whole, of_slice):
        return lambda handle: of_slice(handle[1]) if isinstance(handle, tuple) else of_whole(handle)

    fake.nvmlDeviceGetMigMode = lambda index: (int(is_sliced and index == 0), 0)
    fake.nvmlDeviceGetMaxMigDeviceCount = lambda _: 7
    fake.nvmlDeviceGetMigDeviceHandleByIndex = slice_of
    fake.nvmlDeviceGetName = either(whole_name, lambda number: f"NVIDIA A100-SXM4-40GB MIG {profiles[number]}")
    fake.nvmlDeviceGetUUID = either(whole_uuid, lambda number: f"MIG-{number}")
    fake.nvmlDeviceGetMemoryInfo = either(whole_memory, lambda _: SimpleNamespace(total=5 * 2**30))
    return fake


def test_slices_are_devices_of_a_model_named_by_their_profile_and_their_device_is_none():
    found = machine.find_gpus(sliced(["1g.5gb", "1g.5gb", "3g.20gb"]))
    assert [(gpu.id, gpu.model) for gpu in found] == [
        ("MIG-0", "a100-sxm4-40gb-mig-1g-5gb"),
        ("MIG-1", "a100-sxm4-40gb-mig-1g-5gb"),
        ("MIG-2", "a100-sxm4-40gb-mig-3g-20gb"),
        ("GPU-1", "a100-sxm4-40gb"),
    ]
    assert found[0].memory_bytes == 5 * 2**30
    assert dict(machine.describe_machine(found).allocatable.gpus) == {
        "a100-sxm4-40gb-mig-1g-5gb": 2,
        "a100-sxm4-40gb-mig-3g-20gb": 1,
        "a100-sxm4-40gb": 1,
    }


def test_a_device_that_could_be_sliced_and_is_not_is_whole():
    assert [gpu.id for gpu in machine.find_gpus(sliced([], is_sliced=False))] == ["GPU-0", "GPU-1"]


def test_a_sliced_device_without_slices_is_no_gpu():
    assert [gpu.id for gpu in machine.find_gpus(sliced([]))] == ["GPU-1"]


@pytest.mark.parametrize(("visible", "ids"), [("0", ["MIG-0", "MIG-1"]), ("MIG-1", ["MIG-1"]), ("1", ["GPU-1"])])
def test_the_platform_may_be_limited_to_single_slices(visible, ids):
    found = machine.find_gpus(sliced(["1g.5gb", "1g.5gb"]), visible=visible)
    assert [gpu.id for gpu in found] == ids


def test_no_driver_means_no_gpus():
    assert machine.find_gpus(nvml([], fails=True)) == ()


def test_the_node_counts_its_gpus_by_model():
    node = machine.describe_machine(machine.find_gpus(nvml([("NVIDIA H200", 1), ("NVIDIA H200", 1)])))
    assert dict(node.allocatable.gpus) == {"h200": 2}
    assert node.is_ready
    assert 0 < node.allocatable.memory_bytes < machine.memory_bytes()


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """The folders of this process's control groups, of either version."""
    monkeypatch.setattr(machine, "CGROUP_ROOT", tmp_path)
    folders = [tmp_path, *(tmp_path / name for name in ("unified", "cpu", "cpu,cpuacct", "memory"))]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return folders


def test_a_quota_of_the_own_group_is_the_number_of_cpus(groups):
    for group in groups:
        (group / "cpu.max").write_text("150000 100000")
    assert machine.cpu_milli() <= 1500


def test_a_limit_of_the_own_group_is_the_memory(groups):
    for group in groups:
        (group / "memory.max").write_text("1048576\n")
    assert machine.memory_bytes() == 1048576


def test_the_hosts_name_becomes_a_label(monkeypatch):
    monkeypatch.setattr(machine.socket, "gethostname", lambda: "My_Host.example.com")
    assert machine.node_name() == "my-host-example-com"
