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
  /** Step of the checkpoint, where it is known. */
  step: number | null | undefined;
  isOpen: boolean;
  close: () => void;
}

type Target = "this" | "new";

/** Resumes training from a checkpoint: in this job unless it has ended, or in a new job. */
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
    toast(`${detail.name} resumes from ${name}.`);
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
          {detail.name} {isOver(detail.state) ? `has ended (${detail.state})` : "is being cancelled"} and cannot be
          resumed. {NEW_JOB_NOTE}
        </p>
      ) : (
        <fieldset className="stack">
          <legend className="only-read">Job to resume</legend>
          <Choice target="this" chosen={chosen} choose={setChosen} title="This job">
            {consequence(detail, name, step)}
          </Choice>
          <Choice target="new" chosen={chosen} choose={setChosen} title="A new job">
            {NEW_JOB_NOTE} {detail.name} is not changed.
          </Choice>
        </fieldset>
      )}
    </FormDialog>
  );
}

const NEW_JOB_NOTE =
  "A new job with the same spec and code starts from this checkpoint. It reads this job's output and writes to its " +
  "own. You can edit it before it is submitted.";

function consequence(job: JobDetail, name: string, step: number | null | undefined): string {
  if (job.state === "paused") return `${job.name} is paused: it returns to the queue and restarts from ${name}.`;
  if (job.state === "queued") return `${job.name} is queued; it will start from ${name}.`;
  const rewind = rewindText(job.progress?.["step"], step);
  return `${job.name} is stopped, returns to the queue and restarts from ${name}. ${rewind}`;
}

function rewindText(from: unknown, to: number | null | undefined): string {
  if (typeof from !== "number" || typeof to !== "number") return "Training since then is lost.";
  return `It goes back from step ${number(from)} to step ${number(to)}; training since then is lost.`;
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
        name="target"
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
