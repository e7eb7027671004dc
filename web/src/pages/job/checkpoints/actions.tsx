import { useQueryClient } from "@tanstack/react-query";
import { Download, Package, Pin, PinOff, Play, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys } from "~/api/queries";
import type { Checkpoint } from "~/api/types";
import { Confirm } from "~/components/forms/dialogs";
import { toast } from "~/components/shell/toasts";
import { RegisterDialog } from "~/pages/model/register";
import { ResumeDialog } from "./resume";

interface ActionsProps {
  job: string;
  item: Checkpoint;
  /** Show labels next to the icons. */
  isWide?: boolean;
}

/** Actions on a checkpoint. */
export function CheckpointActions({ job, item, isWide = false }: ActionsProps) {
  const client = useQueryClient();
  const [isDeleting, setDeleting] = useState(false);
  const [isResuming, setResuming] = useState(false);
  const [isRegistering, setRegistering] = useState(false);
  const { path } = item;
  const name = path.split("/").at(-1) ?? path;
  const buttonClass = isWide ? "button small" : "button quiet icon small";
  const params = { path: { job }, query: { path } };
  // A visible label is the accessible name; an icon alone needs one.
  const named = (label: string) => (isWide ? {} : { "aria-label": label });
  const changed = () => client.invalidateQueries({ queryKey: keys.job(job) });
  const togglePin = async () => {
    try {
      await unwrap(
        item.is_pinned
          ? api.DELETE("/api/v1/jobs/{job}/checkpoints/kept", { params })
          : api.PUT("/api/v1/jobs/{job}/checkpoints/kept", { params }),
      );
      await changed();
      toast(item.is_pinned ? `Unpinned ${name}.` : `Pinned ${name}.`);
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), "bad");
    }
  };
  const remove = async () => {
    await unwrap(api.DELETE("/api/v1/jobs/{job}/checkpoints", { params }));
    await changed();
  };
  return (
    <span className={isWide ? "row wrapping tight" : "row end tight"}>
      {item.is_complete !== false && (
        <button
          type="button"
          className={isWide ? "button small primary" : buttonClass}
          title="Resume from here"
          {...named(`Resume from ${path}`)}
          onClick={() => setResuming(true)}
        >
          <Play size={14} aria-hidden="true" /> {isWide && "Resume from here"}
        </button>
      )}
      {item.is_complete !== false && (
        <button
          type="button"
          className={buttonClass}
          title="Register as model"
          {...named(`Register ${path} as model`)}
          onClick={() => setRegistering(true)}
        >
          <Package size={14} aria-hidden="true" /> {isWide && "Register as model"}
        </button>
      )}
      <a
        className={buttonClass}
        title="Download"
        href={`/api/v1/jobs/${encodeURIComponent(job)}/checkpoints/content?path=${encodeURIComponent(path)}`}
        download
        {...named(`Download ${path}`)}
      >
        <Download size={14} aria-hidden="true" /> {isWide && "Download"}
      </a>
      <button
        type="button"
        className={buttonClass}
        title={item.is_pinned ? "Unpin" : "Pin (retention never deletes it)"}
        {...named(item.is_pinned ? `Unpin ${path}` : `Pin ${path}`)}
        onClick={togglePin}
      >
        {item.is_pinned ? <PinOff size={14} aria-hidden="true" /> : <Pin size={14} aria-hidden="true" />}{" "}
        {isWide && (item.is_pinned ? "Unpin" : "Pin")}
      </button>
      <button
        type="button"
        className={`${buttonClass} danger`}
        title="Delete"
        {...named(`Delete ${path}`)}
        onClick={() => setDeleting(true)}
      >
        <Trash2 size={14} aria-hidden="true" /> {isWide && "Delete"}
      </button>
      <ResumeDialog job={job} path={path} step={item.step} isOpen={isResuming} close={() => setResuming(false)} />
      <RegisterDialog job={job} checkpoint={path} isOpen={isRegistering} close={() => setRegistering(false)} />
      <Confirm
        title={isDeleting ? `Delete ${name}?` : null}
        verb="Delete"
        act={remove}
        close={() => setDeleting(false)}
      >
        Its files are removed. Refused while it is pinned or a job resumes from it.
      </Confirm>
    </span>
  );
}
