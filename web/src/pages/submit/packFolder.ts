import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import ignore from "ignore";
import { packTar } from "modern-tar";

/* Packs a folder like `trainmaster submit --code`. Without crypto.subtle: browsers have it only in
 * secure contexts (TLS), and a team's platform may be served without TLS. */

// The same as on the command line.
export const IGNORED = [
  ".git/",
  ".hg/",
  ".svn/",
  ".venv/",
  "venv/",
  "__pycache__/",
  "*.pyc",
  ".mypy_cache/",
  ".pytest_cache/",
  ".ruff_cache/",
  ".ipynb_checkpoints/",
  ".tox/",
  ".nox/",
  ".idea/",
  ".vscode/",
  ".DS_Store",
  "node_modules/",
  "*.egg-info/",
  ".trainmaster/",
  ".env",
];
// Later files override earlier ones.
const IGNORE_FILES = [".gitignore", ".trainmasterignore"];
const MOST_BYTES = 128 * 2 ** 20; // the page holds the archive in memory

/** A file of a folder: `path` is relative to the folder, with slashes. */
export interface Source {
  path: string;
  file: Blob;
}

export interface Packed {
  name: string;
  blob: Blob;
  /** `sha256:` and 64 hexadecimal digits. */
  digest: string;
  /** Number of files; `null` for an existing archive. */
  files: number | null;
}

/** The files of a chosen folder, with paths relative to it. */
export function sourcesOf(files: Iterable<File>): { name: string; sources: Source[] } {
  let name = "";
  const sources = [...files].map((file) => {
    const [folder, ...rest] = (file.webkitRelativePath || file.name).split("/");
    name ||= folder ?? "";
    return { path: rest.join("/") || file.name, file };
  });
  return { name, sources };
}

/** The files to pack, sorted by path. Throws an `Error` if there are none, or if they are too large. */
export async function selectFiles(sources: readonly Source[]): Promise<Source[]> {
  const rules = ignore().add(IGNORED);
  for (const name of IGNORE_FILES) {
    const found = sources.find((source) => source.path === name);
    if (found) rules.add(await found.file.text());
  }
  const included = sources.filter((source) => !rules.ignores(source.path));
  if (included.length === 0) throw new Error("The folder has no file to pack: it is empty, or all files are ignored.");
  const size = included.reduce((sum, source) => sum + source.file.size, 0);
  if (size > MOST_BYTES) {
    const [largest] = [...included].sort((a, b) => b.file.size - a.file.size);
    throw new Error(
      `The folder's files have ${mebibytes(size)} MiB; the limit here is ${mebibytes(MOST_BYTES)} MiB. Exclude files ` +
        `with .trainmasterignore (the largest is ${largest?.path}), or submit with the command line.`,
    );
  }
  return included.sort((a, b) => (a.path < b.path ? -1 : 1));
}

const mebibytes = (count: number): number => Math.ceil(count / 2 ** 20);

export async function packFolder(files: Iterable<File>): Promise<Packed> {
  const { name, sources } = sourcesOf(files);
  const included = await selectFiles(sources);
  const entries = await Promise.all(
    included.map(async ({ path, file }) => {
      const body = new Uint8Array(await file.arrayBuffer());
      const isScript = body[0] === 35 && body[1] === 33; // `#!`: browsers do not expose the executable bit
      return { header: { name: path, size: body.length, mode: isScript ? 0o755 : 0o644, mtime: new Date(0) }, body };
    }),
  );
  const tar = await packTar(entries);
  const compressed = new Blob([tar as Uint8Array<ArrayBuffer>]).stream().pipeThrough(new CompressionStream("gzip"));
  const blob = await new Response(compressed).blob();
  return { name, blob, digest: await digestOf(blob), files: included.length };
}

/** An existing `.tar.gz`. Throws an `Error` for other files. */
export async function packedFile(file: File): Promise<Packed> {
  const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  if (head[0] !== 0x1f || head[1] !== 0x8b)
    throw new Error(`${file.name} is no .tar.gz archive; choose one, or the folder.`);
  return { name: file.name, blob: file, digest: await digestOf(file), files: null };
}

async function digestOf(blob: Blob): Promise<string> {
  const hash = sha256.create();
  for (let start = 0; start < blob.size; start += 2 ** 22) {
    hash.update(new Uint8Array(await blob.slice(start, start + 2 ** 22).arrayBuffer()));
  }
  return `sha256:${bytesToHex(hash.digest())}`;
}
