// The frame of all pages: login, navigation, state of the connection.
import { Component, render, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Actions } from "./actions";
import { clock, lasting } from "./format";
import { CreateResource, CreateService } from "./pages/create";
import { Events } from "./pages/events";
import { Failovers } from "./pages/failovers";
import { Node, Nodes } from "./pages/nodes";
import { Overview } from "./pages/overview";
import { Reports } from "./pages/reports";
import { Resource } from "./pages/resource";
import { Resources } from "./pages/resources";
import { Service } from "./pages/service";
import { Services } from "./pages/services";
import { Topology } from "./pages/topology";
import { Command, Empty, Head, ProblemBox } from "./parts";
import { to, useRoute, type Route } from "./route";
import { begin, leave, open, useStore, type State } from "./store";
import { applyTheme, chooseTheme, chosenTheme, type Theme } from "./theme";
import "uplot/dist/uPlot.min.css";
import "./style.css";

const PAGES: [string, string][] = [
  ["overview", "Overview"],
  ["topology", "Topology"],
  ["resources", "Resources"],
  ["services", "Services"],
  ["failovers", "Failovers"],
  ["reports", "Reports"],
  ["nodes", "Nodes"],
  ["events", "Events and audit"],
];
/** The list that a page without an entry of its own belongs to. */
const PARENTS: Record<string, string> = { "create-resource": "resources", "create-service": "services" };

function Page({ route }: { route: Route }) {
  switch (route.page) {
    case "overview":
      return <Overview />;
    case "topology":
      return <Topology route={route} />;
    case "resources":
      return route.name ? <Resource key={route.name} name={route.name} route={route} /> : <Resources route={route} />;
    case "services":
      return route.name ? <Service key={route.name} name={route.name} /> : <Services route={route} />;
    case "failovers":
      return <Failovers route={route} />;
    case "reports":
      return <Reports route={route} />;
    case "nodes":
      return route.name ? <Node name={route.name} /> : <Nodes />;
    case "events":
      return <Events />;
    case "create-resource":
      return <CreateResource key={location.hash} route={route} />;
    case "create-service":
      return <CreateService key={location.hash} route={route} />;
    default:
      return (
        <>
          <Head title="No such page" />
          <Empty>
            There is no page of this name. <a href={to("overview")}>Go to the overview.</a>
          </Empty>
        </>
      );
  }
}

function Login({ store }: { store: State }) {
  const [token, setToken] = useState("");
  const [isKept, setKept] = useState(true);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Mainstay";
    field.current?.focus();
  }, []);
  const submit = (event: Event) => {
    event.preventDefault();
    void open(token.trim(), isKept);
  };
  return (
    <main class="login" id="main">
      <h1>Mainstay</h1>
      <p>This page shows and steers the cluster with the rights of a token.</p>
      {store.denial && <ProblemBox problem={store.denial} />}
      <form onSubmit={submit}>
        <label class="field">
          <span>Token</span>
          <input ref={field} type="password" value={token} required autocomplete="off" spellcheck={false} onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        <label class="check">
          <input type="checkbox" checked={isKept} onChange={(event) => setKept(event.currentTarget.checked)} /> Keep it until this window is closed
        </label>
        <button type="submit" class="solid" disabled={token.trim() === ""}>
          Open
        </button>
      </form>
      <p class="note">To make a token, run this as root on any node. The right read only looks, operate also moves and stops services, and admin does everything.</p>
      <Command text="mainstay token create console --scope operate" />
    </main>
  );
}

/** How the connection stands. It is the first thing on the page when it is lost. */
function Connection({ store }: { store: State }) {
  const [, setNow] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  const cluster = store.status?.cluster;
  const age = cluster?.as_of_ms;
  return (
    <>
      <div role="alert">
        {store.lost_ms !== null && (
          <p class="banner bad">
            <strong>✕ Connection lost since {clock(store.lost_ms)}.</strong>{" "}
            {store.at_ms > 0 ? `What you see is from ${clock(store.at_ms)}, ${lasting(Date.now() - store.at_ms)} ago.` : "Nothing was loaded yet."} The page goes on trying.
          </p>
        )}
        {store.lost_ms === null && store.problem && (
          <p class="banner bad">
            <strong>✕ The state could not be loaded: {store.problem.message}</strong> {store.problem.remedy}{" "}
            {store.at_ms > 0 && `What you see is from ${clock(store.at_ms)}.`}
          </p>
        )}
      </div>
      <div role="status">
        {cluster && age !== 0 && (
          <p class="banner warn">
            <strong>! No majority of the nodes confirmed this.</strong> It is what {cluster.this_node} knew {age == null ? "last, and its age is unknown" : `${lasting(age)} before it answered`}. It may not be true any more.
          </p>
        )}
      </div>
    </>
  );
}

function ThemeChoice() {
  const [theme, setTheme] = useState<Theme>(chosenTheme());
  return (
    <label class="theme">
      <span class="hidden">Colours</span>
      <select
        value={theme}
        onChange={(event) => {
          const chosen = event.currentTarget.value as Theme;
          setTheme(chosen);
          chooseTheme(chosen);
        }}
      >
        <option value="auto">Colours: auto</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}

/** Says that a page failed, because half a page would look like a whole one. */
class Whole extends Component<{ children: ComponentChildren }, { fault: string }> {
  state = { fault: "" };
  componentDidCatch(error: unknown) {
    console.error(error);
    this.setState({ fault: String(error) });
  }
  render() {
    if (this.state.fault === "") return this.props.children;
    return (
      <div class="box bad" role="alert">
        <p>
          <strong>This page cannot be shown, because of a fault of the console: {this.state.fault}</strong>
        </p>
        <p>
          <span class="label">What to do:</span> Reload it. If that does not help, use <code>mainstay status</code>, and report this.
        </p>
      </div>
    );
  }
}

function Frame({ store }: { store: State }) {
  const route = useRoute();
  const cluster = store.status?.cluster;
  const active = PARENTS[route.page] ?? route.page;
  const wrong = store.status?.advice.length ?? 0;
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.querySelector<HTMLElement>("#main h1")?.focus();
        }}
      >
        Skip to the content
      </a>
      <header class="top">
        <div class="top-line">
          <span class="brand">Mainstay</span>
          {cluster && (
            <span class="where">
              {cluster.name} <span class="small">by {cluster.this_node}</span>
            </span>
          )}
          <span class={`live ${store.lost_ms === null ? "ok" : "bad"}`}>
            {store.lost_ms === null ? "● live" : "✕ lost"}
            {store.at_ms > 0 && <span class="small wide"> {clock(store.at_ms)}</span>}
          </span>
          <span class="grow" />
          {store.token && (
            <span class="small wide">
              token {store.token.name}: {store.token.access}
            </span>
          )}
          <ThemeChoice />
          <button type="button" onClick={leave}>
            Leave
          </button>
        </div>
        <nav aria-label="Pages">
          <ul>
            {PAGES.map(([page, word]) => (
              <li key={page}>
                <a href={to(page)} aria-current={active === page ? "page" : undefined}>
                  {word}
                  {page === "overview" && wrong > 0 && (
                    <span class="count">
                      {wrong}
                      <span class="hidden"> need attention</span>
                    </span>
                  )}
                </a>
              </li>
            ))}
          </ul>
        </nav>
      </header>
      <Connection store={store} />
      <main id="main">{store.status ? <Whole key={`${route.page}/${route.name}`}><Page route={route} /></Whole> : store.problem ? <ProblemBox problem={store.problem} /> : <p class="note">Loading…</p>}</main>
      <Actions />
    </>
  );
}

function Console() {
  const store = useStore();
  return store.phase === "token" ? <Login store={store} /> : <Frame store={store} />;
}

applyTheme();
begin();
render(<Console />, document.getElementById("console")!);
