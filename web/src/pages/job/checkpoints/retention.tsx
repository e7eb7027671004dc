import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys } from "~/api/queries";
import { FormDialog } from "~/components/forms/dialogs";
import { Card, Field } from "~/components/parts";
import { toast } from "~/components/shell/toasts";

/** The job's checkpoint retention policy. */
export function Retention({ job }: { job: string }) {
  const key = [...keys.job(job), "retention"];
  const params = { path: { job } };
  const { data } = useQuery({
    queryKey: key,
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/checkpoints/retention", { params })),
  });
  const [isOpen, setOpen] = useState(false);
  const client = useQueryClient();
  if (data === undefined) return null;
  const rules = [
    data.last && `newest ${data.last}`,
    data.best && `best ${data.best} by ${data.metric} (${data.mode === "max" ? "higher" : "lower"} is better)`,
    data.every && `every ${data.every} steps`,
  ].filter(Boolean);
  const set = async (form: FormData) => {
    const count = (name: string) => Number(form.get(name)) || null;
    const body = {
      last: count("last"),
      best: count("best"),
      every: count("every"),
      metric: String(form.get("metric")) || null,
      mode: form.get("mode") === "max" ? ("max" as const) : ("min" as const),
    };
    await unwrap(api.PUT("/api/v1/jobs/{job}/checkpoints/retention", { params, body }));
    await client.invalidateQueries({ queryKey: keys.job(job) });
  };
  const clear = async () => {
    try {
      await unwrap(api.DELETE("/api/v1/jobs/{job}/checkpoints/retention", { params }));
      await client.invalidateQueries({ queryKey: key });
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), "bad");
    }
  };
  return (
    <Card
      title="Retention"
      aside={
        <span className="row">
          {rules.length > 0 && (
            <button type="button" className="button small" onClick={clear}>
              Keep all
            </button>
          )}
          <button type="button" className="button small" onClick={() => setOpen(true)}>
            Change
          </button>
        </span>
      }
    >
      <p className="dim">
        {rules.length > 0
          ? `Keeps ${rules.join(", ")} and pinned checkpoints. Others are deleted.`
          : "Keeps all checkpoints. The training script may delete its own."}
      </p>
      <FormDialog title="Checkpoint retention" isOpen={isOpen} close={() => setOpen(false)} verb="Set" submit={set}>
        <div className="pair">
          <Field label="Newest">
            {(props) => (
              <input {...props} className="input" name="last" type="number" min={1} defaultValue={data.last ?? 3} />
            )}
          </Field>
          <Field label="Every N steps">
            {(props) => (
              <input {...props} className="input" name="every" type="number" min={1} defaultValue={data.every ?? ""} />
            )}
          </Field>
          <Field label="Best">
            {(props) => (
              <input {...props} className="input" name="best" type="number" min={1} defaultValue={data.best ?? ""} />
            )}
          </Field>
          <Field label="Metric">
            {(props) => <input {...props} className="input" name="metric" defaultValue={data.metric ?? ""} />}
          </Field>
        </div>
        <Field label="Better is">
          {(props) => (
            <select {...props} className="input" name="mode" defaultValue={data.mode ?? "min"}>
              <option value="min">lower</option>
              <option value="max">higher</option>
            </select>
          )}
        </Field>
      </FormDialog>
    </Card>
  );
}
