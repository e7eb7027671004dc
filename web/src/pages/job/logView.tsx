import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useEffect, useMemo, useRef } from "react";
import type { LogLine } from "~/api/types";
import { spansOf } from "~/lib/ansi";
import { clockTime, localTime } from "~/lib/format";

const LINE = 19; // px
const LONGEST = 4_000; // characters of a line that are drawn; a download has all
const HUES = 8;

interface LogViewProps {
  lines: readonly LogLine[];
  isFollowing: boolean;
  setFollowing: (value: boolean) => void;
  isWrapped: boolean;
  isMany: boolean;
  marked: string | undefined;
}

/** The lines on screen. Scrolling up stops following; scrolling to the end begins it again. */
export function LogView({ lines, isFollowing, setFollowing, isWrapped, isMany, marked }: LogViewProps) {
  const box = useRef<HTMLDivElement>(null);
  const top = useRef(0);
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => box.current,
    estimateSize: () => LINE,
    overscan: 30,
    getItemKey: (i) => {
      const line = lines[i];
      return line ? `${line.attempt}/${line.role}/${line.index}/${line.offset}` : i;
    },
  });
  const count = lines.length;
  useEffect(() => {
    if (isFollowing && count > 0) rows.scrollToIndex(count - 1, { align: "end" });
  }, [isFollowing, count, rows]);
  const onScroll = () => {
    const element = box.current;
    if (element === null) return;
    const isUp = element.scrollTop < top.current - 2;
    top.current = element.scrollTop;
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < LINE * 2;
    if (isFollowing && isUp && !isAtEnd) setFollowing(false);
    else if (!isFollowing && isAtEnd && !isUp) setFollowing(true);
  };
  const pattern = useMemo(() => {
    try {
      return marked ? new RegExp(marked, "g") : null;
    } catch {
      return null; // RE2 knows expressions that browsers do not; the lines are right, only unmarked
    }
  }, [marked]);
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
              <Line line={line} isMany={isMany} pattern={pattern} />
            </div>
          ) : null;
        })}
      </div>
    </div>
  );
}

const Line = memo(function Line({ line, isMany, pattern }: { line: LogLine; isMany: boolean; pattern: RegExp | null }) {
  const text = line.text.length > LONGEST ? line.text.slice(0, LONGEST) : line.text;
  const spans = spansOf(text);
  return (
    <>
      <span className="log-at" title={line.at ? localTime(line.at) : undefined}>
        {line.at ? clockTime(line.at) : ""}
      </span>
      {isMany && (
        <span
          className={`log-who hue-${hueOf(line)}`}
          title={line.rank === null || line.rank === undefined ? undefined : `rank ${line.rank}`}
        >
          {line.role}-{line.index}
          {line.local_rank ? `·${line.local_rank}` : ""}
        </span>
      )}
      <span
        className={`log-text${/\b(error|exception|traceback|fatal)\b/i.test(text) ? " is-error" : /\bwarn(ing)?\b/i.test(text) ? " is-warning" : ""}`}
      >
        {spans.map((span, i) => (
          <span key={i} className={span.className}>
            {pattern === null ? span.text : <Marked text={span.text} pattern={pattern} />}
          </span>
        ))}
        {line.text.length > LONGEST && (
          <em className="dimmer"> … {(line.text.length - LONGEST).toLocaleString()} more characters, in the download</em>
        )}
      </span>
    </>
  );
});

function Marked({ text, pattern }: { text: string; pattern: RegExp }) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    if (match[0] === "") break;
    parts.push(text.slice(from, match.index), <mark key={match.index}>{match[0]}</mark>);
    from = match.index + match[0].length;
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
