"""Sidecars of the user's processes: the reporter to the API, and Horovod's store. Imported only where needed."""

from __future__ import annotations

from trainmaster_runtime import clock
from trainmaster_runtime.process.job_user import as_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.prepare import PreparedReplica
    from trainmaster_runtime.record import StateFolder
    from trainmaster_runtime.reports.reporter import Reporter


def start_reporter(
    order: RuntimeOrder, prepared: PreparedReplica, state: StateFolder, token: str, log: JobLog, output: str | None
) -> Reporter | None:
    """``None`` where the order names no API. ``output``: the job's, as the runtime sees it."""
    if not order.api_url or not token:
        return None
    from trainmaster_runtime.metrics.collector import make_collector
    from trainmaster_runtime.reports.reporter import Reporter
    from trainmaster_runtime.reports.spool import spool_file_of

    began = clock.now()
    with as_root():  # its spool lies in the state folder
        reporter = Reporter(
            api_url=order.api_url,
            token=token,
            replica={"role": order.role, "index": order.index, "generation": order.generation},
            source=prepared.job_folder + "/report.jsonl",
            spool_path=state.file("spool"),
            say=log.say,
            api_file=order.api_file or state.file("api.json"),
            collector=lambda: make_collector(order, prepared, log.say, began),
            spool_file=spool_file_of(order, output, token),
        )
    reporter.start()
    return reporter


def serve_rendezvous(env: dict[str, str], log: JobLog) -> None:
    """Serve Horovod's key-value store where rank 0 of the gang is; contracts.md, "Horovod"."""
    port = env.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
    if env.get("HOROVOD_RANK") == "0" and port.isdigit():
        from trainmaster_runtime.rendezvous import serve

        # A gang of this machine alone is served on its loopback, closed to other machines.
        is_local = env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR") == "127.0.0.1"
        serve(int(port), log.say, "127.0.0.1" if is_local else "")
