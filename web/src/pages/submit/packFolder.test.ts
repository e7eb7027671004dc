import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { selectFiles, IGNORED, packedFile, packFolder } from "./packFolder";

const source = (path: string, text = path) => ({ path, file: new Blob([text]) });
/** As a browser hands out the files of a chosen folder. */
const file = (path: string, text: string) =>
  Object.defineProperty(new File([text], path.split("/").at(-1) ?? ""), "webkitRelativePath", {
    value: `project/${path}`,
  });

describe("a folder's files", () => {
  it("are ignored as on the command line", () => {
    const packing = readFileSync("../sdk/trainmaster/packing.py", "utf8");
    const listed = packing.match(/DEFAULT_IGNORES[^(]*\(([^)]*)\)/)?.[1]?.match(/"[^"]+"/g) ?? [];
    expect(listed.map((word) => word.slice(1, -1))).toEqual(IGNORED);
  });
  it("are filtered by .gitignore and then .trainmasterignore", async () => {
    const all = [
      source("train.py"),
      source(".git/config"),
      source("data/a.bin"),
      source("data/b.bin"),
      source("lib/__pycache__/x.pyc"),
      source(".gitignore", "data/\n*.log\n"),
      source(".trainmasterignore", "!data/\ndata/b.bin\n"),
      source("run.log"),
    ];
    expect((await selectFiles(all)).map((one) => one.path)).toEqual([
      ".gitignore",
      ".trainmasterignore",
      "data/a.bin",
      "train.py",
    ]);
  });
  it("must exist, and have a maximum size", async () => {
    await expect(selectFiles([source(".git/config")])).rejects.toThrow("no file to pack");
    const large = { path: "weights.bin", file: { size: 2 ** 30 } as Blob };
    await expect(selectFiles([source("a.py"), large])).rejects.toThrow(/1025 MiB.*largest is weights.bin/);
  });
});

describe("an archive", () => {
  it("is reproducible for any order and age of files", async () => {
    const long = `${"deep/".repeat(40)}x.py`;
    const one = await packFolder([file("run.sh", "#!/bin/sh\n"), file(long, "1")]);
    const other = await packFolder([file(long, "1"), file("run.sh", "#!/bin/sh\n")]);
    expect(one.name).toBe("project");
    expect(one.files).toBe(2);
    expect(one.digest).toMatch(/^sha256:[0-9a-f]{64}$/);
    expect(other.digest).toBe(one.digest);
    const again = await packedFile(new File([one.blob], "project.tar.gz"));
    expect([again.digest, again.files]).toEqual([one.digest, null]);
  });
  it("must be a .tar.gz", async () => {
    await expect(packedFile(new File(["PK"], "code.zip"))).rejects.toThrow("code.zip is no .tar.gz");
  });
});
