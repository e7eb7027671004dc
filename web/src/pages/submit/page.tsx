import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Rocket } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { api, unwrap } from "~/api/client";
import { jobQuery, keys } from "~/api/queries";
import type { JobDetail } from "~/api/types";
import { Mistakes, NO_MISTAKES, useCheck, CheckStatus } from "~/components/forms/specCheck";
import { Editor } from "~/components/forms/editor";
import { Skeleton, Failure, PageHead, Warnings } from "~/components/parts";
import { toast } from "~/components/shell/toasts";
import { newIdempotencyKey } from "~/lib/idempotencyKey";
import { freeName, mergePatch, specYaml } from "~/lib/yaml/specYaml";
import { readYaml } from "~/lib/yaml/yamlDraft";
import { diagnosticsOf, EXAMPLE, warningsIn, withOption, withValue } from "./draft";
import { JobForm } from "./form";
import { PlacementPreview } from "./placement";

const route = getRouteApi("/shell/submit");

export function SubmitPage() {
  const { from, checkpoint } = route.useSearch();
  const original = useQuery({
    ...jobQuery(from ?? ""),
    enabled: from !== undefined,
    refetchInterval: false,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const name = original.data?.name ?? "";
  const sameName = useQuery({
    queryKey: [...keys.jobs, "alike", name],
    queryFn: () =>
      unwrap(
        api.GET("/api/v1/jobs", { params: { query: { name: [`${name.replace(/-\d{1,6}$/, "")}*`], limit: 200 } } }),
      ),
    enabled: name !== "",
    refetchInterval: false,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  });
  if (from !== undefined && (original.isPending || (name !== "" && sameName.isPending))) {
    return (
      <div className="page-body">
        <Skeleton rows={10} />
      </div>
    );
  }
  if (original.error !== null && from !== undefined) {
    return (
      <div className="page-body">
        <Failure error={original.error} retry={() => void original.refetch()} />
      </div>
    );
  }
  // Without the original's output path: the clone would overwrite its checkpoints.
  const start = original.data
    ? specYaml({
        ...original.data.spec,
        output: null,
        // A name refers to the newest job with it: the same name would hide the original.
        name: freeName(name, Boolean(original.data.cloned_from), sameName.data?.items.map((job) => job.name) ?? []),
      })
    : savedDraft() || EXAMPLE;
  return (
    <Draft
      key={`${from ?? ""} ${checkpoint ?? ""}`}
      start={start}
      about={original.data && `Clone of ${name}${checkpoint === undefined ? "" : `, resuming from ${checkpoint}`}.`}
      original={original.data}
      checkpoint={checkpoint}
    />
  );
}

const KEY = "draft";
const NO_WARNINGS: readonly string[] = [];

function savedDraft(): string {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** Validates a text and returns its canonical spec, and what in its command contradicts the replicas. */
async function read(text: string, signal: AbortSignal): Promise<{ spec: object; warnings: string[] }> {
  const answer = await api.POST("/api/v1/jobs", { body: { spec_text: text, dry_run: true }, signal });
  const spec: object = await unwrap(Promise.resolve(answer));
  return { spec, warnings: warningsIn(answer.response.headers.get("Warning")) };
}

interface DraftProps {
  start: string;
  about: string | undefined;
  /** The job to clone, and optionally a checkpoint to resume from. */
  original: JobDetail | undefined;
  checkpoint: string | undefined;
}

function Draft({ start, about, original, checkpoint }: DraftProps) {
  const isFresh = original === undefined;
  const [text, setText] = useState(start);
  const check = useCheck(text, read);
  const document = useMemo(() => readYaml(text), [text]);
  const mistakes = check.state === "bad" ? check.mistakes : NO_MISTAKES;
  const diagnostics = useMemo(() => diagnosticsOf(text, mistakes), [text, mistakes]);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  // One key per text: a retry after a lost response creates no second job.
  const key = useRef({ text: "", key: "" });
  const client = useQueryClient();
  const navigate = useNavigate();

  useEffect(() => {
    if (!isFresh) return;
    try {
      sessionStorage.setItem(KEY, text);
    } catch {
      // No storage: the draft lives as long as the page.
    }
  }, [text, isFresh]);

  const submit = async () => {
    if (key.current.text !== text) key.current = { text, key: newIdempotencyKey() };
    setBusy(true);
    setError(null);
    try {
      const params = { header: { "Idempotency-Key": key.current.key } };
      const job = isFresh
        ? await unwrap(api.POST("/api/v1/jobs", { params, body: { spec_text: text } }))
        : await cloned(original, text, checkpoint, key.current.key);
      if (!("id" in job)) return;
      await client.invalidateQueries({ queryKey: keys.jobs });
      toast(`Submitted ${job.name}${checkpoint ? `, resuming from ${checkpoint.split("/").at(-1)}` : ""}.`);
      await navigate({ to: "/jobs/$job", params: { job: String(job.id) } });
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };

  return (
    <div className="page-body fill">
      <PageHead title={isFresh ? "Submit a job" : "Clone and edit"} about={about}>
        <CheckStatus check={check} isBroken={document.errors.length > 0} />
        <button
          type="button"
          className="button primary"
          disabled={isBusy || check.state === "bad" || document.errors.length > 0}
          onClick={submit}
        >
          <Rocket size={15} aria-hidden="true" /> Submit
        </button>
      </PageHead>
      {error !== null && <Failure error={error} />}
      <Warnings warnings={check.state === "good" ? check.value.warnings : NO_WARNINGS} />
      <div className="submit">
        <section className="card submit-form" aria-label="Form">
          <div className="body stack">
            <JobForm
              document={document}
              mistakes={mistakes}
              set={(name, value) => setText((now) => withValue(now, name, value))}
            />
          </div>
        </section>
        <section className="card submit-text">
          <header>
            <h2 className="grow">job.yaml</h2>
            <span className="dimmer">
              also for <code>trainmaster submit</code>
            </span>
          </header>
          <Editor label="The job as YAML" text={text} change={setText} diagnostics={diagnostics} />
          <Mistakes check={check} />
        </section>
        <PlacementPreview
          spec={check.state === "good" ? check.value.spec : null}
          apply={(option) => setText((now) => withOption(now, option))}
        />
      </div>
    </div>
  );
}

/** Submits the edited text as a clone: the API gets the difference to the original's spec, and records the origin. */
async function cloned(original: JobDetail, text: string, checkpoint: string | undefined, key: string) {
  const spec = await unwrap(api.POST("/api/v1/jobs", { body: { spec_text: text, dry_run: true } }));
  const changes = mergePatch({ ...original.spec, output: null }, spec) as Record<string, unknown>;
  const params = { path: { job: original.id }, header: { "Idempotency-Key": key } };
  return unwrap(api.POST("/api/v1/jobs/{job}/clone", { params, body: { changes, checkpoint: checkpoint ?? null } }));
}
