from __future__ import annotations

import os
from pathlib import Path

from trainmaster_runtime.log_writer import JobLog
from trainmaster_runtime.replica.local_process import LocalProcess
from trainmaster_runtime.replica.outputs import Outputs


def test_who_hears_the_lines_hears_the_last_one_without_its_end_too(tmp_path: Path) -> None:
    heard: list[bytes] = []
    for ends_by_itself in (True, False):
        outputs = Outputs(JobLog(str(tmp_path / "worker-0.log")))
        outputs.note = heard.extend
        read, write = os.pipe()
        os.set_blocking(read, False)
        process = LocalProcess(0, 1, read, b"")
        outputs.listen([process])
        os.write(write, b"begun\nscore is 0.7")
        outputs.wait(5)
        if ends_by_itself:
            os.close(write)
            outputs.wait(5)
        # Where the other end stays open, held by what the command left, nothing more is waited for.
        outputs.drain([process])
        assert heard == [b"begun", b"score is 0.7"]
        heard.clear()
