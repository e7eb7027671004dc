import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { basicSetup } from "codemirror";
import { useEffect, useRef } from "react";

export type { Diagnostic };

const COLOURS = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--accent)" },
  { tag: tags.string, color: "var(--green)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--amber)" },
  { tag: tags.comment, color: "var(--text-3)" },
]);

const THEME = EditorView.theme({
  "&": { height: "100%", fontSize: "12.5px", backgroundColor: "transparent" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6" },
  ".cm-gutters": { backgroundColor: "transparent", border: "none", color: "var(--text-3)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--surface-3) 40%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "light-dark(#cfd9ff, #33427e)",
  },
  ".cm-tooltip": {
    backgroundColor: "var(--surface)",
    border: "1px solid var(--line-strong)",
    borderRadius: "6px",
    color: "var(--text)",
  },
});

interface EditorProps {
  label: string;
  text: string;
  change: (text: string) => void;
  diagnostics: readonly Diagnostic[];
}

/** A text editor for YAML. A text set from outside keeps the cursor if possible. */
export function Editor({ label, text, change, diagnostics }: EditorProps) {
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const onChange = useRef(change);
  onChange.current = change;
  const first = useRef(text);

  useEffect(() => {
    if (box.current === null) return;
    // In a shadow root CodeMirror adds its rules by script; elsewhere it writes a style element, which the page's
    // content security policy forbids.
    const root = box.current.shadowRoot ?? box.current.attachShadow({ mode: "open" });
    const editor = new EditorView({
      parent: root,
      root,
      state: EditorState.create({
        doc: first.current,
        extensions: [
          basicSetup,
          yaml(),
          lintGutter(),
          THEME,
          syntaxHighlighting(COLOURS),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ "aria-label": label }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) onChange.current(update.state.doc.toString());
          }),
        ],
      }),
    });
    view.current = editor;
    return () => editor.destroy();
  }, [label]);

  useEffect(() => {
    const now = view.current;
    if (now === null || now.state.doc.toString() === text) return;
    now.dispatch({ changes: { from: 0, to: now.state.doc.length, insert: text } });
  }, [text]);

  useEffect(() => {
    const now = view.current;
    if (now === null) return;
    const end = now.state.doc.length;
    const inside = diagnostics.map((each) => ({ ...each, from: Math.min(each.from, end), to: Math.min(each.to, end) }));
    now.dispatch(setDiagnostics(now.state, inside));
  }, [diagnostics]);

  return <div ref={box} className="editor" />;
}
