import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { isOver, jobQuery, keys } from "~/api/queries";
import type { JobDetail } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { toast } from "~/components/shell/toasts";
import { number } from "~/lib/format";

interface ResumeProps {
  job: string;
  path: string;
  /** Of the checkpoint, where it is known. */
  step: number | null | undefined;
  isOpen: boolean;
  close: () => void;
}

type Target = "this" | "new";

/** Training goes on from a checkpoint: that of this job where it has not ended, or that of a new one. */
export function ResumeDialog({ job, path, step, isOpen, close }: ResumeProps) {
  const { data: detail } = useQuery(jobQuery(job));
  const client = useQueryClient();
  const navigate = useNavigate();
  const [chosen, setChosen] = useState<Target>("this");
  if (detail === undefined) return null;
  const name = path.split("/").at(-1) ?? path;
  const isEnding = isOver(detail.state) || detail.state === "cancelling" || detail.wanted === "cancel";
  const target: Target = isEnding ? "new" : chosen;
  const fork = () => navigate({ to: "/submit", search: { from: job, checkpoint: path } });
  const resume = async () => {
    await unwrap(api.POST("/api/v1/jobs/{job}/resume", { params: { path: { job } }, body: { checkpoint: path } }));
    await client.invalidateQueries({ queryKey: keys.job(job) });
    toast(`${detail.name} goes on from ${name}.`);
  };
  return (
    <FormDialog
      title={`Resume from ${name}`}
      isOpen={isOpen}
      close={close}
      verb={target === "new" ? "Edit the new job" : "Resume this job"}
      submit={target === "new" ? fork : resume}
    >
      {isEnding ? (
        <p className="dim">
          {detail.name} {isOver(detail.state) ? `has ended (${detail.state})` : "is being cancelled"}, and such a job
          does not start again. {NEW_JOB_NOTE}
        </p>
      ) : (
        <fieldset className="stack">
          <legend className="only-read">Which job goes on from there</legend>
          <Choice target="this" chosen={chosen} choose={setChosen} title="This job">
            {consequence(detail, name, step)}
          </Choice>
          <Choice target="new" chosen={chosen} choose={setChosen} title="A new job beside it">
            {NEW_JOB_NOTE} {detail.name} stays as it is.
          </Choice>
        </fieldset>
      )}
    </FormDialog>
  );
}

const NEW_JOB_NOTE =
  "A new job with the same spec and code begins there; it reads this job's output and writes to its own. You see and change it before it is submitted.";

function consequence(job: JobDetail, name: string, step: number | null | undefined): string {
  if (job.state === "paused")
    return `${job.name} is paused: it goes back into the queue and starts again from ${name}.`;
  if (job.state === "queued") return `${job.name} waits for its place; then it starts from ${name}.`;
  return `${job.name} is stopped, goes back into the queue and starts again from ${name}. ${rewindText(job.progress?.["step"], step)}`;
}

function rewindText(from: unknown, to: number | null | undefined): string {
  if (typeof from !== "number" || typeof to !== "number") return "What it trained since then is left behind.";
  return `It goes back from step ${number(from)} to step ${number(to)}; what it trained since then is left behind.`;
}

interface ChoiceProps {
  target: Target;
  chosen: Target;
  choose: (target: Target) => void;
  title: string;
  children: React.ReactNode;
}

function Choice({ target, chosen, choose, title, children }: ChoiceProps) {
  return (
    <label className="choice">
      <input
        type="radio"
        name="who"
        className="check"
        value={target}
        checked={chosen === target}
        onChange={() => choose(target)}
      />
      <span>
        <span className="strong">{title}</span>
        <span className="dim">{children}</span>
      </span>
    </label>
  );
}
