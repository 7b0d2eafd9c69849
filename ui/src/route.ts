// The page that is shown is in the address after `#`, so that it can be kept, sent and gone back to.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  page: string;
  /** Name of the object, empty for a list. */
  name: string;
  query: URLSearchParams;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split("?");
  const [page = "", name = ""] = path.split("/");
  return { page: page || "overview", name: decodeURIComponent(name), query: new URLSearchParams(query) };
}

/** Address of a page. */
export function to(page: string, name = "", query: Record<string, string> = {}): string {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "")).toString();
  return `#/${page}${name ? `/${encodeURIComponent(name)}` : ""}${words ? `?${words}` : ""}`;
}

export function go(href: string, isReplacing = false) {
  if (isReplacing) {
    history.replaceState(null, "", href);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = href;
  }
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
