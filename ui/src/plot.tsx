// A plot over time, and its newest values in words.
//
// Guarantees
// - Where nothing is known there is a gap. A value between two gaps is a dot.
// - No meaning is in a colour alone: each line has its name and its value in the legend, and the areas of a stack are in its
//   order.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { clock, utc } from "./format";
import { colour, useColours } from "./theme";

export interface Line {
  label: string;
  /** One value for each time; null for none. */
  values: (number | null)[];
  /** Stands in the legend in the place of the newest value. */
  note?: string;
}

export interface PlotOf {
  title: string;
  /** In seconds since 1970. */
  times: number[];
  lines: Line[];
  /** The scale goes at least up to this, so that small values look small. */
  least: number;
  say: (value: number) => string;
  /** First and last time of the scale; those of the values if none. */
  range?: [number, number];
  /** The scale has steps of powers of two. */
  isBytes?: boolean;
  /** Areas on top of each other. A value then holds from its time up to the next one. */
  isStack?: boolean;
  /** Times in UTC, as in reports. */
  isUtc?: boolean;
}

const COLOURS = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6", "line-7", "line-8"];
const HEIGHT = 150;
/** Steps of a scale in bytes. */
const POWERS = Array.from({ length: 50 }, (_none, power) => 2 ** power);
const DAY_S = 86_400;

type Values = (number | null)[];

/** Sums of the lines up to each, the greatest first: it is drawn first, and the others over it. */
function stacked(lines: Line[]): Values[] {
  const sums: Values[] = [];
  for (const { values } of lines) {
    const below = sums[0];
    sums.unshift(values.map((value, at) => (value === null ? null : value + (below?.[at] ?? 0))));
  }
  return sums;
}

/** Words for the times at the axis: the day, if more than one is shown. */
function tick(seconds: number, span: number, isUtc: boolean): string {
  const local = new Date(seconds * 1000);
  const whole = isUtc ? utc(seconds * 1000) : utc(seconds * 1000 - local.getTimezoneOffset() * 60_000);
  if (span <= DAY_S) return span <= 1200 && !isUtc ? clock(seconds * 1000) : whole.slice(11);
  return span <= 2 * DAY_S ? whole.slice(5) : whole.slice(5, seconds % DAY_S === 0 ? 10 : 16);
}

/** Values without a neighbour, which a line would not show. */
function alone(plot: uPlot, series: number): number[] {
  const values = plot.data[series] as Values;
  const isAlone = (at: number) => values[at] != null && values[at - 1] == null && values[at + 1] == null;
  return values.map((_value, at) => at).filter(isAlone);
}

export function Plot({ title, times, lines, least, say, range, isBytes = false, isStack = false, isUtc = false }: PlotOf) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const colours = useColours();
  const labels = lines.map((line) => line.label).join("\n");
  const data = () => [times, ...(isStack ? stacked(lines) : lines.map((line) => line.values))] as uPlot.AlignedData;
  const shown = useRef<[number, number] | undefined>(range);
  shown.current = range;
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const axis = { stroke: colour("ink-2"), grid: { stroke: colour("rule"), width: 1 }, ticks: { stroke: colour("rule"), width: 1 }, font: "12px system-ui, sans-serif" };
    const names = labels === "" ? [] : labels.split("\n");
    const line = (label: string, at: number) => ({ label, stroke: colour(COLOURS[at % COLOURS.length]!), width: 2, points: { show: true, size: 5, filter: alone } });
    const area = (label: string, at: number) => {
      const own = colour(COLOURS[at % COLOURS.length]!);
      return { label, stroke: colour("card"), width: 1, fill: own, paths: uPlot.paths.stepped!({ align: 1 }), points: { show: false } };
    };
    const series = isStack ? names.map(area).reverse() : names.map(line);
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        scales: {
          x: { range: (_plot, min, max) => shown.current ?? [min, max] },
          y: { range: (_plot, _min, max) => [0, Math.max((max ?? 0) * 1.15, least)] },
        },
        axes: [
          { ...axis, space: 90, size: 32, values: (drawn, ticks) => ticks.map((at) => tick(at, drawn.scales.x!.max! - drawn.scales.x!.min!, isUtc)) },
          { ...axis, size: 88, incrs: isBytes ? POWERS : undefined, values: (_plot, ticks) => ticks.map(say) },
        ],
        tzDate: isUtc ? (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") : undefined,
        series: [{}, ...series],
      },
      data(),
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
    // Made anew when the lines or the colours are others.
  }, [labels, colours, isBytes, isStack, isUtc]);
  useEffect(() => plot.current?.setData(data()), [times, lines, range?.[0], range?.[1]]);
  return (
    <figure class="plot">
      <figcaption>{title}</figcaption>
      <div ref={place} aria-hidden="true" class="canvas" />
      <ul class="legend">
        {lines.map((line, at) => {
          const last = line.values[line.values.length - 1];
          return (
            <li key={line.label}>
              <span class={`key k${(at % COLOURS.length) + 1} ${isStack ? "block" : ""}`} aria-hidden="true" /> {line.label}: <b>{line.note ?? (last == null ? "not known" : say(last))}</b>
            </li>
          );
        })}
      </ul>
    </figure>
  );
}
