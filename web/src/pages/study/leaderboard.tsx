import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { automlQuery, isStudyOver } from "~/api/studies";
import type { Automl, StudyDetail } from "~/api/types";
import { Skeleton, Card, Failure, Sentence, TableBox } from "~/components/parts";
import { bestOfFamilies, formatPoint, formatScore } from "./automl";
import { pluralize, duration, number } from "~/lib/format";

const SHOWN = 12;

/** The AutoML leaderboard: all models, best first, and notes about the data. */
export function Leaderboard({ study, results }: { study: StudyDetail; results: number }) {
  const { data, error, isPending, refetch } = useQuery(automlQuery(study.id, results, isStudyOver(study.state)));
  const [isAll, setAll] = useState(false);
  const rows = data?.leaderboard ?? [];
  const shown = isAll ? rows : rows.slice(0, SHOWN);
  return (
    <Card
      title="Leaderboard"
      flush
      aside={data && <span className="dim small">{data.target ? `${data.task} of ${data.target}` : data.task}</span>}
    >
      {error !== null && !data ? (
        <div className="body">
          <Failure error={error} retry={() => void refetch()} />
        </div>
      ) : isPending ? (
        <div className="body">
          <Skeleton rows={5} height={28} />
        </div>
      ) : data === undefined || rows.length === 0 ? (
        <p className="body dim">No scores yet.</p>
      ) : (
        <>
          <Families study={study.id} found={data} />
          <TableBox label="Leaderboard">
            <table className="table leaderboard">
              <thead>
                <tr>
                  <th className="right">Rank</th>
                  <th>Family</th>
                  <th className="right">{data.metric}</th>
                  <th className="right">Duration</th>
                  <th>Parameters</th>
                </tr>
              </thead>
              <tbody>
                {shown.map((row) => (
                  <tr key={row.trial} className={row.is_whole ? "" : "dim"}>
                    <td className="num right">{row.rank}</td>
                    <td className="nowrap">
                      <span className={row.rank === 1 ? "strong" : ""}>{row.family}</span>
                      {!row.is_whole && <span className="dimmer small"> stopped early</span>}
                      <span className="row tight small replica-links">
                        <Link to="/studies/$study/trials" params={{ study: study.id }} search={{ trial: row.trial }}>
                          trial {row.trial}
                        </Link>
                        {row.job && (
                          <Link to="/jobs/$job" params={{ job: row.job }} className="dim">
                            its job
                          </Link>
                        )}
                      </span>
                    </td>
                    <td className={`num right nowrap${row.rank === 1 ? " strong" : ""}`} title={String(row.score)}>
                      {formatScore(row)}
                    </td>
                    <td className="num right nowrap dim">{row.seconds == null ? "–" : duration(row.seconds)}</td>
                    <td className="dim wrap small">{formatPoint(row) || "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </TableBox>
        </>
      )}
      {data && (
        <div className="leaderboard-foot stack tight">
          {rows.length > SHOWN && (
            <button type="button" className="button small" onClick={() => setAll(!isAll)}>
              {isAll ? `Show the first ${SHOWN}` : `Show all ${pluralize(rows.length, "model")}`}
            </button>
          )}
          {(data.notes ?? []).map((note) => (
            <p key={note} className="dim small">
              <Sentence text={note} />
            </p>
          ))}
          <p className="dimmer small">
            Validation scores. The top score is slightly optimistic, as the best of many; the test score of the winner
            is not.
          </p>
        </div>
      )}
    </Card>
  );
}

/** The best model of each family. */
function Families({ study, found }: { study: string; found: Automl }) {
  const best = bestOfFamilies(found);
  return (
    <ul className="leaderboard-families" aria-label="Best model of each family">
      {best.map(({ family, row, trialCount }) => (
        <li key={family}>
          <span className="dim small">{family}</span>
          {row === undefined ? (
            <span>–</span>
          ) : (
            <Link
              to="/studies/$study/trials"
              params={{ study }}
              search={{ trial: row.trial }}
              className={`num${row.rank === 1 ? " strong" : ""}`}
              aria-label={`The best of ${family}: ${number(row.score)}, trial ${row.trial}`}
            >
              {number(row.score)}
            </Link>
          )}
          <span className="dimmer small num">
            {row === undefined ? "no score yet" : pluralize(trialCount, "model")}
          </span>
        </li>
      ))}
    </ul>
  );
}

/** The unbiased score: of the registered model, on held-out rows. */
export function FinalTest({ study, results }: { study: StudyDetail; results: number }) {
  const { data } = useQuery(automlQuery(study.id, results, isStudyOver(study.state)));
  if (data === undefined) return null;
  const { test, metric, winner } = data;
  const others = Object.entries(test?.metrics ?? {}).filter(([name]) => name !== metric);
  return (
    <Card title="Test score of the winner">
      {test == null ? (
        <p className="dim">
          {winner == null
            ? "After the search the best model is retrained and tested once, on held-out rows."
            : ["succeeded", "failed", "cancelled", "expired"].includes(winner.job_state ?? "")
              ? "The final job reported no test score; see its log."
              : "The best model is being retrained and tested."}
        </p>
      ) : (
        <div className="stack tight">
          <p>
            <span className="strong num">
              {metric} {number(test.score)}
            </span>
            {test.low != null && test.high != null && (
              <>
                {" "}
                (95 % interval <span className="num">{number(test.low)}</span> to{" "}
                <span className="num">{number(test.high)}</span>)
              </>
            )}
            , on {pluralize(test.rows, "held-out row")}.
          </p>
          {test.hint && <p className="note warn">{test.hint}</p>}
          {others.length > 0 && (
            <dl className="facts">
              {others.map(([name, value]) => (
                <Figure key={name} name={name} value={value} />
              ))}
            </dl>
          )}
        </div>
      )}
    </Card>
  );
}

function Figure({ name, value }: { name: string; value: number }) {
  return (
    <>
      <dt>{name}</dt>
      <dd className="num" title={String(value)}>
        {number(value)}
      </dd>
    </>
  );
}
