from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.domain.jobs.exits import (
    ExitCause,
    ExitFacts,
    ExitKind,
    classify,
    for_server,
    is_retryable,
    root_cause,
)

AT = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)

TRACEBACK = """Traceback (most recent call last):
  File "/data/train.py", line 7, in <module>
    main()
  File "/data/train.py", line 3, in main
    raise {line}
{line}"""


def end(log="", code=1, cause=ExitCause.EXITED, who="worker-0", after_s=0.0, sentence=""):
    return ExitFacts(who, who.rpartition("-")[0], cause, code, AT + timedelta(seconds=after_s), sentence, log)


def test_an_exit_with_zero_is_a_success():
    assert classify(end(code=0)).kind is ExitKind.SUCCESS
    assert classify(end(code=0, cause=ExitCause.HANGING_EXIT)).kind is ExitKind.SUCCESS


def test_a_success_without_the_gpu_that_the_program_looked_for_is_a_warning():
    verdict = classify(end("step 1\n[rank0]: No CUDA GPUs are available, using the CPU\nstep 2", code=0))
    assert verdict.kind is ExitKind.SUCCESS
    assert verdict.sentence.startswith(
        "worker-0 finished. Warning: worker-0 ran without a GPU: No CUDA GPUs are available, using the CPU – request "
        "GPUs (`--gpus`, roles.worker.resources.gpus)"
    )
    for line in ("No CUDA GPUs found, falling back to CPU", "WARNING: No GPU found. Training on the CPU."):
        assert f"Warning: worker-0 ran without a GPU: {line} – request" in classify(end(line, code=0)).sentence
    assert classify(end("No GPU/TPU found, falling back to CPU.", code=0)).sentence == "worker-0 finished."  # JAX
    # TensorFlow writes such lines in each run without a GPU, also where none is wanted.
    log = "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
    assert classify(end(log, code=0)).sentence == "worker-0 finished."
    assert "GPU" not in classify(end(f"{log}\n{TRACEBACK.format(line='ValueError: bad')}")).sentence


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Cannot access accelerator device when none is available.",
        "RuntimeError: No GPU found, this benchmark needs one",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "torch.AcceleratorError: CUDA error: no CUDA-capable device is detected",
        "RuntimeError: Attempting to deserialize object on CUDA but torch.cuda.is_available() is False.",
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
    ],
)
def test_cuda_without_a_gpu_is_answered_with_how_to_request_one(line):
    verdict = classify(end(TRACEBACK.format(line=line)))
    assert verdict.kind is ExitKind.USER_ERROR
    assert f": {line} – the process has no GPU that CUDA can use; request GPUs (`--gpus`, " in verdict.sentence
    assert not verdict.is_hopeless  # the driver of another node may work


def test_the_last_line_of_a_traceback_is_quoted():
    verdict = classify(end(TRACEBACK.format(line="ValueError: the loss is nan")))
    assert verdict.kind is ExitKind.USER_ERROR
    assert verdict.sentence == ("worker-0 failed with exit code 1: ValueError: the loss is nan – its log shows where.")
    assert not verdict.is_hopeless


@pytest.mark.parametrize("line", ["The data are gone.", "Why?", "loading..."])
def test_a_last_line_with_a_stop_of_its_own_gets_no_second_one(line):
    assert classify(end(line)).sentence == f"worker-0 failed with exit code 1; its last line was: {line}"


def test_a_last_line_of_signs_alone_gives_way_to_one_that_tells_something():
    sentence = classify(end('status = UNAVAILABLE\n\tdetails = "closed"\n>')).sentence
    assert sentence == 'worker-0 failed with exit code 1; its last line was: details = "closed".'


def test_the_runtimes_own_lines_are_not_taken_for_the_programs_last_word():
    log = "the data is not what it should be\ntrainmaster: the command finished its work and does not exit: it is ended"
    sentence = classify(end(log)).sentence
    assert sentence == "worker-0 failed with exit code 1; its last line was: the data is not what it should be."
    assert (
        classify(end(log.splitlines()[1])).sentence == "worker-0 failed with exit code 1; it wrote nothing to its log."
    )


def test_a_server_that_is_not_there_is_no_matter_of_where_one_submits_from():
    verdict = classify(end("python: can't open file '/data/server.py': [Errno 2] No such file or directory"))
    reported = for_server(verdict)
    assert (
        "put it into the model's folder and deploy with the command `python $AIP_STORAGE_URI/FILE`" in reported.sentence
    )
    assert "submit from" not in reported.sentence
    assert reported == replace(verdict, sentence=reported.sentence)


def test_a_script_for_keras_2_under_keras_3_is_reported():
    verdict = classify(
        end(TRACEBACK.format(line="AttributeError: module 'keras.utils' has no attribute 'experimental'"))
    )
    assert "this is Keras 3" in verdict.sentence
    assert not verdict.is_hopeless


@pytest.mark.parametrize(
    ("log", "code", "words"),
    [
        ("ModuleNotFoundError: No module named 'torch'", 1, "name its package in environment.requirements"),
        ("ImportError: cannot import name 'x' from 'y'", 1, "pin the version"),
        ('  File "train.py", line 1\n    def\n       ^\nSyntaxError: invalid syntax', 1, "correct the code"),
        (
            "/usr/bin/python3: can't open file '/data/trian.py': [Errno 2] No such file or directory",
            2,
            "not in the job's folder",
        ),
        ("/bin/sh: 1: trainx: not found", 127, "write the command's full path"),
        ("bash: line 1: trainx: command not found", 127, "write the command's full path"),
        ("", 127, "does not exist"),
        ("", 126, "not executable"),
        ("ImportError: Keras cannot be imported. Check that it is installed.", 1, "pip install --no-deps tf_keras"),
        (
            "}) with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.",
            1,
            "env.TF_USE_LEGACY_KERAS",
        ),
        *(
            (TRACEBACK.format(line=line), 1, "TensorFlow 1, and TensorFlow 2 is installed")
            for line in (
                "AttributeError: module 'tensorflow' has no attribute 'placeholder'",
                "AttributeError: module 'tensorflow' has no attribute 'matrix_inverse'. Did you mean: 'linalg'?",
                "AttributeError: module 'tensorflow' has no attribute 'arg_max'. Did you mean: 'argmax'?",
                "AttributeError: module 'tensorflow' has no attribute 'Session'. Did you mean: 'version'?",
                "AttributeError: module 'tensorflow' has no attribute 'contrib'",
                "AttributeError: module 'tensorflow' has no attribute 'app'",
                "AttributeError: module 'tensorflow._api.v2.train' has no attribute 'AdamOptimizer'",
                "ModuleNotFoundError: No module named 'tensorflow.examples.tutorials'",
                "ModuleNotFoundError: No module named 'tensorflow.contrib'",
                "RuntimeError: tf.placeholder() is not compatible with eager execution.",
            )
        ),
        *(
            (TRACEBACK.format(line=line), 1, "init_process_group('gloo')")
            for line in (
                "RuntimeError: Distributed package doesn't have NCCL built in",
                "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            )
        ),
        (
            TRACEBACK.format(line="AttributeError: module 'tensorflow' has no attribute 'estimator'"),
            1,
            "install tensorflow 2.15",
        ),
        (
            TRACEBACK.format(
                line="TypeError: BF16 all reduce communication hook required CUDA 11+ and NCCL 2.10+ or XPU and XCCL"
            ),
            1,
            "trainmaster_train.distributed.wrap(model, compression='bf16')",
        ),
        ("usage: train.py\ntrain.py: error: unrecognized arguments: --epoch 3", 2, "correct the job's command or args"),
        (
            (
                "worker-1: worker 1 has another model than ps 0: `0.weight` is 50×8 here and 60×8 there (here: the ps, "
                "there: worker 1)."
            ),
            1,
            "the next attempt would end the same way",
        ),
        (
            TRACEBACK.format(
                line="trainmaster_train.ps.errors.RefusedError: worker 1 has another model than ps 0: `w`"
            ),
            1,
            "the next attempt would end the same way",
        ),
        ("worker-1: worker 1 wants mode sync and wire full, ps 0 has async and full.", 1, "mode sync"),
        ("worker-1: worker 1, own step 5, update 9: the gradient of `2.bias` holds NaN or infinity.", 1, "`2.bias`"),
        ("worker-0: ps.Options: mode is 'fast': give one of async, sync.", 1, "mode is 'fast'"),
        ("ps-0: /data/output/checkpoints/step-5 is of another model: it has `a`.", 1, "it has `a`"),
        (
            (
                "shard=7 predictions=70 errors=0, EOFError\n"
                "batch prediction: /data/instances/a.csv.gz ends in the middle of what gzip packed: copy it again, "
                "whole."
            ),
            2,
            "a.csv.gz ends in the middle",
        ),
    ],
)
def test_a_mistake_that_would_repeat_itself_is_hopeless_and_says_what_to_do(log, code, words):
    verdict = classify(end(log, code))
    assert verdict.kind is ExitKind.USER_ERROR
    assert verdict.is_hopeless
    assert words in verdict.sentence
    assert not is_retryable(verdict, None, has_progressed=True)


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (
            TRACEBACK.format(line="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
            ExitKind.OUT_OF_MEMORY,
        ),
        (TRACEBACK.format(line="MemoryError"), ExitKind.OUT_OF_MEMORY),
        ("terminate called after throwing an instance of 'std::bad_alloc'", ExitKind.OUT_OF_MEMORY),
        (TRACEBACK.format(line="RuntimeError: CUDA error: uncorrectable ECC error encountered"), ExitKind.HARDWARE),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", ExitKind.HARDWARE),
        (TRACEBACK.format(line="OSError: [Errno 28] No space left on device"), ExitKind.CAPACITY),
        (
            TRACEBACK.format(
                line="RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"
            ),
            ExitKind.CAPACITY,
        ),
        (TRACEBACK.format(line="OSError: 1000000 requested and 131056 written"), ExitKind.CAPACITY),
        (
            (
                "worker-0: the checkpoint of step 3 was not written to /data/output/checkpoints: the output volume is "
                "full: free space."
            ),
            ExitKind.CAPACITY,
        ),
        ("worker-0: ps 1 has no memory for the optimizer's state: give the ps more memory.", ExitKind.OUT_OF_MEMORY),
        (
            TRACEBACK.format(line="torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited"),
            ExitKind.TRANSIENT,
        ),
        (
            TRACEBACK.format(
                line="RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer "
                "[127.0.0.1]:3"
            ),
            ExitKind.TRANSIENT,
        ),
        (TRACEBACK.format(line="RuntimeError: The server socket has failed to bind: EADDRINUSE"), ExitKind.TRANSIENT),
    ],
)
def test_the_log_tells_the_kind(log, kind):
    assert classify(end(log)).kind is kind
    stamped = "\n".join(f"2026-11-21T07:00:00.123456Z [rank 1] {line}" for line in log.splitlines())
    assert classify(end(stamped)).kind is kind


def test_what_a_ps_says_of_a_worker_is_not_why_it_ended_itself():
    log = (
        "ps 0: worker 1 is refused: worker 1 has another model than ps 0: `w` is 2 here.\n"
        "ps 0: worker 1 left: worker 1, own step 5, update 9: the gradient of `w` holds NaN or infinity.\n"
        "ps-0: ps 0: no worker was there for 3600 s; worker 0 stayed away."
    )
    verdict = classify(end(log, who="ps-0"))
    assert not verdict.is_hopeless
    assert "its last line was: ps-0: ps 0: no worker was there" in verdict.sentence


def test_a_kill_from_outside_is_transient_and_memory_of_the_kernel_is_distinguished():
    killed = classify(end(code=137, cause=ExitCause.SIGNALLED))
    assert killed.kind is ExitKind.TRANSIENT
    assert "SIGKILL" in killed.sentence
    assert is_retryable(killed, killed.signature, has_progressed=False)
    memory = classify(end(code=137, cause=ExitCause.OUT_OF_MEMORY))
    assert memory.kind is ExitKind.OUT_OF_MEMORY
    assert "resources.memory" in memory.sentence


def test_a_crash_of_native_code_names_the_signal():
    assert "SIGSEGV" in classify(end(code=139, cause=ExitCause.SIGNALLED)).sentence
    assert "resources.shm" in classify(end(code=135, cause=ExitCause.SIGNALLED)).sentence


def test_the_drivers_own_sentence_wins():
    verdict = classify(
        end(code=None, cause=ExitCause.START_FAILED, sentence="The code archive is damaged; upload it again.")
    )
    assert verdict.sentence == "The code archive is damaged; upload it again."


def test_every_cause_gets_a_sentence():
    for cause in ExitCause:
        verdict = classify(end(code=1, cause=cause))
        assert verdict.sentence.endswith(".")
        assert "{" not in verdict.sentence


def test_the_same_mistake_twice_without_progress_is_not_tried_a_third_time():
    first = classify(end(TRACEBACK.format(line="ValueError: bad row 17")))
    again = classify(end(TRACEBACK.format(line="ValueError: bad row 18")))
    assert is_retryable(first, None, has_progressed=False)
    assert not is_retryable(again, first.signature, has_progressed=False)
    assert is_retryable(again, first.signature, has_progressed=True)
    other = classify(end(TRACEBACK.format(line="KeyError: 'x'")))
    assert is_retryable(other, first.signature, has_progressed=False)


def test_a_port_that_is_taken_twice_in_a_row_is_not_transient():
    torch = "RuntimeError: The server socket has failed to listen on any local network address. code: -98, EADDRINUSE"
    first = classify(end(TRACEBACK.format(line="OSError: [Errno 98] Address already in use")))
    again = classify(end(TRACEBACK.format(line=torch)))
    assert first.kind is again.kind is ExitKind.TRANSIENT
    assert is_retryable(first, None, has_progressed=False)
    assert not is_retryable(again, first.signature, has_progressed=False)
    assert is_retryable(again, first.signature, has_progressed=True)
    other = classify(end(TRACEBACK.format(line="RuntimeError: Connection reset by peer")))
    assert is_retryable(other, first.signature, has_progressed=False)
    assert is_retryable(again, other.signature, has_progressed=False)
    assert is_retryable(other, other.signature, has_progressed=False)
    assert "MASTER_PORT" in again.sentence


def test_the_first_failure_is_the_cause_and_stopped_peers_are_not():
    ends = [
        end(TRACEBACK.format(line="ValueError: x"), who="worker-1", after_s=1),
        end(TRACEBACK.format(line="KeyError: 'x'"), who="worker-0", after_s=2),
        end(code=143, cause=ExitCause.STOPPED, who="ps-0", after_s=0),
    ]
    assert root_cause(ends) is ends[0]
    assert root_cause([ends[2]]) is None


def test_a_peer_that_lost_its_connection_is_a_consequence_even_when_it_died_first():
    lost = end(
        TRACEBACK.format(line="RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer"), who="worker-0"
    )
    killed = end(code=137, cause=ExitCause.SIGNALLED, who="worker-1", after_s=0.2)
    assert root_cause([lost, killed]) is killed
    late = end(code=137, cause=ExitCause.SIGNALLED, who="worker-1", after_s=60)
    assert root_cause([lost, late]) is lost


def test_the_same_mistake_counts_as_the_same_whichever_role_comes_upon_it_first():
    log = TRACEBACK.format(line="KeyError: 'lr'")
    first = classify(end(log, who="worker-0"))
    again = classify(end(log, who="ps-0"))
    assert not is_retryable(again, first.signature, has_progressed=False)


READ_ONLY = "write to /data/output only"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/data/data/x.csv'", READ_ONLY),
        ("OSError: [Errno 30] Read-only file system: '/mnt/set/x'", READ_ONLY),
        ("OSError: [Errno 30] Dateisystem ist nur lesbar: '/mnt/set/x'", READ_ONLY),
        ("PermissionError: [Errno 13] Permission denied: '/etc/shadow'", "may not access /etc/shadow;"),
        ("PermissionError: [Errno 13] Permission denied: '/data/database'", "may not access /data/database;"),
        ("PermissionError: [Errno 13] Permission denied: '/data/output/{x}'", "may not access /data/output/{x};"),
        ("PermissionError: [Errno 13] Permission denied: '/a' -> '/b'", "may not access /a;"),
        ("PermissionError: [Errno 1] Operation not permitted", "may not do this"),
    ],
)
def test_a_refused_access_names_the_path_and_blames_a_read_only_mount_only_where_one_is(line, words):
    verdict = classify(end(TRACEBACK.replace("{line}", line)))
    assert verdict.kind is ExitKind.USER_ERROR
    assert words in verdict.sentence
    assert (READ_ONLY in verdict.sentence) == (words == READ_ONLY)


def test_what_can_never_start_is_not_tried_again():
    refused = classify(end(code=None, cause=ExitCause.START_REFUSED, sentence="/data/data: it does not exist."))
    assert refused.is_hopeless
    assert not is_retryable(refused, None, has_progressed=False)
    assert not classify(end(code=None, cause=ExitCause.START_FAILED)).is_hopeless
