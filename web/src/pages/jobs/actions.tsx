import { useQueryClient } from "@tanstack/react-query";
import { Ban, CirclePause, CirclePlay, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { isOver, keys } from "~/api/queries";
import type { Job } from "~/api/types";
import { Confirm } from "~/components/forms/dialogs";
import { toast } from "~/components/shell/toasts";
import { pluralize } from "~/lib/format";

type Verb = "cancel" | "pause" | "resume" | "delete";

const PATHS = {
  cancel: "/api/v1/jobs/{job}/cancel",
  pause: "/api/v1/jobs/{job}/pause",
  resume: "/api/v1/jobs/{job}/resume",
} as const;
const DONE: Record<Verb, string> = { cancel: "Cancelling", pause: "Pausing", resume: "Resumed", delete: "Deleted" };

function ask(job: Job, verb: Verb): Promise<unknown> {
  const params = { path: { job: job.id } };
  if (verb === "delete") return unwrap(api.DELETE("/api/v1/jobs/{job}", { params }));
  return unwrap(api.POST(PATHS[verb], { params }));
}

/** Actions on one or more jobs: only those that apply to some of them. */
export function JobActions({ jobs, done }: { jobs: Job[]; done?: (verb: Verb) => void }) {
  const client = useQueryClient();
  const [confirming, setConfirming] = useState<Verb | null>(null);
  const eligible: Record<Verb, Job[]> = {
    pause: jobs.filter((job) => ["queued", "starting", "running"].includes(job.state) && job.wanted !== "pause"),
    resume: jobs.filter((job) => job.state === "paused"),
    cancel: jobs.filter((job) => !isOver(job.state) && job.state !== "cancelling"),
    delete: jobs.filter((job) => isOver(job.state)),
  };

  const run = async (verb: Verb) => {
    const results = await Promise.allSettled(eligible[verb].map((job) => ask(job, verb)));
    await Promise.all([
      client.invalidateQueries({ queryKey: keys.jobs }),
      ...(verb === "delete"
        ? []
        : eligible[verb].map((job) => client.invalidateQueries({ queryKey: keys.job(job.id) }))),
    ]);
    const refused = results.filter((result) => result.status === "rejected");
    const first = refused[0]?.reason;
    if (first !== undefined) {
      const others = refused.length > 1 ? ` (and ${refused.length - 1} more were refused)` : "";
      throw new Error(`${first instanceof Error ? first.message : String(first)}${others}`);
    }
    toast(`${DONE[verb]} ${jobs.length === 1 && jobs[0] ? jobs[0].name : pluralize(eligible[verb].length, "job")}.`);
    done?.(verb);
  };
  const runNow = (verb: Verb) => {
    run(verb).catch((error: unknown) => toast(error instanceof Error ? error.message : String(error), "bad"));
  };
  const count = confirming ? eligible[confirming].length : 0;
  const subject = count === 1 ? (confirming && eligible[confirming][0]?.name) || "the job" : pluralize(count, "job");

  return (
    <>
      {eligible.resume.length > 0 && (
        <button type="button" className="button" onClick={() => runNow("resume")}>
          <CirclePlay size={15} aria-hidden="true" /> Resume
        </button>
      )}
      {eligible.pause.length > 0 && (
        <button type="button" className="button" onClick={() => runNow("pause")}>
          <CirclePause size={15} aria-hidden="true" /> Pause
        </button>
      )}
      {eligible.cancel.length > 0 && (
        <button type="button" className="button danger" onClick={() => setConfirming("cancel")}>
          <Ban size={15} aria-hidden="true" /> Cancel
        </button>
      )}
      {eligible.delete.length > 0 && (
        <button type="button" className="button danger" onClick={() => setConfirming("delete")}>
          <Trash2 size={15} aria-hidden="true" /> Delete
        </button>
      )}
      <Confirm
        title={confirming === "cancel" ? `Cancel ${subject}?` : confirming === "delete" ? `Delete ${subject}?` : null}
        verb={confirming === "delete" ? "Delete" : "Cancel job"}
        act={() => run(confirming ?? "cancel")}
        close={() => setConfirming(null)}
      >
        {confirming === "delete"
          ? "It disappears from the lists. Its output is kept."
          : "Its processes get SIGTERM, and SIGKILL after the grace time. Checkpoints are kept."}
      </Confirm>
    </>
  );
}
