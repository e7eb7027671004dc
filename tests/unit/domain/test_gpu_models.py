from __future__ import annotations

import pytest

from core.domain.sharing.gpus import accepted_models, accepts, normal_model


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("NVIDIA Tesla T4", "t4"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA-A100-SXM4-80GB", "a100-sxm4-80gb"),
        (" nvidia_h100_80gb_hbm3 ", "h100-80gb-hbm3"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA", "nvidia"),
        ("", ""),
    ],
)
def test_a_model_has_one_spelling(name: str, model: str) -> None:
    assert normal_model(name) == model
    assert normal_model(model) == model


@pytest.mark.parametrize(
    ("requested", "model"),
    [
        ("A100", "a100-sxm4-80gb"),
        ("a100", "A100"),
        ("NVIDIA A100", "a100-pcie-40gb"),
        ("a100-80gb", "a100-sxm4-80gb"),
        ("A100 SXM4 80GB", "NVIDIA A100-SXM4-80GB"),
        ("H100", "h100-80gb-hbm3"),
        ("T4", "t4"),
        ("RTX_4090", "NVIDIA GeForce RTX 4090"),
        ("A6000", "rtx-a6000"),
        ("1g.5gb", "mig-1g.5gb"),
        ("1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ("mig-1g.5gb", "a100-sxm4-40gb-mig-1g-5gb"),
        ("a100-mig-1g.5gb", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
        ("A100 MIG", "a100-sxm4-40gb-mig-3g-20gb"),
    ],
)
def test_a_family_in_any_spelling_accepts_its_models(requested: str, model: str) -> None:
    assert accepts(requested, model)


@pytest.mark.parametrize(
    ("requested", "model"),
    [
        ("h100", "h1000"),
        ("a10", "a100-sxm4-80gb"),
        ("a100-80gb", "a100-pcie-40gb"),
        ("80gb-a100", "a100-sxm4-80gb"),
        ("a100-a100", "a100-sxm4-80gb"),
        ("a100-sxm4-80gb", "a100"),
        ("-", "a100"),
        ("", "a100"),
        ("a100", ""),
        ("A100", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ("a100-40gb", "a100-sxm4-40gb-mig-1g-5gb"),
        ("5gb", "mig-1g.5gb"),
        ("1g.5gb", "mig-1g.10gb"),
        ("2g.10gb", "mig-1g.10gb"),
        ("h100-mig-1g.5gb", "a100-sxm4-40gb-mig-1g-5gb"),
        ("a100-mig", "a100-sxm4-40gb"),
    ],
)
def test_parts_are_whole_and_in_order(requested: str, model: str) -> None:
    assert not accepts(requested, model)


def test_the_order_is_the_users_and_then_that_of_what_is_there() -> None:
    present = ("a100-pcie-40gb", "a100-sxm4-80gb", "h100-80gb-hbm3", "t4")
    assert accepted_models(("H100", "A100", "a100-80gb"), present) == (present[2], present[0], present[1])
    assert accepted_models(("B200",), present) == ()
