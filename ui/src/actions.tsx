// Changes. Each is confirmed in a dialog that says what it costs and which command does the same.
import { useEffect, useRef, useState } from "preact/hooks";
import * as api from "./api";
import { Problem } from "./api";
import { Command, ProblemBox, Words } from "./parts";
import { may, soon, useStore } from "./store";

export interface Field {
  name: string;
  label: string;
  /** Values to choose from, with their words; free text without them. */
  options?: [string, string][];
  value?: string;
  pattern?: string;
  help?: string;
  isOptional?: boolean;
}

type Values = Record<string, string>;

export interface Action {
  title: string;
  /** Word of the button that does it. */
  verb: string;
  right: api.Access;
  /** What it costs, one sentence each. */
  costs: (values: Values) => string[];
  fields?: Field[];
  isDangerous?: boolean;
  /** The same as a command. */
  command: (values: Values) => string;
  /** Does it. Returns what was said. */
  run: (values: Values) => Promise<{ message?: string } | void>;
}

let show: ((action: Action) => void) | null = null;
let say: ((words: string) => void) | null = null;

/** Asks whether to do this, and does it. */
export function confirm(action: Action) {
  show?.(action);
}

/** A button for an action. If the token's right is too small, it says so. */
export function ActionButton({ action, word }: { action: Action; word?: string }) {
  const store = useStore();
  const allowed = may(store, action.right);
  const isLost = store.lost_ms !== null;
  const why = !allowed ? `Needs a token with the right ${action.right}` : isLost ? "The connection is lost" : undefined;
  return (
    <button type="button" class={action.isDangerous ? "danger" : ""} aria-disabled={why ? "true" : undefined} title={why} onClick={() => !why && confirm(action)}>
      {word ?? action.verb}
      {why && <span class="hidden"> ({why})</span>}
    </button>
  );
}

/** The dialog, and what was done last. One for the whole page. */
export function Actions() {
  const [action, setAction] = useState<Action | null>(null);
  const [words, setWords] = useState("");
  useEffect(() => {
    show = setAction;
    say = setWords;
    return () => {
      show = say = null;
    };
  }, []);
  useEffect(() => {
    if (words === "") return;
    const timer = setTimeout(() => setWords(""), 12_000);
    return () => clearTimeout(timer);
  }, [words]);
  return (
    <>
      <div role="status" class={words ? "said" : "hidden"}>
        {words && (
          <>
            <span>
              <Words text={words} />
            </span>
            <button type="button" onClick={() => setWords("")}>
              Close
            </button>
          </>
        )}
      </div>
      {action && <Dialog key={action.title} action={action} end={() => setAction(null)} />}
    </>
  );
}

function Dialog({ action, end }: { action: Action; end: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const first = Object.fromEntries((action.fields ?? []).map((field) => [field.name, field.value ?? field.options?.[0]?.[0] ?? ""]));
  const [values, setValues] = useState<Values>(first);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => dialog.current?.showModal(), []);

  const act = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const said = await action.run(values);
      say?.(said?.message ?? `${action.title}: done`);
      soon();
      end();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error.isSilence ? new Problem(0, error.code, "No answer came, so the change may have been made or not.", "Look at the state before you repeat it.") : error);
    } finally {
      setBusy(false);
    }
  };
  const set = (name: string, value: string) => setValues({ ...values, [name]: value });

  return (
    <dialog ref={dialog} onClose={end} aria-labelledby="dialog-title">
      <form onSubmit={(event) => void act(event)}>
        <h2 id="dialog-title">{action.title}</h2>
        {(action.fields ?? []).map((field) => (
          <label key={field.name} class="field">
            <span>{field.label}</span>
            {field.options ? (
              <select value={values[field.name]} onChange={(event) => set(field.name, event.currentTarget.value)}>
                {field.options.map(([value, word]) => (
                  <option key={value} value={value}>
                    {word}
                  </option>
                ))}
              </select>
            ) : (
              <input
                value={values[field.name]}
                pattern={field.pattern}
                required={!field.isOptional}
                autocomplete="off"
                spellcheck={false}
                onInput={(event) => set(field.name, event.currentTarget.value)}
              />
            )}
            {field.help && <span class="help">{field.help}</span>}
          </label>
        ))}
        <h3>What it costs</h3>
        <ul>
          {action.costs(values).map((cost) => (
            <li key={cost}>
              <Words text={cost} />
            </li>
          ))}
        </ul>
        <p class="label">The same as a command</p>
        <Command text={action.command(values)} />
        {problem && <ProblemBox problem={problem} />}
        <div class="row end">
          <button type="button" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <button type="submit" class={action.isDangerous ? "danger solid" : "solid"} disabled={isBusy}>
            {isBusy ? "Asking…" : action.verb}
          </button>
        </div>
      </form>
    </dialog>
  );
}
