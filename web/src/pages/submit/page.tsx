import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, LoaderCircle, Rocket } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { ApiError, api, got } from "~/api/client";
import { jobQuery, keys } from "~/api/queries";
import type { JobDetail, Mistake } from "~/api/types";
import { Editor } from "~/components/editor";
import { Bones, Failure, PageHead, Sentence } from "~/components/parts";
import { toast } from "~/components/toasts";
import { freeName, mergePatch, specYaml } from "~/lib/spec";
import { diagnosticsOf, FIRST, readDraft, withOption, withValue } from "./draft";
import { Form } from "./form";
import { Room } from "./room";

const route = getRouteApi("/shell/submit");
const PAUSE_MS = 250;

export function SubmitPage() {
  const { from, checkpoint } = route.useSearch();
  const original = useQuery({
    ...jobQuery(from ?? ""),
    enabled: from !== undefined,
    refetchInterval: false,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const name = original.data?.name ?? "";
  const alike = useQuery({
    queryKey: [...keys.jobs, "alike", name],
    queryFn: () =>
      got(api.GET("/api/v1/jobs", { params: { query: { name: [`${name.replace(/-\d{1,6}$/, "")}*`], limit: 200 } } })),
    enabled: name !== "",
    refetchInterval: false,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  });
  if (from !== undefined && (original.isPending || (name !== "" && alike.isPending))) {
    return (
      <div className="page-body">
        <Bones rows={10} />
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
  // Without the original's output: the clone would overwrite its checkpoints.
  const start = original.data
    ? specYaml({
        ...original.data.spec,
        output: null,
        // A name means the newest job that has it: with the same one the clone would take its place.
        name: freeName(name, Boolean(original.data.cloned_from), alike.data?.items.map((job) => job.name) ?? []),
      })
    : kept() || FIRST;
  return (
    <Draft
      key={`${from ?? ""} ${checkpoint ?? ""}`}
      start={start}
      about={
        original.data &&
        `From ${name}${checkpoint === undefined ? "" : `, beginning at ${checkpoint}`}. The clone is a job of its own.`
      }
      original={original.data}
      checkpoint={checkpoint}
    />
  );
}

const KEY = "draft";

function kept(): string {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

type Check =
  { state: "checking" } | { state: "good"; spec: object } | { state: "bad"; error: unknown; mistakes: readonly Mistake[] };

interface DraftProps {
  start: string;
  about: string | undefined;
  /** What is cloned; from one of its checkpoints or from the beginning. */
  original: JobDetail | undefined;
  checkpoint: string | undefined;
}

function Draft({ start, about, original, checkpoint }: DraftProps) {
  const isFresh = original === undefined;
  const [text, setText] = useState(start);
  const check = useCheck(text);
  const document = useMemo(() => readDraft(text), [text]);
  const mistakes = check.state === "bad" ? check.mistakes : NONE;
  const diagnostics = useMemo(() => diagnosticsOf(text, mistakes), [text, mistakes]);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  // One key per text: sent again after a lost answer, it makes no second job.
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
    if (key.current.text !== text) key.current = { text, key: newKey() };
    setBusy(true);
    setError(null);
    try {
      const params = { header: { "Idempotency-Key": key.current.key } };
      const made = isFresh
        ? await got(api.POST("/api/v1/jobs", { params, body: { spec_text: text } }))
        : await cloned(original, text, checkpoint, key.current.key);
      if (!("id" in made)) return;
      await client.invalidateQueries({ queryKey: keys.jobs });
      toast(`Submitted ${made.name}${checkpoint ? `, which begins at ${checkpoint.split("/").at(-1)}` : ""}.`);
      await navigate({ to: "/jobs/$job", params: { job: String(made.id) } });
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };

  return (
    <div className="page-body fill">
      <PageHead title={isFresh ? "Submit a job" : "Clone and edit"} about={about}>
        <Verdict check={check} isBroken={document.errors.length > 0} />
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
      <div className="submit">
        <section className="card submit-form" aria-label="Form">
          <div className="body stack">
            <Form document={document} mistakes={mistakes} set={(name, value) => setText((now) => withValue(now, name, value))} />
          </div>
        </section>
        <section className="card submit-text">
          <header>
            <h2 className="grow">job.yaml</h2>
            <span className="dimmer">
              the same as for <code>trainmaster submit</code>
            </span>
          </header>
          <Editor label="The job as YAML" text={text} change={setText} diagnostics={diagnostics} />
          <Mistakes check={check} />
        </section>
        <Room spec={check.state === "good" ? check.spec : null} take={(option) => setText((now) => withOption(now, option))} />
      </div>
    </div>
  );
}

const NONE: readonly Mistake[] = [];

/** For one submission. Browsers have randomUUID only for pages that came over TLS. */
function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A job from the edited text of another: what differs is laid over the original's spec, so that it is known as its clone. */
async function cloned(original: JobDetail, text: string, checkpoint: string | undefined, key: string) {
  const spec = await got(api.POST("/api/v1/jobs", { body: { spec_text: text, dry_run: true } }));
  const changes = mergePatch({ ...original.spec, output: null }, spec) as Record<string, unknown>;
  const params = { path: { job: original.id }, header: { "Idempotency-Key": key } };
  return got(api.POST("/api/v1/jobs/{job}/clone", { params, body: { changes, checkpoint: checkpoint ?? null } }));
}

/** What the API says of the text, a moment after the last key. */
function useCheck(text: string): Check {
  const [check, setCheck] = useState<Check>({ state: "checking" });
  useEffect(() => {
    const abort = new AbortController();
    setCheck((before) => (before.state === "bad" ? before : { state: "checking" }));
    const timer = setTimeout(async () => {
      try {
        const spec = await got(api.POST("/api/v1/jobs", { body: { spec_text: text, dry_run: true }, signal: abort.signal }));
        setCheck({ state: "good", spec });
      } catch (error) {
        if (abort.signal.aborted) return;
        setCheck({ state: "bad", error, mistakes: error instanceof ApiError ? (error.problem.errors ?? NONE) : NONE });
      }
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text]);
  return check;
}

function Verdict({ check, isBroken }: { check: Check; isBroken: boolean }) {
  if (check.state === "bad" || isBroken) {
    return (
      <span className="state tone-red" role="status">
        <CircleAlert size={15} aria-hidden="true" />{" "}
        {check.state === "bad" && check.mistakes.length > 1 ? `${check.mistakes.length} mistakes` : "not ready"}
      </span>
    );
  }
  if (check.state === "checking") {
    return (
      <span className="state tone-grey" role="status">
        <LoaderCircle size={15} className="spin" aria-hidden="true" /> checking
      </span>
    );
  }
  return (
    <span className="state tone-green" role="status">
      <CircleCheck size={15} aria-hidden="true" /> checked by the server
    </span>
  );
}

function Mistakes({ check }: { check: Check }) {
  if (check.state !== "bad") return null;
  const told =
    check.mistakes.length > 0
      ? check.mistakes
      : [{ path: "", message: check.error instanceof Error ? check.error.message : String(check.error), hint: null }];
  return (
    <ul className="mistakes">
      {told.map((mistake) => (
        <li key={`${mistake.path}${mistake.message}`}>
          {mistake.path && <code>{mistake.path}</code>} <Sentence text={mistake.message} />
          {mistake.hint && (
            <span className="dim">
              : <Sentence text={mistake.hint} />
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}
