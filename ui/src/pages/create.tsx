// New resources and services, step by step: what is asked for, what the nodes say to it, and then the change.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api";
import { Problem } from "../api";
import { bytes, list, parseBytes } from "../format";
import { Command, Empty, Head, ProblemBox, Section, Table, Tag, Words } from "../parts";
import { go, to, type Route } from "../route";
import { may, soon, useStore } from "../store";
import type { ResourceView, ServiceApplied, ServiceChecked, ServiceFile } from "../types";

const BLOCK = 4096;

export function CreateResource({ route }: { route: Route }) {
  const store = useStore();
  const origin = route.query.get("from");
  const snapshot = route.query.get("snapshot");
  const from = origin && snapshot ? { resource: origin, snapshot } : null;
  const nodes = (store.status?.cluster?.nodes ?? []).filter((node) => !node.witness && !node.candidate);
  const [name, setName] = useState("");
  const [sizes, setSizes] = useState(from ? "" : "10GiB");
  const [replicas, setReplicas] = useState<string[]>([]);
  const [copies, setCopies] = useState(Math.min(3, Math.max(1, nodes.length)));
  const [preferred, setPreferred] = useState("");
  const [mode, setMode] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isBusy, setBusy] = useState(false);
  const words = sizes.split(/[\s,]+/).filter(Boolean);
  const volumes = words.map(parseBytes);
  const wrongSize = words.find((_word, at) => volumes[at] == null || volumes[at]! % BLOCK !== 0);
  const isReady = /^[a-z0-9-]{1,32}$/.test(name) && wrongSize === undefined && (from !== null || volumes.length > 0);
  const allowed = may(store, "admin");

  const create = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const body = {
        name,
        volumes,
        journal_bytes: null,
        replicas,
        replica_count: replicas.length > 0 ? null : copies,
        preferred: preferred ? [preferred] : [],
        settings: mode ? { mode } : {},
        from,
      };
      const made = await api.change<ResourceView>("POST", "/v1/resources", body);
      soon();
      go(to("resources", made.name));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  const toggle = (node: string) => setReplicas(replicas.includes(node) ? replicas.filter((one) => one !== node) : [...replicas, node]);
  const sum = volumes.reduce<number>((all, one) => all + (one ?? 0), 0);
  const where = replicas.length > 0 ? ` --replicas ${replicas.join(",")}` : ` --replica-count ${copies}`;
  const command = `mainstay resource create ${name || "NAME"}${words.map((word) => ` --size ${word}`).join("")}${where}${preferred ? ` --preferred ${preferred}` : ""}${mode ? ` --set mode=${mode}` : ""}${from ? ` --from ${from.resource}@${from.snapshot}` : ""}`;
  return (
    <>
      <Head title={from ? `Clone ${from.resource} as of ${from.snapshot}` : "Create a resource"} up={[to("resources"), "Resources"]} />
      {!allowed && <p class="box warn">This needs a token with the right admin. You can fill in the form and copy the command.</p>}
      <form class="form" onSubmit={(event) => void create(event)}>
        <fieldset>
          <legend>1. What</legend>
          <label class="field">
            <span>Name</span>
            <input value={name} required pattern="[a-z0-9\-]{1,32}" autocomplete="off" spellcheck={false} onInput={(event) => setName(event.currentTarget.value)} />
            <span class="help">1 to 32 characters out of a-z, 0-9 and the dash</span>
          </label>
          <label class="field">
            <span>Size of each volume</span>
            <input value={sizes} required={!from} autocomplete="off" spellcheck={false} aria-invalid={wrongSize !== undefined} onInput={(event) => setSizes(event.currentTarget.value)} />
            <span class="help">
              {wrongSize !== undefined ? `“${wrongSize}” is no size: write for example 10GiB, a multiple of 4096 bytes.` : from ? "Empty: the sizes of the origin" : "For example 10GiB, or 10GiB 2GiB for two volumes"}
            </span>
          </label>
        </fieldset>
        <fieldset>
          <legend>2. Where</legend>
          <div class="row" role="group" aria-label="Nodes">
            {nodes.map((node) => (
              <label key={node.id} class="check">
                <input type="checkbox" checked={replicas.includes(node.name)} onChange={() => toggle(node.name)} /> {node.name}
                <span class="small"> {node.pool_free_bytes != null ? `${bytes(node.pool_free_bytes)} free` : "free space not known"}</span>
              </label>
            ))}
          </div>
          {replicas.length === 0 && (
            <label class="field">
              <span>No node chosen: replicas on as many of the best nodes</span>
              <select value={copies} onChange={(event) => setCopies(Number(event.currentTarget.value))}>
                {nodes.map((_node, at) => (
                  <option key={at} value={at + 1}>
                    {at + 1}
                  </option>
                ))}
              </select>
            </label>
          )}
          <label class="field">
            <span>Preferred primary</span>
            <select value={preferred} onChange={(event) => setPreferred(event.currentTarget.value)}>
              <option value="">any node</option>
              {nodes
                .filter((node) => replicas.length === 0 || replicas.includes(node.name))
                .map((node) => (
                  <option key={node.id}>{node.name}</option>
                ))}
            </select>
          </label>
        </fieldset>
        <fieldset>
          <legend>3. How</legend>
          <label class="field">
            <span>A write is acknowledged</span>
            <select value={mode} onChange={(event) => setMode(event.currentTarget.value)}>
              <option value="">as the cluster says</option>
              <option value="c">C: when all replicas in sync have it on disk</option>
              <option value="b">B: when all replicas in sync have it in memory</option>
              <option value="a">A: when the primary has it on disk</option>
            </select>
          </label>
        </fieldset>
        <h2>What it costs</h2>
        <ul>
          <li>
            Each node with a replica takes up to {sum > 0 ? bytes(sum) : "the sizes of the origin"} as it is written, and 256 MiB for the journal at once.
          </li>
          <li>Nothing else is interrupted.</li>
        </ul>
        <p class="label">The same as a command</p>
        <Command text={command} />
        {problem && <ProblemBox problem={problem} />}
        <div class="row end">
          <a class="button" href={to("resources")}>
            Cancel
          </a>
          <button type="submit" class="solid" disabled={!isReady || !allowed || isBusy}>
            {isBusy ? "Creating…" : "Create"}
          </button>
        </div>
      </form>
    </>
  );
}

const TEMPLATE = (resource: string) => `name = "${resource}"
resource = "${resource}"

[mount]
path = "/srv/${resource}"
mkfs = true

[[process]]
name = "main"
command = ["/usr/bin/program", "--in-the-foreground"]

[vip]
address = "192.0.2.10/24"
`;

interface Checked {
  toml: string;
  nodes: ServiceChecked;
  /** What applying it would do; null if the token may not ask. */
  plan: ServiceApplied | null;
}

export function CreateService({ route }: { route: Route }) {
  const store = useStore();
  const name = route.query.get("name");
  const free = [...store.resources.keys()].find((resource) => !store.serviceOf.has(resource)) ?? "db";
  const [toml, setToml] = useState(name ? "" : TEMPLATE(free));
  const [edition, setEdition] = useState<number | null>(null);
  const [checked, setChecked] = useState<Checked | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState("");
  const allowed = may(store, "admin");
  const canCheck = may(store, "operate");

  useEffect(() => {
    if (!name || !canCheck) return;
    api
      .get<ServiceFile>(`/v1/services/${api.part(name)}/file`)
      .then(({ body }) => {
        setToml(body.toml);
        setEdition(body.edition);
      })
      .catch((error: unknown) => {
        if (error instanceof Problem) setProblem(error);
      });
  }, [name, canCheck]);

  const during = async (word: string, work: () => Promise<void>) => {
    setBusy(word);
    setProblem(null);
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
    } finally {
      setBusy("");
    }
  };
  const apply = (dry_run: boolean) => api.change<ServiceApplied>("PUT", "/v1/services", { toml, dry_run, force: false, edition });
  const check = () =>
    during("Checking…", async () => {
      setChecked(null);
      const nodes = await api.change<ServiceChecked>("POST", "/v1/service-check", { toml });
      const plan = allowed ? await apply(true) : null;
      // Empty lists are left out of the answer.
      if (plan) plan.places ??= [];
      setChecked({ toml, nodes, plan });
    });
  const create = () =>
    during("Applying…", async () => {
      const made = await apply(false);
      soon();
      go(to("services", made.name));
    });
  const isChecked = checked !== null && checked.toml === toml;
  return (
    <>
      <Head title={name ? `Change service ${name}` : "Create a service"} up={[to("services"), "Services"]} />
      {!canCheck && <p class="box warn">This needs a token with the right operate to check a file, and admin to apply it.</p>}
      <Section title="1. The service file" note="A TOML file: where to mount, which programs to run, how to ask whether they answer, and which address they have.">
        <label class="field">
          <span>From a file of your machine</span>
          <input type="file" accept=".toml,text/plain" onChange={(event) => void event.currentTarget.files?.[0]?.text().then(setToml)} />
        </label>
        <label class="field">
          <span>Text</span>
          <textarea rows={16} value={toml} spellcheck={false} autocomplete="off" onInput={(event) => setToml(event.currentTarget.value)} />
        </label>
        <p class="note">
          Templates with comments: <Command text={`mainstay service create mariadb --resource ${free}`} />
        </p>
        <button type="button" class="solid" disabled={!canCheck || busy !== "" || toml.trim() === ""} onClick={() => void check()}>
          {busy === "Checking…" ? busy : "Check it on all nodes"}
        </button>
      </Section>
      {problem && <ProblemBox problem={problem} />}
      <div aria-live="polite">{checked && <Verdict checked={checked} isCurrent={isChecked} />}</div>
      {checked && (
        <Section title="3. Apply it">
          {!isChecked && <p class="box warn">The text has changed since it was checked. Check it again.</p>}
          {!allowed && <p class="box warn">To apply it needs a token with the right admin, because it runs programs as root.</p>}
          <button type="button" class="solid" disabled={!isChecked || !allowed || busy !== ""} onClick={() => void create()}>
            {busy === "Applying…" ? busy : "Apply"}
          </button>
        </Section>
      )}
    </>
  );
}

const EFFECTS: Record<string, string> = {
  created: "The service is created, and starts on the primary of its resource.",
  unchanged: "Nothing changes: the service is the same already.",
  "failures-cleared": "The service stays as it is. Failures on nodes do not count any more.",
  "changed-in-place": "The service changes, and running processes go on.",
  restarted: "The running service stops, and starts with the new file. Clients lose their connections.",
};

function Verdict({ checked, isCurrent }: { checked: Checked; isCurrent: boolean }) {
  const { nodes, plan } = checked;
  return (
    <Section title="2. What the nodes say" note={isCurrent ? undefined : "This is about the text before your last change."}>
      <Table label="Check" head={["Node", "Verdict", "What would fail, and what to do"]}>
        {nodes.nodes.map((node) => (
          <tr key={node.node}>
            <td>{node.node}</td>
            <td>{node.silent ? <Tag tone="warn">not asked</Tag> : node.problems.length === 0 ? <Tag tone="ok">fits</Tag> : <Tag tone="bad">does not fit</Tag>}</td>
            <td class="text">
              {node.silent}
              {node.problems.map((one) => (
                <p key={one.field + one.problem}>
                  <code>{one.field}</code>: <Words text={one.problem} />
                  <br />
                  <span class="label">What to do:</span> <Words text={one.remedy} />
                </p>
              ))}
            </td>
          </tr>
        ))}
      </Table>
      {plan && (
        <>
          <h3>What applying it does</h3>
          <ul>
            <li>{EFFECTS[plan.effect] ?? plan.effect}</li>
            {plan.places.some((place) => place.chosen) && <li>It runs on {list(plan.places.filter((place) => place.chosen).map((place) => place.node))}.</li>}
            {plan.warnings.map((warning) => (
              <li key={warning}>
                <Words text={warning} />
              </li>
            ))}
          </ul>
          {plan.changes.length > 0 ? (
            <Table label="Changes" head={["Field", "From", "To", "Restarts it"]}>
              {plan.changes.map((one) => (
                <tr key={one.field}>
                  <td>
                    <code>{one.field}</code>
                  </td>
                  <td class="text">{one.from}</td>
                  <td class="text">{one.to}</td>
                  <td>{one.restarts ? <Tag tone="warn">yes</Tag> : "no"}</td>
                </tr>
              ))}
            </Table>
          ) : (
            plan.effect === "unchanged" && <Empty>No field changes.</Empty>
          )}
        </>
      )}
    </Section>
  );
}
