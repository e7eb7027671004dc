import { useQueryClient } from "@tanstack/react-query";
import { Ban, CirclePause, CirclePlay, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, got } from "~/api/client";
import { isOver, keys } from "~/api/queries";
import type { Job } from "~/api/types";
import { Confirm } from "~/components/forms/dialogs";
import { toast } from "~/components/shell/toasts";
import { counted } from "~/lib/format";

type Verb = "cancel" | "pause" | "resume" | "delete";

const PATHS = {
  cancel: "/api/v1/jobs/{job}/cancel",
  pause: "/api/v1/jobs/{job}/pause",
  resume: "/api/v1/jobs/{job}/resume",
} as const;
const DONE: Record<Verb, string> = { cancel: "Cancelling", pause: "Pausing", resume: "Resumed", delete: "Deleted" };

function ask(job: Job, verb: Verb): Promise<unknown> {
  const params = { path: { job: job.id } };
  if (verb === "delete") return got(api.DELETE("/api/v1/jobs/{job}", { params }));
  return got(api.POST(PATHS[verb], { params }));
}

/** What can be done with one job or many: only the verbs that some of them can follow. */
export function JobActions({ jobs, done }: { jobs: Job[]; done?: (verb: Verb) => void }) {
  const client = useQueryClient();
  const [asked, setAsked] = useState<Verb | null>(null);
  const fitting: Record<Verb, Job[]> = {
    pause: jobs.filter((job) => ["queued", "starting", "running"].includes(job.state) && job.wanted !== "pause"),
    resume: jobs.filter((job) => job.state === "paused"),
    cancel: jobs.filter((job) => !isOver(job.state) && job.state !== "cancelling"),
    delete: jobs.filter((job) => isOver(job.state)),
  };

  const run = async (verb: Verb) => {
    const results = await Promise.allSettled(fitting[verb].map((job) => ask(job, verb)));
    await Promise.all([
      client.invalidateQueries({ queryKey: keys.jobs }),
      ...(verb === "delete"
        ? []
        : fitting[verb].map((job) => client.invalidateQueries({ queryKey: keys.job(job.id) }))),
    ]);
    const refused = results.filter((result) => result.status === "rejected");
    const first = refused[0]?.reason;
    if (first !== undefined) {
      const others = refused.length > 1 ? ` (and ${refused.length - 1} more were refused)` : "";
      throw new Error(`${first instanceof Error ? first.message : String(first)}${others}`);
    }
    toast(`${DONE[verb]} ${jobs.length === 1 && jobs[0] ? jobs[0].name : counted(fitting[verb].length, "job")}.`);
    done?.(verb);
  };
  const runNow = (verb: Verb) => {
    run(verb).catch((error: unknown) => toast(error instanceof Error ? error.message : String(error), "bad"));
  };
  const count = asked ? fitting[asked].length : 0;
  const what = count === 1 ? (asked && fitting[asked][0]?.name) || "the job" : counted(count, "job");

  return (
    <>
      {fitting.resume.length > 0 && (
        <button type="button" className="button" onClick={() => runNow("resume")}>
          <CirclePlay size={15} aria-hidden="true" /> Resume
        </button>
      )}
      {fitting.pause.length > 0 && (
        <button type="button" className="button" onClick={() => runNow("pause")}>
          <CirclePause size={15} aria-hidden="true" /> Pause
        </button>
      )}
      {fitting.cancel.length > 0 && (
        <button type="button" className="button danger" onClick={() => setAsked("cancel")}>
          <Ban size={15} aria-hidden="true" /> Cancel
        </button>
      )}
      {fitting.delete.length > 0 && (
        <button type="button" className="button danger" onClick={() => setAsked("delete")}>
          <Trash2 size={15} aria-hidden="true" /> Delete
        </button>
      )}
      <Confirm
        title={asked === "cancel" ? `Cancel ${what}?` : asked === "delete" ? `Delete ${what}?` : null}
        verb={asked === "delete" ? "Delete" : "Cancel the job"}
        act={() => run(asked ?? "cancel")}
        close={() => setAsked(null)}
      >
        {asked === "delete"
          ? "It is listed no more. Its output stays where it is."
          : "Its processes get SIGTERM, and SIGKILL after the grace time. Checkpoints stay."}
      </Confirm>
    </>
  );
}
