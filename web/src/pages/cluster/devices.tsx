import { Link } from "@tanstack/react-router";
import type { Holder, Node } from "~/api/types";
import { number } from "~/lib/format";
import { allocatable, gpuCount } from "~/lib/capacity";

const HUES = 8;

/** A GPU of a node. With several holders each has a part of it. */
export type Device = { key: string; model: string; holders: Holder[] };

/** A job's colour, the same on every node. */
export function hueOf(job: string): number {
  let hash = 0;
  for (const character of job) hash = (hash * 31 + character.charCodeAt(0)) | 0;
  return Math.abs(hash) % HUES;
}

/** The GPUs of a node with their holders. */
export function devicesOf(node: Node, holders: readonly Holder[]): Device[] {
  const all = allocatable(node);
  const byGpu = new Map<string, Holder[]>();
  for (const holder of holders) {
    for (const gpu of holder.gpus ?? []) byGpu.set(gpu, [...(byGpu.get(gpu) ?? []), holder]);
  }
  const reported = (node.gpus ?? []) as { index?: number; id?: string; uuid?: string; model?: string }[];
  const devices = Array.from({ length: gpuCount(all) }, (_, i) => {
    const gpu = reported[i];
    const names = [gpu?.id, gpu?.uuid, gpu?.index === undefined ? undefined : String(gpu.index), String(i)];
    const found = names.find((name) => name !== undefined && byGpu.has(name));
    return {
      key: gpu?.uuid ?? gpu?.id ?? String(i),
      model: gpu?.model ?? Object.keys(all.gpus)[0] ?? "GPU",
      holders: found === undefined ? [] : (byGpu.get(found) ?? []),
    };
  });
  // Engines that assign devices themselves do not report which: fill the first ones.
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
  const label = `${name}, ${device.model}`;
  const usedShare = device.holders.reduce((sum, holder) => sum + (holder.gpu_part ?? 1), 0);
  const [first] = device.holders;
  if (first === undefined) return <FreeSlot label={`${label}: free`} />;
  if (typeof first.gpu_part !== "number")
    return <AllocatedSlot label={`${label}: ${holderName(first)}`} holder={first} />;
  return (
    <span className="gpu-parts">
      {device.holders.map((holder, i) => (
        <AllocatedSlot
          key={`${holder.job_id ?? ""} ${holder.role ?? ""}-${holder.index ?? i}`}
          label={`${label}: ${number(holder.gpu_part ?? 1)} of it ${holderName(holder)}`}
          holder={holder}
          share={holder.gpu_part ?? 1}
        />
      ))}
      {usedShare < 0.9995 && <FreeSlot label={`${label}: ${number(1 - usedShare)} of it free`} share={1 - usedShare} />}
    </span>
  );
}

const holderName = (holder: Holder): string =>
  holder.job ? `${holder.job} ${holder.role ?? ""}-${holder.index ?? 0}` : "a job of another project";

function AllocatedSlot({ label, holder, share }: { label: string; holder: Holder; share?: number }) {
  const attributes = { className: `gpu hue-${hueOf(holder.job_id ?? "")}`, title: label, style: { flexGrow: share } };
  if (!holder.job_id) return <span {...attributes} role="img" aria-label={label} />;
  return <Link to="/jobs/$job" params={{ job: holder.job_id }} {...attributes} aria-label={label} />;
}

function FreeSlot({ label, share }: { label: string; share?: number }) {
  return <span className="gpu free" title={label} role="img" aria-label={label} style={{ flexGrow: share }} />;
}
