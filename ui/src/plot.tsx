// A plot over time, and its newest values in words.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "./format";
import { colour, useColours } from "./theme";

export interface Line {
  label: string;
  /** One value for each time; null for none. */
  values: (number | null)[];
}

const COLOURS = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6"];
const HEIGHT = 150;

/** `least`: the scale goes at least up to this, so that small values look small. */
export function Plot({ title, times, lines, least, say }: { title: string; times: number[]; lines: Line[]; least: number; say: (value: number) => string }) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const colours = useColours();
  const labels = lines.map((line) => line.label).join("\n");
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const axis = { stroke: colour("ink-2"), grid: { stroke: colour("rule"), width: 1 }, ticks: { stroke: colour("rule"), width: 1 }, font: "12px system-ui, sans-serif" };
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        scales: { y: { range: (_plot, _min, max) => [0, Math.max(max * 1.15, least)] } },
        axes: [{ ...axis, space: 90, values: (_plot, ticks) => ticks.map((tick) => clock(tick * 1000)) }, { ...axis, size: 88, values: (_plot, ticks) => ticks.map(say) }],
        series: [{}, ...labels.split("\n").map((label, at) => ({ label, stroke: colour(COLOURS[at % COLOURS.length]!), width: 2, points: { show: false } }))],
      },
      [times, ...lines.map((line) => line.values)] as uPlot.AlignedData,
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
  }, [labels, colours]);
  useEffect(() => plot.current?.setData([times, ...lines.map((line) => line.values)] as uPlot.AlignedData), [times, lines]);
  return (
    <figure class="plot">
      <figcaption>{title}</figcaption>
      <div ref={place} aria-hidden="true" class="canvas" />
      <ul class="legend">
        {lines.map((line, at) => {
          const last = line.values[line.values.length - 1];
          return (
            <li key={line.label}>
              <span class={`key k${(at % COLOURS.length) + 1}`} aria-hidden="true" /> {line.label}: <b>{last == null ? "not known" : say(last)}</b>
            </li>
          );
        })}
      </ul>
    </figure>
  );
}
