import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { CircleAlert, LoaderCircle, Send } from "lucide-react";
import { useRef, useState } from "react";
import { predict, endpointQuery, predictHref, type PredictionAnswer } from "~/api/endpoints";
import { Card, CopyButton, Failure, Field } from "~/components/parts";
import { number } from "~/lib/format";
import { curlOf, jsonError } from "./predictRequest";

const route = getRouteApi("/shell/endpoints/$project/$endpoint");
const FIRST = `{
  "instances": [
    [0.1, 0.2, 0.3]
  ]
}`;

/** Sends a request to the endpoint and shows the response. */
export function TryIt() {
  const { project, endpoint: name } = route.useParams();
  const { data: endpoint } = useQuery(endpointQuery(project, name));
  const [text, setText] = useState(() => savedBody(project, name) || FIRST);
  const [deployment, setDeployment] = useState("");
  const [answer, setAnswer] = useState<PredictionAnswer | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const request = useRef<AbortController | null>(null);
  const deployments = endpoint?.deployments ?? [];
  const bodyError = jsonError(text);
  const replica = deployments.flatMap((each) => each.replica_list ?? []).find((each) => each.id === answer?.replica);
  const run = async () => {
    if (isBusy || bodyError) return;
    saveBody(project, name, text);
    setBusy(true);
    setError(null);
    request.current = new AbortController();
    try {
      setAnswer(await predict(project, name, deployment, text, request.current.signal));
    } catch (failure) {
      setAnswer(null);
      if (!request.current.signal.aborted) setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <div className="page-body">
      <div className="columns even">
        <Card
          title="Request"
          aside={
            deployments.length > 1 && (
              <select
                className="input auto"
                aria-label="Deployed model"
                value={deployment}
                onChange={(event) => setDeployment(event.target.value)}
              >
                <option value="">by traffic</option>
                {deployments.map((each) => (
                  <option key={each.id}>{each.name}</option>
                ))}
              </select>
            )
          }
        >
          <div className="stack">
            <Field label="JSON body" error={bodyError} hint="Press Ctrl-Enter to send.">
              {(props) => (
                <textarea
                  {...props}
                  className="input mono try-text"
                  rows={14}
                  spellCheck={false}
                  value={text}
                  onChange={(event) => setText(event.target.value)}
                  onKeyDown={(event) => {
                    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void run();
                  }}
                />
              )}
            </Field>
            <div className="row wrapping">
              <button
                type="button"
                className="button primary"
                disabled={isBusy || bodyError !== undefined}
                onClick={() => void run()}
              >
                <Send size={15} aria-hidden="true" /> Send
              </button>
              {isBusy && (
                <>
                  <span className="state tone-grey" role="status">
                    <LoaderCircle size={15} className="spin" aria-hidden="true" /> waiting for the response
                  </span>
                  <button type="button" className="button quiet small" onClick={() => request.current?.abort()}>
                    Cancel
                  </button>
                </>
              )}
              <span className="grow" />
              <CopyButton
                text={curlOf(`${window.location.origin}${predictHref(project, name, deployment || undefined)}`, text)}
                label="Copy as curl"
              />
            </div>
          </div>
        </Card>
        <section className="card" aria-label="Response">
          <header>
            <h2 className="grow">Response</h2>
            {answer && (
              <span className="num dim" role="status">
                <span className={answer.status < 400 ? "tone-green" : "tone-red"}>{answer.status}</span> in{" "}
                {number(answer.durationMs)} ms
              </span>
            )}
            {answer && <CopyButton text={answer.text} />}
          </header>
          <div className="body stack">
            {error !== null && <Failure error={error} />}
            {answer !== null && answer.status >= 400 && (
              <div className="note bad" role="alert">
                <CircleAlert size={16} aria-hidden="true" />
                <div>The model returned an error.</div>
              </div>
            )}
            {answer !== null ? (
              <>
                <pre className="code try-answer" tabIndex={0} aria-label="Response body">
                  {answer.text}
                </pre>
                <p className="dimmer small num">
                  From {answer.deployment}, revision {answer.revision},{" "}
                  {replica ? (
                    <Link to="/jobs/$job/logs" params={{ job: replica.job }} className="inline-link">
                      its log
                    </Link>
                  ) : (
                    <span className="mono">{answer.replica}</span>
                  )}
                  . Time as measured by this browser, from sending to the last byte.
                </p>
              </>
            ) : (
              error === null && <p className="dim">The response and its duration appear here.</p>
            )}
          </div>
        </section>
      </div>
    </div>
  );
}

const keyOf = (project: string, name: string) => `try ${project}/${name}`;

function savedBody(project: string, name: string): string {
  try {
    return sessionStorage.getItem(keyOf(project, name)) ?? "";
  } catch {
    return "";
  }
}

function saveBody(project: string, name: string, text: string): void {
  try {
    sessionStorage.setItem(keyOf(project, name), text);
  } catch {
    // No storage, or the text is too large for it: it lasts as long as the page.
  }
}
