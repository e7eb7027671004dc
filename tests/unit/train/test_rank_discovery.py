from __future__ import annotations

import json

import pytest
from trainmaster_train.context import ContextError
from trainmaster_train.distributed import RankAssignment, discover_ranks

TORCH = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MASTER = {"MASTER_ADDR": "head", "MASTER_PORT": "1234"}
UAI = {**MASTER, "RANK": "1", "WORKER_NUM": "2", "WORKER_GPU_NUM": "4"}
HOROVOD = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "head",
}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def tf_config(kind: str, index: int, **cluster: list[str]) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


CASES = [
    ({}, RankAssignment()),
    ({**TORCH, **MASTER}, RankAssignment(3, 4, 1, 2, ("head", 1234), "torch")),
    ({**TORCH, **MASTER, "TORCHELASTIC_RUN_ID": "x"}, RankAssignment(3, 4, 1, 2, ("head", 1234), "torchrun")),
    ({**TORCH, "MASTER_ADDR": "head"}, RankAssignment(3, 4, 1, 2, ("head", 29500), "torch")),
    (UAI, RankAssignment(1, 2, 0, 1, ("head", 1234), "UAI Train")),
    (HOROVOD, RankAssignment(1, 2, 0, 1, ("head", 29500), "Horovod")),
    ({**HOROVOD, **MASTER}, RankAssignment(1, 2, 0, 1, ("head", 1234), "Horovod")),
    (
        {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "TRAINMASTER_HOSTS": "one:1,two:1"},
        RankAssignment(1, 2, 1, 1, ("one", 29500), "Open MPI"),
    ),
    ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, RankAssignment(1, 2, 1, 2, ("127.0.0.1", 29500), "Open MPI")),
    ({**PMI, **MASTER}, RankAssignment(1, 2, 1, 2, ("head", 1234), "MPICH")),
    (
        {"TF_CONFIG": tf_config("worker", 1, chief=["c:2222"], worker=["a:1", "b:2"], ps=["p:3"])},
        RankAssignment(2, 3, address=("c", 2222), contract="TF_CONFIG"),
    ),
    (
        {"TF_CONFIG": tf_config("worker", 0, worker=["[::1]:77"])},
        RankAssignment(0, 1, address=("::1", 77), contract="TF_CONFIG"),
    ),
    (
        {"CLUSTER_SPEC": tf_config("workerpool1", 0, workerpool0=["c:2222"], workerpool1=["a:1"], workerpool2=["p:1"])},
        RankAssignment(1, 2, address=("c", 2222), contract="CLUSTER_SPEC"),
    ),
    # The platform sets them all at once: torch's own come first.
    ({**TORCH, **MASTER, **HOROVOD, **MPI}, RankAssignment(3, 4, 1, 2, ("head", 1234), "torch")),
]


@pytest.mark.parametrize(("environ", "place"), CASES)
def test_a_place_is_read_from_whichever_contract_is_there(environ: dict[str, str], place: RankAssignment) -> None:
    assert discover_ranks(environ) == place


def test_in_uai_mode_the_rank_is_the_nodes_and_a_script_that_starts_its_processes_counts_them() -> None:
    assert discover_ranks(UAI, local_rank=2) == RankAssignment(6, 8, 2, 4, ("head", 1234), "UAI Train")


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({**TORCH, **MASTER, "RANK": "x"}, "RANK: 'x' is not a whole number"),
        ({**TORCH, **MASTER, "RANK": "4"}, "rank 4 of 4 processes is impossible"),
        (MPI, "MASTER_ADDR: Open MPI sets the ranks, but not the address of rank 0"),
        (
            {"TF_CONFIG": tf_config("ps", 0, worker=["a:1"], ps=["p:3"])},
            "TF_CONFIG: a ps does not train with the others",
        ),
        ({"TF_CONFIG": "{"}, "TF_CONFIG: must be a JSON object"),
        ({"TF_CONFIG": tf_config("worker", 0, worker=["nowhere"])}, "TF_CONFIG: must map each role"),
    ],
)
def test_a_contradiction_is_one_sentence(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ContextError, match=sentence):
        discover_ranks(environ)
