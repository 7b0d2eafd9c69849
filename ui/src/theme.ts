// Dark or light: what the person chose, else what the machine says.
import { useEffect, useState } from "preact/hooks";

const KEY = "mainstay-theme";
export type Theme = "auto" | "light" | "dark";

const machine = matchMedia("(prefers-color-scheme: dark)");
const watchers = new Set<() => void>();

export function chosenTheme(): Theme {
  const stored = localStorage.getItem(KEY);
  return stored === "light" || stored === "dark" ? stored : "auto";
}

function isDark(): boolean {
  const theme = chosenTheme();
  return theme === "dark" || (theme === "auto" && machine.matches);
}

export function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  for (const watcher of watchers) watcher();
}

export function chooseTheme(theme: Theme) {
  if (theme === "auto") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, theme);
  applyTheme();
}

machine.addEventListener("change", applyTheme);

/** Rises whenever the colours change, for what is drawn on a canvas. */
export function useColours(): number {
  const [number, setNumber] = useState(0);
  useEffect(() => {
    const changed = () => setNumber((known) => known + 1);
    watchers.add(changed);
    return () => void watchers.delete(changed);
  }, []);
  return number;
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Prints the page in light colours. */
export function printed() {
  document.documentElement.dataset.theme = "light";
  for (const watcher of watchers) watcher();
  addEventListener("afterprint", applyTheme, { once: true });
  // Plots are drawn anew in between.
  setTimeout(() => print(), 300);
}
