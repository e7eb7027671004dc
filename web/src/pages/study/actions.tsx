import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { CirclePause, CirclePlay, CircleStop, CopyPlus, ListPlus, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { isStudyOver, studyKeys } from "~/api/studies";
import type { StudyDetail } from "~/api/types";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { Field } from "~/components/parts";
import { toast } from "~/components/shell/toasts";

/** Actions on a study, by its state. */
export function StudyActions({ study }: { study: StudyDetail }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [confirming, setConfirming] = useState<"stop" | "delete" | null>(null);
  const [isExtending, setExtending] = useState(false);
  const params = { path: { study: study.id } };
  const refresh = () =>
    Promise.all([
      client.invalidateQueries({ queryKey: studyKeys.detail(study.id) }),
      client.invalidateQueries({ queryKey: studyKeys.all }),
    ]);
  const changeState = (verb: "pause" | "resume", doneText: string) => {
    unwrap(api.POST(`/api/v1/studies/{study}/${verb}`, { params }))
      .then(refresh)
      .then(() => toast(`${doneText} ${study.name}.`))
      .catch((error: unknown) => toast(error instanceof Error ? error.message : String(error), "bad"));
  };
  const act = async () => {
    if (confirming === "delete") {
      await unwrap(api.DELETE("/api/v1/studies/{study}", { params }));
      await client.invalidateQueries({ queryKey: studyKeys.all });
      toast(`Deleted ${study.name}.`);
      await navigate({ to: "/studies" });
    } else {
      await unwrap(api.POST("/api/v1/studies/{study}/stop", { params }));
      await refresh();
    }
  };
  const isOver = isStudyOver(study.state);
  return (
    <>
      <button
        type="button"
        className="button"
        onClick={() => void navigate({ to: "/studies/new", search: { from: study.id } })}
      >
        <CopyPlus size={15} aria-hidden="true" /> Clone and edit
      </button>
      {study.state === "paused" && (
        <button type="button" className="button" onClick={() => changeState("resume", "Resumed")}>
          <CirclePlay size={15} aria-hidden="true" /> Resume
        </button>
      )}
      {study.state === "running" && (
        <button type="button" className="button" onClick={() => changeState("pause", "Paused")}>
          <CirclePause size={15} aria-hidden="true" /> Pause
        </button>
      )}
      {study.state !== "stopping" && (
        <button type="button" className="button" onClick={() => setExtending(true)}>
          <ListPlus size={15} aria-hidden="true" /> Extend
        </button>
      )}
      {!isOver && study.state !== "stopping" && (
        <button type="button" className="button danger" onClick={() => setConfirming("stop")}>
          <CircleStop size={15} aria-hidden="true" /> Stop
        </button>
      )}
      {isOver && (
        <button type="button" className="button danger" onClick={() => setConfirming("delete")}>
          <Trash2 size={15} aria-hidden="true" /> Delete
        </button>
      )}
      <Confirm
        title={confirming === "stop" ? `Stop ${study.name}?` : confirming === "delete" ? `Delete ${study.name}?` : null}
        verb={confirming === "delete" ? "Delete" : "Stop study"}
        act={act}
        close={() => setConfirming(null)}
      >
        {confirming === "delete"
          ? "It disappears from the lists. The jobs of its trials are kept."
          : "Its trials are cancelled. Their results are kept, and the study can be extended later."}
      </Confirm>
      <Extend study={study} isOpen={isExtending} close={() => setExtending(false)} done={refresh} />
    </>
  );
}

interface ExtendProps {
  study: StudyDetail;
  isOpen: boolean;
  close: () => void;
  done: () => Promise<unknown>;
}

function Extend({ study, isOpen, close, done }: ExtendProps) {
  const { budget } = study.spec;
  const submit = async (data: FormData) => {
    const numberIn = (name: string) => {
      const text = String(data.get(name) ?? "").trim();
      return text === "" ? undefined : Number(text);
    };
    const hours = numberIn("max_time");
    const body = {
      trials: numberIn("trials"),
      parallel: numberIn("parallel"),
      gpu_hours: numberIn("gpu_hours"),
      failed_trials: numberIn("failed_trials"),
      max_time: hours === undefined ? undefined : hours * 3600,
    };
    const stated = Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined));
    await unwrap(api.POST("/api/v1/studies/{study}/extend", { params: { path: { study: study.id } }, body: stated }));
    await done();
    toast(`Extended ${study.name}.`);
  };
  const field = (name: string, label: string, hint: string, step = "1") => (
    <Field label={label} hint={hint}>
      {(props) => <input {...props} name={name} type="number" min={0} step={step} className="input" />}
    </Field>
  );
  return (
    <FormDialog title={`Extend ${study.name}`} isOpen={isOpen} close={close} verb="Extend" submit={submit}>
      <p className="dim">
        {isStudyOver(study.state) ? "The study resumes with the added budget." : "The added budget counts from now."}
        {" Blank fields stay unchanged."}
      </p>
      <div className="pair">
        {budget.trials != null && field("trials", "More trials", `${budget.trials.toLocaleString()} now`)}
        {field("parallel", "Parallel trials", `${budget.parallel ?? 1} now; replaced`)}
        {budget.max_time != null &&
          field("max_time", "More hours", `${(budget.max_time / 3600).toFixed(1)} h now`, "any")}
        {budget.gpu_hours != null && field("gpu_hours", "More GPU-hours", `${budget.gpu_hours} now`, "any")}
        {budget.failed_trials != null && field("failed_trials", "More failed trials", `${budget.failed_trials} now`)}
      </div>
    </FormDialog>
  );
}
