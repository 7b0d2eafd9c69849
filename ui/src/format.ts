// Numbers, sizes and times as words.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Bytes with a unit of 1024. */
export function bytes(count: number): string {
  let [value, unit] = [count, 0];
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** A length of time in milliseconds. */
export function lasting(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds === 60) return "1 min";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes === 60) return "1 h";
  if (minutes < 120) return `${Math.round(minutes)} min`;
  const hours = minutes / 60;
  if (hours < 48) return `${Math.round(hours)} h`;
  return `${Math.round(hours / 24)} days`;
}

export function micros(us: number): string {
  return us < 1000 ? `${us} µs` : us < 1_000_000 ? `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms` : lasting(us / 1000);
}

const pad = (value: number, digits = 2) => String(value).padStart(digits, "0");

/** Time of day of the browser's machine: `14:03:09`. */
export function clock(ms: number): string {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** Day and time: `2026-11-29 14:03:09`, without the day if it is today. */
export function moment(ms: number): string {
  const [at, today] = [new Date(ms), new Date()];
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return at.toDateString() === today.toDateString() ? clock(ms) : `${day} ${clock(ms)}`;
}

export function ago(ms: number): string {
  const age = Date.now() - ms;
  return age < 1000 ? "just now" : `${lasting(age)} ago`;
}

export function count(value: number): string {
  return value.toLocaleString("en-US");
}

/** `1 node`, `2 nodes`. */
export function some(value: number, noun: string): string {
  const many = noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`;
  return `${count(value)} ${value === 1 ? noun : many}`;
}

/** `n1`, `n1 and n2`, `n1, n2 and n3`. */
export function list(words: string[]): string {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

/** A size as on the command line, `10GiB`, in bytes; null if it is none. */
export function parseBytes(text: string): number | null {
  const found = /^(\d+)\s*(KiB|MiB|GiB|TiB)?$/i.exec(text.trim());
  if (!found) return null;
  const powers: Record<string, number> = { kib: 1, mib: 2, gib: 3, tib: 4 };
  const value = Number(found[1]) * 1024 ** (powers[(found[2] ?? "").toLowerCase()] ?? 0);
  return Number.isSafeInteger(value) && value > 0 ? value : null;
}

/** Day and time in UTC, to the minute, as the command line writes it: `2026-11-29 14:03`. */
export function utc(ms: number): string {
  return new Date(ms).toISOString().slice(0, 16).replace("T", " ");
}

/** A rate with as many digits as matter. */
export function rate(value: number): string {
  return value === 0 || value >= 100 ? count(Math.round(value)) : value.toFixed(value < 10 ? 2 : 1);
}

/** A time in milliseconds on the scale of a plot. */
export function millis(value: number): string {
  if (value >= 10_000) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 1_000) return `${(value / 1000).toFixed(1)} s`;
  return value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(value < 1 ? 2 : 1)} ms`;
}

export function bytesPerSecond(value: number): string {
  return `${bytes(Math.round(value))}/s`;
}
