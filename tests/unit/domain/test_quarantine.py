"""Which nodes take no new work since jobs end there for reasons of the machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.domain.jobs import machine_faults
from core.domain.jobs.exits import ExitCause, ExitFacts, ExitKind, classify
from core.domain.sharing.policy import Policy
from core.domain.sharing.quarantine import NodeCandidate, NodeFailureFact, decide_quarantines, describe_causes

NOW = datetime(2026, 11, 22, 14, 0, tzinfo=UTC)
FOUR = tuple(NodeCandidate(f"n{number}") for number in range(4))


def failed(
    node: str, job: str, minutes_ago: float = 1, *, certain: bool = False, loss: bool = False
) -> NodeFailureFact:
    error = "uncorrectable ECC error" if certain else "input/output error"
    return NodeFailureFact(node, job, job, NOW - timedelta(minutes=minutes_ago), error, certain, loss)


def decide(failures, nodes=FOUR, successes=(), **settings):
    return decide_quarantines(nodes, failures, dict(successes), Policy(**settings), NOW)


def test_one_certain_fault_is_enough() -> None:
    made = decide([failed("n0", "a", certain=True)])
    (one,) = made.quarantines.items()
    assert one[0] == "n0"
    assert one[1].until == NOW + timedelta(hours=4)
    assert describe_causes(one[1].causes) == "uncorrectable ECC error in job a"
    assert describe_causes(one[1].causes, hidden={"a"}) == "uncorrectable ECC error in a job of another project"


def test_suspicious_ends_count_by_different_jobs_within_the_window() -> None:
    two = [failed("n0", "a", 30), failed("n0", "b", 20)]
    assert not decide(two).quarantines
    assert not decide([*two, failed("n0", "b", 5)]).quarantines
    assert not decide([*two, failed("n0", "c", 61)]).quarantines
    assert not decide([*two, failed("n1", "c", 5)]).quarantines
    assert set(decide([*two, failed("n0", "c", 5)]).quarantines) == {"n0"}
    assert set(decide(two, quarantine_failures=2).quarantines) == {"n0"}


def test_the_newest_causes_are_retained_and_never_fewer_than_the_policy_asks_for() -> None:
    many = [failed("n0", f"job-{ago}", ago) for ago in range(59, 0, -1)]
    assert decide(many).quarantines["n0"].causes == tuple(many[-20:])
    assert decide(many, quarantine_failures=30).quarantines["n0"].causes == tuple(many[-30:])


def test_a_success_between_them_takes_back_what_was_only_suspected() -> None:
    three = [failed("n0", "a", 30), failed("n0", "b", 20), failed("n0", "c", 5)]
    success = {"n0": NOW - timedelta(minutes=10)}
    assert not decide(three, successes=success).quarantines
    assert set(decide([failed("n0", "a", 30, certain=True)], successes=success).quarantines) == {"n0"}


def test_a_job_that_fails_on_two_nodes_counts_for_none() -> None:
    both = [failed("n0", "a", 5, certain=True), failed("n1", "a", 1, certain=True)]
    assert not decide(both).quarantines
    assert set(decide([both[0], replace(both[1], job_id="b")]).quarantines) == {"n0"}  # the other only for its share


def test_only_the_same_certain_fault_elsewhere_takes_back_a_certain_one() -> None:
    ecc = failed("n0", "a", 5, certain=True)
    xid = replace(failed("n1", "a", certain=True), error="Xid 79, the GPU has fallen off the bus")
    refusal = replace(failed("n1", "a"), error=machine_faults.REFUSED.error)
    nodes = (NodeCandidate("n0", is_quarantined=True, causes=(ecc,), until=NOW + timedelta(hours=1)), *FOUR[1:])
    for other in (failed("n1", "a"), failed("n1", "a", loss=True), refusal, xid):
        assert set(decide([ecc, other]).quarantines) == {"n0"}
        assert not decide([ecc, other], nodes).releases


def test_a_loss_or_a_refusal_elsewhere_takes_back_only_its_like() -> None:
    words = [failed("n0", job, 5) for job in "abc"]
    losses = [failed("n0", job, ago, loss=True) for job, ago in zip("abc", (50, 30, 10), strict=True)]
    refusals = [replace(one, error=machine_faults.REFUSED.error) for one in words]
    for kind in (words, losses, refusals):
        for like in (words, losses, refusals):
            other = replace(like[0], node="n1")
            assert set(decide([*kind, other]).quarantines) == (set() if kind is like else {"n0"})


def test_a_quarantine_that_turns_out_to_be_the_jobs_fault_is_lifted() -> None:
    cause = failed("n0", "a", 5, certain=True)
    nodes = (NodeCandidate("n0", is_quarantined=True, causes=(cause,), until=NOW + timedelta(hours=1)), *FOUR[1:])
    assert not decide([cause], nodes).releases
    made = decide([cause, failed("n1", "a", certain=True)], nodes)
    assert made.releases == {"n0": "job a failed so on n1, too, so it is not this node's fault"}
    assert made.refuted == {"n0"}
    assert not made.quarantines


def test_a_setting_that_grows_releases_nothing_and_what_is_refuted_then_does() -> None:
    causes = tuple(failed("n0", job, 5) for job in "abc")
    nodes = (NodeCandidate("n0", is_quarantined=True, causes=causes, until=NOW + timedelta(hours=1)), *FOUR[1:])
    made = decide(causes, nodes, quarantine_failures=5)
    assert not made.releases
    assert not made.refuted
    assert set(decide([*causes, failed("n1", "b")], nodes, quarantine_failures=5).releases) == {"n0"}


def test_one_reboot_ends_many_jobs_and_is_one_loss() -> None:
    assert not decide([failed("n0", name, 10, loss=True) for name in "abcd"]).quarantines
    again = [failed("n0", name, ago, loss=True) for name, ago in (("a", 50), ("b", 50), ("c", 30), ("d", 10))]
    assert set(decide(again).quarantines) == {"n0"}


def test_no_more_than_a_share_and_never_the_last_that_takes_work() -> None:
    every = [failed(f"n{number}", f"job-{number}", certain=True) for number in range(4)]
    made = decide(every)
    assert set(made.quarantines) == {"n0"}
    assert set(made.suspicions) == {"n1", "n2", "n3"}
    assert "1 of the 4 nodes of its kind is quarantined already" in made.suspicions["n1"].why_not
    made = decide(every, quarantine_share=1)
    assert len(made.quarantines) == 3
    assert "the last node of its kind that takes work" in made.suspicions["n3"].why_not
    closed = (FOUR[0], *(replace(node, takes_work=False) for node in FOUR[1:]))
    assert not decide(every[:1], closed).quarantines
    other = (FOUR[0], *(replace(node, kind=("h100",)) for node in FOUR[1:]))
    assert "the last node of its kind" in decide(every[:1], other).suspicions["n0"].why_not


def test_where_only_quarantined_nodes_are_left_the_least_surely_broken_is_let_out_until_another_takes_work() -> None:
    until = NOW + timedelta(hours=1)
    sure = replace(FOUR[0], is_quarantined=True, until=until, causes=(failed("n0", "a", 90, certain=True),))
    less = replace(FOUR[1], is_quarantined=True, until=until, causes=tuple(failed("n1", job, 90) for job in "bcd"))
    gone = tuple(replace(node, takes_work=False) for node in FOUR[2:])
    assert not decide([], (sure, less, *FOUR[2:])).releases
    made = decide([], (sure, less, *gone))
    assert (set(made.releases), made.released_for_capacity, made.refuted) == ({"n1"}, {"n1"}, set())
    assert "no other node of its kind does" in made.releases["n1"]
    (left,) = made.suspicions.values()
    assert (left.causes, left.until, left.is_released_for_capacity) == (less.causes, until, True)
    out = replace(less, is_quarantined=False, is_released_for_capacity=True)
    made = decide([], (sure, out, *gone))
    assert not made.releases
    assert made.suspicions == {"n1": left}
    assert set(decide([], (sure, out, *FOUR[2:]), quarantine_share=0.5).quarantines) == {"n1"}
    ended = decide([], (sure, replace(out, until=NOW), *FOUR[2:]), quarantine_share=0.5)
    assert not ended.quarantines
    assert not ended.suspicions
    assert not decide([], (replace(sure, takes_work=False), *gone)).releases  # it would be of no use


def test_what_may_be_taken_goes_to_the_certain_faults_first() -> None:
    suspicious = [failed("n0", name, ago) for name, ago in (("a", 40), ("b", 30), ("c", 20))]
    made = decide([*suspicious, failed("n3", "d", certain=True)])
    assert set(made.quarantines) == {"n3"}
    assert set(made.suspicions) == {"n0"}


def test_each_in_a_row_lasts_twice_as_long_until_it_was_well_for_a_week() -> None:
    cause = failed("n0", "a", certain=True)
    for count, open_for, hours in ((0, 1, 4), (1, 1, 8), (2, 1, 16), (2, 8, 4)):
        node = NodeCandidate("n0", trusted_since=NOW - timedelta(days=open_for), count=count)
        (one,) = decide([cause], (node, *FOUR[1:])).quarantines.values()
        assert one.until == NOW + timedelta(hours=hours)
    (for_good,) = decide([cause], quarantine_release_s=None).quarantines.values()
    assert for_good.until is None


def test_its_time_is_over_and_what_failed_before_does_not_count_again() -> None:
    cause = failed("n0", "a", 30, certain=True)
    node = NodeCandidate("n0", is_quarantined=True, causes=(cause,), until=NOW)
    made = decide([cause], (node, *FOUR[1:]))
    assert made.releases == {"n0": "its time is over"}
    assert not made.quarantines
    after = NodeCandidate("n0", trusted_since=NOW - timedelta(seconds=1), count=1)
    assert not decide([cause], (after, *FOUR[1:])).quarantines


def test_switched_off_nothing_new_is_quarantined_and_what_is_ends_in_time() -> None:
    cause = failed("n0", "a", certain=True)
    assert not decide([cause], quarantines=False).quarantines
    node = NodeCandidate("n0", is_quarantined=True, causes=(cause,), until=NOW)
    assert decide([], (node,), quarantines=False).releases


@pytest.mark.parametrize(
    ("line", "error", "is_certain"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "uncorrectable ECC error", True),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "Xid 79, the GPU has fallen off the bus", True),
        ("NVRM: Xid (PCI:0000:3b:00): 94, pid=7, Contained", "Xid 94, contained memory error", False),
        ("[kernel] NVRM: Xid 119", "Xid 119, the GPU's own processor does not answer", True),
        ("[kernel] Xid 119", "Xid 119, the GPU's own processor does not answer", False),
        ("java.io.IOException: Xid out of order. Got Xid 48 with err -101", "Xid 48, uncorrectable ECC error", False),
        ("rolled back transaction xid 120", "Xid 120, the GPU's own processor failed", False),
        ("Failed to initialize NVML: Driver/library version mismatch", "error of the GPUs' driver", False),
        ("OSError: [Errno 5] Input/output error: '/data/data/x'", "input/output error", False),
    ],
)
def test_words_that_blame_the_machine(line: str, error: str, is_certain: bool) -> None:
    assert machine_faults.fault_in(line) == machine_faults.MachineFault(error, is_certain)
    verdict = classify(ExitFacts("worker-0", "worker", ExitCause.EXITED, 1, NOW, "", line))
    assert (verdict.kind, verdict.fault) == (ExitKind.HARDWARE, machine_faults.MachineFault(error, is_certain))


@pytest.mark.parametrize(
    ("cause", "code", "log"),
    [
        (ExitCause.EXITED, 1, "ValueError: the loss is nan"),
        (ExitCause.EXITED, 1, "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU fault"),
        (ExitCause.EXITED, 1, "NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception"),
        (ExitCause.EXITED, 1, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        (ExitCause.EXITED, 1, "torch.OutOfMemoryError: CUDA out of memory."),
        (ExitCause.EXITED, 1, "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found"),
        (ExitCause.EXITED, 1, "DistBackendError: NCCL error: remote process exited"),
        (ExitCause.EXITED, 139, ""),
        (ExitCause.OUT_OF_MEMORY, 137, ""),
        (ExitCause.DISK_FULL, 1, ""),
        (ExitCause.EVICTED, None, ""),
        (ExitCause.MAINTENANCE, None, ""),
        (ExitCause.IMAGE_UNREACHABLE, None, ""),
        (ExitCause.DISK_LIMIT, None, ""),
        (ExitCause.UNKNOWN, None, ""),
        (ExitCause.START_FAILED, None, ""),
        (ExitCause.START_REFUSED, None, ""),
        (ExitCause.STOPPED, 143, "uncorrectable ECC"),
        (ExitCause.DEADLINE, 143, "uncorrectable ECC"),
        (ExitCause.EXITED, 0, "uncorrectable ECC"),
    ],
)
def test_ends_that_are_no_fault_of_the_machine(cause: ExitCause, code: int | None, log: str) -> None:
    assert classify(ExitFacts("worker-0", "worker", cause, code, NOW, "", log)).fault is None


def test_what_a_program_prints_before_it_fails_in_its_own_words_is_no_certain_fault() -> None:
    log = "the driver said: uncorrectable ECC error\nValueError: the loss is nan"
    fault = classify(ExitFacts("worker-0", "worker", ExitCause.EXITED, 1, NOW, "", log)).fault
    assert fault is not None
    assert not fault.is_certain


def test_an_xid_in_a_programs_own_exception_is_no_certain_fault() -> None:
    line = "RuntimeError: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    fault = classify(ExitFacts("worker-0", "worker", ExitCause.EXITED, 1, NOW, "", line)).fault
    assert fault == machine_faults.MachineFault("Xid 79, the GPU has fallen off the bus", is_certain=False)


def test_an_engine_and_a_lost_node_blame_the_machine_and_the_control_loop_does_not() -> None:
    lost = ExitFacts("worker-0", "worker", ExitCause.NODE_LOST, None, NOW)
    assert classify(lost).fault == machine_faults.NODE_LOST
    refused = replace(lost, cause=ExitCause.ENGINE_REFUSED)
    assert classify(refused).fault == machine_faults.REFUSED
    assert classify(replace(refused, blames_node=False)).fault is None
    start = replace(lost, cause=ExitCause.START_FAILED, sentence="nvidia-container-cli: initialization error: x")
    assert (classify(start).kind, classify(start).fault) == (
        ExitKind.HARDWARE,
        machine_faults.MachineFault("error of the GPUs' driver"),
    )
