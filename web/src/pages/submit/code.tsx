import { FolderUp, LoaderCircle, Package, X } from "lucide-react";
import { useRef, useState } from "react";
import { uploadArchive } from "~/api/archives";
import { bytes, pluralize } from "~/lib/format";
import type { Packed } from "./packFolder";

interface CodeProps {
  /** The digest in the spec. */
  digest: string;
  isDisabled: boolean;
  set: (digest: string) => void;
}

interface Sent {
  digest: string;
  label: string;
}

/** Packs a folder in the browser, or takes an archive, and uploads it; the spec refers to it by its digest. */
export function Code({ digest, isDisabled, set }: CodeProps) {
  const folder = useRef<HTMLInputElement>(null);
  const archive = useRef<HTMLInputElement>(null);
  const [progress, setProgress] = useState("");
  const [error, setError] = useState("");
  const [sent, setSent] = useState<Sent | null>(null);

  const take = async (pack: () => Promise<Packed>) => {
    setError("");
    setProgress("packing");
    try {
      const packed = await pack();
      setProgress("uploading");
      await uploadArchive(packed.blob, packed.digest, (uploaded) =>
        setProgress(`uploading, ${bytes(uploaded)} of ${bytes(packed.blob.size)}`),
      );
      const files = packed.files === null ? "" : `${pluralize(packed.files, "file")}, `;
      setSent({ digest: packed.digest, label: `${packed.name} (${files}${bytes(packed.blob.size)})` });
      set(packed.digest);
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
    } finally {
      setProgress("");
    }
  };
  const onChosen = (input: HTMLInputElement, isFolder: boolean) => {
    const files = [...(input.files ?? [])];
    input.value = ""; // so that choosing the same file again fires a change event
    const [first] = files;
    if (first === undefined) return;
    void take(async () => {
      const { packFolder, packedFile } = await import("./packFolder");
      return isFolder ? packFolder(files) : packedFile(first);
    });
  };
  const isBusy = progress !== "";
  const label = sent !== null && sent.digest === digest ? sent.label : digest;
  return (
    <div className="field">
      <span className="label">Code</span>
      <div className="row wrapping">
        <button
          type="button"
          className="button small"
          disabled={isBusy || isDisabled}
          onClick={() => folder.current?.click()}
        >
          <FolderUp size={14} aria-hidden="true" /> Choose a folder
        </button>
        <button
          type="button"
          className="button small"
          disabled={isBusy || isDisabled}
          onClick={() => archive.current?.click()}
        >
          <Package size={14} aria-hidden="true" /> Choose a .tar.gz
        </button>
        <span className="row code-name" role="status">
          {isBusy ? (
            <>
              <LoaderCircle size={14} className="spin" aria-hidden="true" /> {progress}
            </>
          ) : (
            digest && (
              <>
                <span className="cut" title={digest}>
                  {label}
                </span>
                <button type="button" className="button quiet small" aria-label="Remove code" onClick={() => set("")}>
                  <X size={14} aria-hidden="true" />
                </button>
              </>
            )
          )}
        </span>
      </div>
      <input
        ref={(input) => {
          folder.current = input;
          input?.setAttribute("webkitdirectory", "");
        }}
        type="file"
        hidden
        aria-label="Folder with the code"
        onChange={(event) => onChosen(event.currentTarget, true)}
      />
      <input
        ref={archive}
        type="file"
        hidden
        accept=".tar.gz,.tgz,application/gzip"
        aria-label="Archive with the code"
        onChange={(event) => onChosen(event.currentTarget, false)}
      />
      {error ? (
        <span className="wrong" role="alert">
          {error}
        </span>
      ) : (
        <span className="hint">
          Unpacked at /data. Files matched by .gitignore and .trainmasterignore are left out.
        </span>
      )}
    </div>
  );
}
