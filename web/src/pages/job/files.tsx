import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { Download, File, Folder, FolderOpen } from "lucide-react";
import { filesQuery, jobQuery } from "~/api/queries";
import { Skeleton, Empty, Failure } from "~/components/parts";
import { Ago } from "~/components/time";
import { bytes } from "~/lib/format";

const route = getRouteApi("/shell/jobs/$job/files");

export function fileHref(job: string, path: string): string {
  return `/api/v1/jobs/${encodeURIComponent(job)}/files/content?path=${encodeURIComponent(path)}`;
}

export function Files() {
  const { job } = route.useParams();
  const { path = "" } = route.useSearch();
  const { data: detail } = useQuery(jobQuery(job));
  const { data, error, isPending, refetch } = useQuery(filesQuery(job, path));
  const parts = path.split("/").filter(Boolean);
  const entries = [...(data?.items ?? [])].sort((a, b) => Number(b.is_dir) - Number(a.is_dir));
  return (
    <div className="page-body">
      <section className="card">
        <header>
          <nav aria-label="Folder" className="crumbs grow mono">
            <Link from="/jobs/$job" to="/jobs/$job/files">
              {detail?.output || "output"}
            </Link>
            {parts.map((part, i) => (
              <span key={parts.slice(0, i + 1).join("/")} className="row tight">
                /
                <Link from="/jobs/$job" to="/jobs/$job/files" search={{ path: parts.slice(0, i + 1).join("/") }}>
                  {part}
                </Link>
              </span>
            ))}
          </nav>
          {data && (
            <span className="dimmer num">
              {data.next_cursor ? "the first " : ""}
              {entries.length.toLocaleString()} entries
            </span>
          )}
        </header>
        {isPending ? (
          <div className="body">
            <Skeleton rows={6} />
          </div>
        ) : error !== null ? (
          <div className="body">
            <Failure error={error} retry={() => void refetch()} />
          </div>
        ) : entries.length === 0 ? (
          <Empty icon={FolderOpen} title="No files yet">
            <p>
              Files written under <code>/data/output</code> appear here while the job runs.
            </p>
          </Empty>
        ) : (
          <div className="table-box">
            <table className="table">
              <thead>
                <tr>
                  <th>Name</th>
                  <th className="right">Size</th>
                  <th>Modified</th>
                  <th>
                    <span className="only-read">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {entries.map((entry) => {
                  const name = entry.path.split("/").at(-1) ?? entry.path;
                  return (
                    <tr key={entry.path}>
                      <td className="wrap">
                        <span className="row">
                          {entry.is_dir ? (
                            <Folder size={15} className="tone-blue" aria-hidden="true" />
                          ) : (
                            <File size={15} className="dimmer" aria-hidden="true" />
                          )}
                          {entry.is_dir ? (
                            <Link
                              from="/jobs/$job"
                              to="/jobs/$job/files"
                              search={{ path: entry.path }}
                              className="mono"
                            >
                              {name}
                            </Link>
                          ) : (
                            <span className="mono">{name}</span>
                          )}
                          {entry.is_link && <span className="tag">link</span>}
                        </span>
                      </td>
                      <td className="right num dim nowrap">{entry.is_dir ? "" : bytes(entry.size_bytes)}</td>
                      <td className="dim">
                        <Ago at={entry.modified_at} />
                      </td>
                      <td className="right">
                        {!entry.is_dir && (
                          <a
                            className="button quiet small"
                            href={fileHref(job, entry.path)}
                            download={name}
                            aria-label={`Download ${name}`}
                          >
                            <Download size={14} aria-hidden="true" />
                          </a>
                        )}
                      </td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
        )}
      </section>
    </div>
  );
}
