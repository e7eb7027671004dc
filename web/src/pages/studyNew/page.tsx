import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, FlaskConical, LoaderCircle } from "lucide-react";
import { useEffect, useMemo, useState } from "react";
import { ApiError, api, got } from "~/api/client";
import { readStudies, studyKeys, studyQuery } from "~/api/studies";
import type { Mistake } from "~/api/types";
import { Editor } from "~/components/editor";
import { Bones, Failure, PageHead, Sentence } from "~/components/parts";
import { toast } from "~/components/toasts";
import { freeName, studyYaml } from "~/lib/spec";
import { diagnosticsOf } from "~/pages/submit/draft";

const route = getRouteApi("/shell/studies/new");
const PAUSE_MS = 250;
const FIRST = `name: my-study
template:                     # the job of every trial; code: \`trainmaster study create --code\`
  command: python train.py
  gpus: 1
parameters:
  lr: {type: float, min: 0.00001, max: 0.1, scale: log}
  layers: {type: integer, min: 1, max: 6}
  optimizer: {type: categorical, values: [sgd, adam]}
  momentum: {type: float, min: 0, max: 0.99, when: {optimizer: sgd}}
metric: accuracy
goal: maximize
budget: {trials: 50, parallel: 4}
`;

/** A new study from YAML, or from another one's spec. */
export function NewStudyPage() {
  const { from } = route.useSearch();
  const original = useQuery({
    ...studyQuery(from ?? ""),
    enabled: from !== undefined,
    refetchInterval: false,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const name = original.data?.name ?? "";
  const alike = useQuery({
    queryKey: [...studyKeys.all, "alike", name],
    queryFn: () => readStudies({ q: name.replace(/-\d{1,6}$/, "") }, null, 200),
    enabled: name !== "",
    gcTime: 0,
  });
  if (from !== undefined && original.error !== null) {
    return (
      <div className="page-body">
        <Failure error={original.error} retry={() => void original.refetch()} />
      </div>
    );
  }
  if (from !== undefined && (original.data === undefined || alike.isPending)) {
    return (
      <div className="page-body">
        <Bones rows={10} />
      </div>
    );
  }
  const spec = original.data?.spec;
  // Without the output of the original, where its trials have written.
  const start = spec
    ? studyYaml({
        ...spec,
        name: freeName(name, /-\d{1,6}$/.test(name), alike.data?.items.map((study) => study.name) ?? []),
        ...(spec.template ? { template: { ...spec.template, output: null } } : {}),
      })
    : FIRST;
  return <Draft key={from ?? ""} start={start} original={original.data && { id: original.data.id, name }} />;
}

interface DraftProps {
  start: string;
  original: { id: string; name: string } | undefined;
}

type Check = { state: "checking" | "good" } | { state: "bad"; error: unknown; mistakes: readonly Mistake[] };
const NONE: readonly Mistake[] = [];

function Draft({ start, original }: DraftProps) {
  const [text, setText] = useState(start);
  const [isWarm, setWarm] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const sent = isWarm && original ? `${text.trimEnd()}\nwarm_start: [${original.id}]\n` : text;
  const check = useCheck(sent);
  const mistakes = check.state === "bad" ? check.mistakes : NONE;
  const diagnostics = useMemo(() => diagnosticsOf(text, mistakes), [text, mistakes]);
  const client = useQueryClient();
  const navigate = useNavigate();
  const create = async () => {
    setBusy(true);
    setError(null);
    try {
      const made = await got(api.POST("/api/v1/studies", { body: { spec_text: sent } }));
      if (!("id" in made)) return;
      await client.invalidateQueries({ queryKey: studyKeys.all });
      toast(`Created ${made.name}.`);
      await navigate({ to: "/studies/$study", params: { study: made.id } });
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const hasWarm = /^warm_start:/m.test(text);
  return (
    <div className="page-body fill">
      <PageHead
        title={original ? "Clone and edit" : "Create a study"}
        about={original && `From ${original.name}. The clone is a study of its own.`}
      >
        {original && (
          <label className="row small" title={hasWarm ? "The text says already what it learns from." : undefined}>
            <input
              type="checkbox"
              className="check"
              checked={isWarm && !hasWarm}
              disabled={hasWarm}
              onChange={(event) => setWarm(event.target.checked)}
            />
            learn from its trials
          </label>
        )}
        <Verdict check={check} />
        <button type="button" className="button primary" disabled={isBusy || check.state === "bad"} onClick={() => void create()}>
          <FlaskConical size={15} aria-hidden="true" /> Create
        </button>
      </PageHead>
      {error !== null && <Failure error={error} />}
      <section className="card submit-text grow">
        <header>
          <h2 className="grow">study.yaml</h2>
          <span className="dimmer">
            the same as for <code>trainmaster study create</code>
          </span>
        </header>
        <Editor label="The study as YAML" text={text} change={setText} diagnostics={diagnostics} />
        {check.state === "bad" && <Mistakes check={check} />}
      </section>
    </div>
  );
}

function Mistakes({ check }: { check: Extract<Check, { state: "bad" }> }) {
  const words = check.error instanceof Error ? check.error.message : String(check.error);
  const told = check.mistakes.length > 0 ? check.mistakes : [{ path: "", message: words, hint: null }];
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

/** What the API says of the text, a moment after the last key. */
function useCheck(text: string): Check {
  const [check, setCheck] = useState<Check>({ state: "checking" });
  useEffect(() => {
    const abort = new AbortController();
    setCheck((before) => (before.state === "bad" ? before : { state: "checking" }));
    const timer = setTimeout(async () => {
      try {
        await got(api.POST("/api/v1/studies", { body: { spec_text: text, dry_run: true }, signal: abort.signal }));
        setCheck({ state: "good" });
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

function Verdict({ check }: { check: Check }) {
  const [Icon, tone, words] =
    check.state === "bad"
      ? ([CircleAlert, "red", check.mistakes.length > 1 ? `${check.mistakes.length} mistakes` : "not ready"] as const)
      : check.state === "checking"
        ? ([LoaderCircle, "grey", "checking"] as const)
        : ([CircleCheck, "green", "checked by the server"] as const);
  return (
    <span className={`state tone-${tone}`} role="status">
      <Icon size={15} className={check.state === "checking" ? "spin" : ""} aria-hidden="true" /> {words}
    </span>
  );
}
