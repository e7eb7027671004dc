import { Link } from "@tanstack/react-router";
import type { Holder, Node } from "~/api/types";
import { number } from "~/lib/format";
import { allocatable, gpuCount } from "~/lib/capacity";

const HUES = 8;

/** A GPU of a node. Several holders: each has a part of it. */
export type Device = { key: string; model: string; holders: Holder[] };

/** Each job its colour, the same on every node. */
export function hueOf(job: string): number {
  let hash = 0;
  for (const character of job) hash = (hash * 31 + character.charCodeAt(0)) | 0;
  return Math.abs(hash) % HUES;
}

/** The GPUs of a node, and who has them. */
export function devicesOf(node: Node, holders: readonly Holder[]): Device[] {
  const all = allocatable(node);
  const byGpu = new Map<string, Holder[]>();
  for (const holder of holders) {
    for (const gpu of holder.gpus ?? []) byGpu.set(gpu, [...(byGpu.get(gpu) ?? []), holder]);
  }
  const told = (node.gpus ?? []) as { index?: number; id?: string; uuid?: string; model?: string }[];
  const devices = Array.from({ length: gpuCount(all) }, (_, i) => {
    const one = told[i];
    const names = [one?.id, one?.uuid, one?.index === undefined ? undefined : String(one.index), String(i)];
    const found = names.find((name) => name !== undefined && byGpu.has(name));
    return {
      key: one?.uuid ?? one?.id ?? String(i),
      model: one?.model ?? Object.keys(all.gpus)[0] ?? "GPU",
      holders: found === undefined ? [] : (byGpu.get(found) ?? []),
    };
  });
  // Engines that hand out devices themselves do not say which: the held ones stand first.
  const named = new Set(devices.flatMap((device) => device.holders));
  const rest = holders
    .filter((holder) => !named.has(holder))
    .flatMap((holder) => (holder.gpus ?? []).map(() => holder));
  for (const device of devices) {
    const next = device.holders.length === 0 ? rest.shift() : undefined;
    if (next) device.holders = [next];
  }
  return devices;
}

export function Slot({ name, device }: { name: string; device: Device }) {
  const what = `${name}, ${device.model}`;
  const taken = device.holders.reduce((sum, holder) => sum + (holder.gpu_part ?? 1), 0);
  const [first] = device.holders;
  if (first === undefined) return <Free words={`${what}: free`} />;
  if (typeof first.gpu_part !== "number") return <Held words={`${what}: ${whose(first)}`} holder={first} />;
  return (
    <span className="gpu-parts">
      {device.holders.map((holder, i) => (
        <Held
          key={`${holder.job_id ?? ""} ${holder.role ?? ""}-${holder.index ?? i}`}
          words={`${what}: ${number(holder.gpu_part ?? 1)} of it ${whose(holder)}`}
          holder={holder}
          share={holder.gpu_part ?? 1}
        />
      ))}
      {taken < 0.9995 && <Free words={`${what}: ${number(1 - taken)} of it free`} share={1 - taken} />}
    </span>
  );
}

const whose = (holder: Holder): string =>
  holder.job ? `${holder.job} ${holder.role ?? ""}-${holder.index ?? 0}` : "a job of another project";

function Held({ words, holder, share }: { words: string; holder: Holder; share?: number }) {
  const look = { className: `gpu hue-${hueOf(holder.job_id ?? "")}`, title: words, style: { flexGrow: share } };
  if (!holder.job_id) return <span {...look} role="img" aria-label={words} />;
  return <Link to="/jobs/$job" params={{ job: holder.job_id }} {...look} aria-label={words} />;
}

function Free({ words, share }: { words: string; share?: number }) {
  return <span className="gpu free" title={words} role="img" aria-label={words} style={{ flexGrow: share }} />;
}
