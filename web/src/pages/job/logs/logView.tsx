import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useEffect, useRef, useState } from "react";
import type { LogLine } from "~/api/types";
import { spansOf } from "./ansi";
import { clockTime, localTime } from "~/lib/format";
import type { Finder } from "./highlight";
import type { ShownLine } from "./newestLines";

const LINE = 19; // px
const LONGEST = 4_000; // characters of a line that are drawn; the download has all
const HUES = 8;

interface LogViewProps {
  /** A line that keeps its position when older lines are added. */
  anchor: ShownLine | null;
  lines: readonly ShownLine[];
  isFollowing: boolean;
  setFollowing: (value: boolean) => void;
  isWrapped: boolean;
  isMany: boolean;
  marked: string | undefined;
}

/** The lines on screen. Scrolling up stops following; scrolling to the end resumes it. */
export function LogView({ anchor, lines, isFollowing, setFollowing, isWrapped, isMany, marked }: LogViewProps) {
  const box = useRef<HTMLDivElement>(null);
  const top = useRef(0);
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => box.current,
    estimateSize: () => LINE,
    overscan: 30,
    getItemKey: (i) => lines[i]?.key ?? -1 - i,
  });
  const count = lines.length;
  useEffect(() => {
    if (isFollowing && count > 0) rows.scrollToIndex(count - 1, { align: "end" });
  }, [isFollowing, count, rows]);
  const anchored = useRef<ShownLine | null>(null);
  useEffect(() => {
    if (anchor === null || anchored.current === anchor) return;
    const index = lines.findIndex(
      (line) =>
        line.offset === anchor.offset &&
        line.index === anchor.index &&
        line.role === anchor.role &&
        line.attempt === anchor.attempt,
    );
    // Lines before or after it are still to come: at the very end, following would start.
    if (index <= 0 || lines.length - index < 100) return;
    anchored.current = anchor;
    rows.scrollToIndex(index, { align: "start" });
  }, [anchor, lines, rows]);
  const onScroll = () => {
    const element = box.current;
    if (element === null) return;
    const isUp = element.scrollTop < top.current - 2;
    top.current = element.scrollTop;
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < LINE * 2;
    if (isFollowing && isUp && !isAtEnd) setFollowing(false);
    else if (!isFollowing && isAtEnd && !isUp) setFollowing(true);
  };
  const finder = useFinder(marked);
  return (
    <div
      className={`log-view${isWrapped ? " wrapped" : ""}`}
      ref={box}
      onScroll={onScroll}
      tabIndex={0}
      role="log"
      aria-label="Log"
      aria-live="off"
    >
      <div className="log-lines" style={{ height: rows.getTotalSize() }}>
        {rows.getVirtualItems().map((item) => {
          const line = lines[item.index];
          return line ? (
            <div
              key={item.key}
              data-index={item.index}
              ref={isWrapped ? rows.measureElement : undefined}
              className="log-line"
              style={{ transform: `translateY(${item.start}px)` }}
            >
              <Line line={line} isMany={isMany} finder={finder} />
            </div>
          ) : null;
        })}
      </div>
    </div>
  );
}

/** The compiled search expression; `null` until the RE2 module is loaded, which only a search needs. */
function useFinder(marked: string | undefined): Finder | null {
  const [compiled, setCompiled] = useState<{ expression: string; find: Finder | null } | null>(null);
  useEffect(() => {
    if (!marked) return;
    let isOld = false;
    void import("./highlight").then(({ compileFinder }) => {
      if (!isOld) setCompiled({ expression: marked, find: compileFinder(marked) });
    });
    return () => {
      isOld = true;
    };
  }, [marked]);
  return compiled !== null && compiled.expression === marked ? compiled.find : null;
}

const Line = memo(function Line({ line, isMany, finder }: { line: LogLine; isMany: boolean; finder: Finder | null }) {
  const text = line.text.length > LONGEST ? line.text.slice(0, LONGEST) : line.text;
  const spans = spansOf(text);
  return (
    <>
      <span className="log-at" title={line.at ? localTime(line.at) : undefined}>
        {line.at ? clockTime(line.at) : ""}
      </span>
      {isMany && (
        <span
          className={`log-source hue-${hueOf(line)}`}
          title={line.rank === null || line.rank === undefined ? undefined : `rank ${line.rank}`}
        >
          {line.role}-{line.index}
          {line.local_rank ? `·${line.local_rank}` : ""}
        </span>
      )}
      <span className={`log-text${severityClass(text)}`}>
        {spans.map((span, i) => (
          <span key={i} className={span.className}>
            {finder === null ? span.text : <Marked text={span.text} finder={finder} />}
          </span>
        ))}
        {line.text.length > LONGEST && (
          <em className="dimmer"> … {(line.text.length - LONGEST).toLocaleString()} more characters in the download</em>
        )}
      </span>
    </>
  );
});

/** CSS class for lines that look like errors or warnings. */
function severityClass(text: string): string {
  if (/\\b(error|exception|traceback|fatal)\\b/i.test(text)) return " is-error";
  return /\\bwarn(ing)?\\b/i.test(text) ? " is-warning" : "";
}

function Marked({ text, finder }: { text: string; finder: Finder }) {
  const parts = [];
  let from = 0;
  for (const [begin, end] of finder(text)) {
    parts.push(text.slice(from, begin), <mark key={begin}>{text.slice(begin, end)}</mark>);
    from = end;
  }
  return (
    <>
      {parts}
      {text.slice(from)}
    </>
  );
}

function hueOf(line: LogLine): number {
  let hash = line.index;
  for (const character of line.role) hash = (hash * 31 + character.charCodeAt(0)) | 0;
  return Math.abs(hash) % HUES;
}
