import { AlertDialog } from "@base-ui/react/alert-dialog";
import { Dialog } from "@base-ui/react/dialog";
import { type ReactNode, useState } from "react";
import { ApiError } from "~/api/client";
import { Failure } from "~/components/parts";

interface ConfirmProps {
  /** The question; the dialog is open while it is not null. */
  title: string | null;
  children: ReactNode;
  verb: string;
  /** A failure keeps the dialog open and is shown in it. */
  act: () => Promise<unknown>;
  close: () => void;
}

/** Asks for confirmation before an irreversible action. */
export function Confirm({ title, children, verb, act, close }: ConfirmProps) {
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const run = async () => {
    setBusy(true);
    setError(null);
    try {
      await act();
      close();
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const onOpenChange = (open: boolean) => {
    if (!open) {
      setError(null);
      close();
    }
  };
  return (
    <AlertDialog.Root open={title !== null} onOpenChange={onOpenChange}>
      <AlertDialog.Portal>
        <AlertDialog.Backdrop className="backdrop" />
        <AlertDialog.Popup className="dialog">
          <div className="stack">
            <AlertDialog.Title render={<h2 />}>{title}</AlertDialog.Title>
            <AlertDialog.Description render={<div className="dim" />}>{children}</AlertDialog.Description>
            {error !== null && <Failure error={error} />}
            <div className="row dialog-actions">
              <AlertDialog.Close className="button">Keep</AlertDialog.Close>
              <button type="button" className="button danger solid" disabled={isBusy} onClick={run}>
                {verb}
              </button>
            </div>
          </div>
        </AlertDialog.Popup>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}

interface FormDialogProps {
  title: string;
  isOpen: boolean;
  close: () => void;
  verb: string;
  /** Resolves: the dialog closes (unless the value is false). Rejects: the error is shown in the dialog. */
  submit: (data: FormData) => Promise<unknown>;
  isWide?: boolean;
  /** A function gets a lookup of the API's error for each field. */
  children: ReactNode | ((errorOf: FieldErrorLookup) => ReactNode);
}

export type FieldErrorLookup = (field: string) => string | undefined;

/** Error message for each field of a rejected request; a nested field's error also counts for its parent. */
export function fieldErrorLookup(error: unknown): FieldErrorLookup {
  const problem = error instanceof ApiError ? error.problem : {};
  const errors = problem.errors ?? (problem.field ? [{ path: problem.field, message: problem.detail ?? "" }] : []);
  return (field) => {
    const found = errors.find(
      ({ path }) => path === field || path.replace(/^body\./, "") === field || path.startsWith(`${field}.`),
    );
    return found && (found.hint ? `${found.message} (${found.hint})` : found.message);
  };
}

export function FormDialog({ title, isOpen, close, verb, submit, isWide = false, children }: FormDialogProps) {
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const run = async (data: FormData) => {
    setBusy(true);
    setError(null);
    try {
      if ((await submit(data)) !== false) close();
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const onOpenChange = (open: boolean) => {
    if (!open) {
      setError(null);
      close();
    }
  };
  return (
    <Dialog.Root open={isOpen} onOpenChange={onOpenChange}>
      <Dialog.Portal>
        <Dialog.Backdrop className="backdrop" />
        <Dialog.Popup className={`dialog${isWide ? " wide" : ""}`}>
          <form
            className="stack"
            onSubmit={(event) => {
              event.preventDefault();
              void run(new FormData(event.currentTarget));
            }}
          >
            <Dialog.Title render={<h2 />}>{title}</Dialog.Title>
            {typeof children === "function" ? children(fieldErrorLookup(error)) : children}
            {error !== null && <Failure error={error} />}
            <div className="row dialog-actions">
              <Dialog.Close className="button">Cancel</Dialog.Close>
              <button type="submit" className="button primary" disabled={isBusy}>
                {verb}
              </button>
            </div>
          </form>
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
