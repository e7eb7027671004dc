import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { FlaskConical } from "lucide-react";
import { useMemo, useRef, useState } from "react";
import { api, unwrap } from "~/api/client";
import { nodesQuery } from "~/api/queries";
import { readStudies, studyKeys, studyQuery } from "~/api/studies";
import { Mistakes, NO_MISTAKES, useCheck, CheckStatus } from "~/components/forms/specCheck";
import { Editor } from "~/components/forms/editor";
import { Skeleton, Failure, PageHead } from "~/components/parts";
import { toast } from "~/components/shell/toasts";
import { newIdempotencyKey } from "~/lib/idempotencyKey";
import { allocatable, gpuCount, isSchedulable } from "~/lib/capacity";
import { freeName, studyYaml } from "~/lib/yaml/specYaml";
import { readYaml } from "~/lib/yaml/yamlDraft";
import { diagnosticsOf } from "~/pages/submit/draft";
import { PlacementPreview } from "~/pages/submit/placement";
import { StudyForm } from "./form";

const route = getRouteApi("/shell/studies/new");
/** The initial text: one GPU per trial if the platform has any. */
const first = (hasGpus: boolean) => `name: my-study
template:                     # the job of every trial
  command: python train.py${hasGpus ? "\n  gpus: 1" : ""}
parameters:
  lr: {type: float, min: 0.00001, max: 0.1, scale: log}
  layers: {type: integer, min: 1, max: 6}
  optimizer: {type: categorical, values: [sgd, adam]}
  momentum: {type: float, min: 0, max: 0.99, when: {optimizer: sgd}}
metric: accuracy
goal: maximize
budget: {trials: 50, parallel: 4}
`;

/** A new study from YAML, or from another study's spec. */
export function NewStudyPage() {
  const { from } = route.useSearch();
  const original = useQuery({
    ...studyQuery(from ?? ""),
    enabled: from !== undefined,
    refetchInterval: false,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const nodes = useQuery({ ...nodesQuery, enabled: from === undefined });
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
  if (from === undefined ? nodes.isPending : original.data === undefined || alike.isPending) {
    return (
      <div className="page-body">
        <Skeleton rows={10} />
      </div>
    );
  }
  const spec = original.data?.spec;
  // Without the original's output path.
  const start = spec
    ? studyYaml({
        ...spec,
        name: freeName(name, /-\d{1,6}$/.test(name), alike.data?.items.map((study) => study.name) ?? []),
        ...(spec.template ? { template: { ...spec.template, output: null } } : {}),
      })
    : first((nodes.data ?? []).some((node) => isSchedulable(node) && gpuCount(allocatable(node)) > 0));
  return <Draft key={from ?? ""} start={start} original={original.data && { id: original.data.id, name }} />;
}

interface DraftProps {
  start: string;
  original: { id: string; name: string } | undefined;
}

/** Validates a study's text. */
const reading = (waits: boolean) => (text: string, signal: AbortSignal) =>
  unwrap(api.POST("/api/v1/studies", { body: { spec_text: text, dry_run: true, wait_for_nodes: waits }, signal }));
const readNow = reading(false);
const readPatiently = reading(true);

function Draft({ start, original }: DraftProps) {
  const [text, setText] = useState(start);
  const [isWarm, setWarm] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const sent = isWarm && original ? `${text.trimEnd()}\nwarm_start: [${original.id}]\n` : text;
  const [waits, setWaits] = useState(false);
  const check = useCheck(sent, waits ? readPatiently : readNow);
  const document = useMemo(() => readYaml(text), [text]);
  const mistakes = check.state === "bad" ? check.mistakes : NO_MISTAKES;
  // The server's hint about a template that fits on no node: the study may be created nevertheless.
  const isNeverPlaced = mistakes.some(({ hint }) => hint?.includes("wait_for_nodes"));
  const spec = check.state === "good" && "template" in check.value ? check.value.template : null;
  const diagnostics = useMemo(() => diagnosticsOf(text, mistakes), [text, mistakes]);
  // One key per text: a retry after a lost response creates no second study.
  const key = useRef({ text: "", key: "" });
  const client = useQueryClient();
  const navigate = useNavigate();
  const create = async () => {
    if (key.current.text !== sent) key.current = { text: sent, key: newIdempotencyKey() };
    setBusy(true);
    setError(null);
    try {
      const params = { header: { "Idempotency-Key": key.current.key } };
      const study = await unwrap(
        api.POST("/api/v1/studies", { params, body: { spec_text: sent, wait_for_nodes: waits } }),
      );
      if (!("namesakes" in study)) return;
      await client.invalidateQueries({ queryKey: studyKeys.all });
      const others = study.namesakes?.length ?? 0;
      const namesakeNote =
        others === 0
          ? ""
          : others === 1
            ? " Another study of this name is still running."
            : ` ${others} others of this name are still running.`;
      toast(`Created ${study.name}.${namesakeNote}`);
      await navigate({ to: "/studies/$study", params: { study: study.id } });
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const hasWarm = /^warm_start:/m.test(text);
  return (
    <div className="page-body fill">
      <PageHead title={original ? "Clone and edit" : "Create a study"} about={original && `Clone of ${original.name}.`}>
        {original && (
          <label className="row small" title={hasWarm ? "The YAML already has a warm_start." : undefined}>
            <input
              type="checkbox"
              className="check"
              checked={isWarm && !hasWarm}
              disabled={hasWarm}
              onChange={(event) => setWarm(event.target.checked)}
            />
            warm start from its trials
          </label>
        )}
        {(isNeverPlaced || waits) && (
          <label className="row small" title="Its trials wait until such nodes join. The time budget runs meanwhile.">
            <input
              type="checkbox"
              className="check"
              checked={waits}
              onChange={(event) => setWaits(event.target.checked)}
            />
            wait for future nodes
          </label>
        )}
        <CheckStatus check={check} isBroken={document.errors.length > 0} />
        <button
          type="button"
          className="button primary"
          disabled={isBusy || check.state === "bad" || document.errors.length > 0}
          onClick={() => void create()}
        >
          <FlaskConical size={15} aria-hidden="true" /> Create
        </button>
      </PageHead>
      {error !== null && <Failure error={error} />}
      <div className="submit">
        <section className="card submit-form" aria-label="Form">
          <div className="body stack">
            <StudyForm document={document} mistakes={mistakes} change={setText} />
          </div>
        </section>
        <section className="card submit-text">
          <header>
            <h2 className="grow">study.yaml</h2>
            <span className="dimmer">
              also for <code>trainmaster study create</code>
            </span>
          </header>
          <Editor label="The study as YAML" text={text} change={setText} diagnostics={diagnostics} />
          <Mistakes check={check} />
        </section>
        {document.has("template") && <PlacementPreview spec={spec ?? null} />}
      </div>
    </div>
  );
}
