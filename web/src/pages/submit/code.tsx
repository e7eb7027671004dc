import { FolderUp, LoaderCircle, Package, X } from "lucide-react";
import { useRef, useState } from "react";
import { uploadArchive } from "~/api/archives";
import { bytes, counted } from "~/lib/format";
import type { Packed } from "./packFolder";

interface CodeProps {
  /** What the spec states now. */
  digest: string;
  isDisabled: boolean;
  set: (digest: string) => void;
}

interface Sent {
  digest: string;
  words: string;
}

/** Packs a folder in the browser, or takes an archive, and sends it; the spec then names it by its digest. */
export function Code({ digest, isDisabled, set }: CodeProps) {
  const folder = useRef<HTMLInputElement>(null);
  const archive = useRef<HTMLInputElement>(null);
  const [doing, setDoing] = useState("");
  const [wrong, setWrong] = useState("");
  const [sent, setSent] = useState<Sent | null>(null);

  const take = async (pack: () => Promise<Packed>) => {
    setWrong("");
    setDoing("packing");
    try {
      const made = await pack();
      setDoing("sending");
      await uploadArchive(made.blob, made.digest, (there) =>
        setDoing(`sending, ${bytes(there)} of ${bytes(made.blob.size)}`),
      );
      const files = made.files === null ? "" : `${counted(made.files, "file")}, `;
      setSent({ digest: made.digest, words: `${made.name} (${files}${bytes(made.blob.size)})` });
      set(made.digest);
    } catch (error) {
      setWrong(error instanceof Error ? error.message : String(error));
    } finally {
      setDoing("");
    }
  };
  const chose = (input: HTMLInputElement, isFolder: boolean) => {
    const files = [...(input.files ?? [])];
    input.value = ""; // so that the same choice is a change the next time, too
    const [first] = files;
    if (first === undefined) return;
    void take(async () => {
      const { packFolder, packedFile } = await import("./packFolder");
      return isFolder ? packFolder(files) : packedFile(first);
    });
  };
  const isBusy = doing !== "";
  const told = sent !== null && sent.digest === digest ? sent.words : digest;
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
        <span className="row code-told" role="status">
          {isBusy ? (
            <>
              <LoaderCircle size={14} className="spin" aria-hidden="true" /> {doing}
            </>
          ) : (
            digest && (
              <>
                <span className="cut" title={digest}>
                  {told}
                </span>
                <button
                  type="button"
                  className="button quiet small"
                  aria-label="Without this code"
                  onClick={() => set("")}
                >
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
        onChange={(event) => chose(event.currentTarget, true)}
      />
      <input
        ref={archive}
        type="file"
        hidden
        accept=".tar.gz,.tgz,application/gzip"
        aria-label="Archive with the code"
        onChange={(event) => chose(event.currentTarget, false)}
      />
      {wrong ? (
        <span className="wrong" role="alert">
          {wrong}
        </span>
      ) : (
        <span className="hint">Unpacked at /data. What .gitignore and .trainmasterignore name stays here.</span>
      )}
    </div>
  );
}
