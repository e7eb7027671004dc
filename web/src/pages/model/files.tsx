import { useQuery } from "@tanstack/react-query";
import { Download, File, FolderOpen } from "lucide-react";
import { versionFileHref, versionFilesQuery } from "~/api/models";
import type { ModelVersion } from "~/api/types";
import { Skeleton, Empty, Failure, TableBox } from "~/components/parts";
import { bytes } from "~/lib/format";

/** The files of a version. */
export function VersionFiles({ version }: { version: ModelVersion }) {
  const { project, model, version: number } = version;
  const isReady = version.state === "ready";
  const { data, error, isPending, refetch } = useQuery(versionFilesQuery(project, model, number, isReady));
  const files = data?.items ?? [];
  return (
    <section className="card" aria-label="Files">
      <header>
        <h2 className="grow">Files</h2>
        {data && (
          <span className="dimmer num">
            {data.next_cursor
              ? `the first ${files.length.toLocaleString()} of ${(version.file_count ?? 0).toLocaleString()}`
              : files.length.toLocaleString()}
          </span>
        )}
      </header>
      {!isReady ? (
        <Empty icon={FolderOpen} title={version.state === "failed" ? "No files" : "Not copied yet"} />
      ) : isPending ? (
        <div className="body">
          <Skeleton rows={4} />
        </div>
      ) : error !== null ? (
        <div className="body">
          <Failure error={error} retry={() => void refetch()} />
        </div>
      ) : (
        <TableBox label="Files">
          <table className="table">
            <thead>
              <tr>
                <th>Path</th>
                <th className="right">Size</th>
                <th>SHA-256</th>
                <th>
                  <span className="only-read">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {files.map((file) => (
                <tr key={file.path}>
                  <td className="wrap">
                    <span className="row">
                      <File size={15} className="dimmer" aria-hidden="true" />
                      <span className="mono">{file.path}</span>
                    </span>
                  </td>
                  <td className="right num nowrap">{bytes(file.size_bytes)}</td>
                  <td className="mono dimmer nowrap" title={file.sha256}>
                    {file.sha256.slice(0, 12)}…
                  </td>
                  <td className="right">
                    <a
                      className="button quiet small"
                      href={versionFileHref(project, model, number, file.path)}
                      download={file.path.split("/").at(-1)}
                      aria-label={`Download ${file.path}`}
                    >
                      <Download size={14} aria-hidden="true" />
                    </a>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </TableBox>
      )}
    </section>
  );
}
