"use strict";
// Elements and plots that the pages share. All texts go into a page as text, never as HTML.

const at = (id) => document.getElementById(id);
const COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2",
  "#7f7f7f", "#bcbd22", "#17becf"];
const plots = new Set(); // those shown, each in its home

function make(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function fill(table, header, rows) {
  const head = make("tr");
  head.append(...header.map((text) => make("th", text)));
  table.replaceChildren(...header.length ? [head] : [], ...rows);
}

function numberText(value) {
  if (typeof value !== "number") return value ?? "";
  const short = Number(value.toPrecision(5));
  return Math.abs(short) < 1e9 ? String(short) : short.toExponential();
}

// About five round numbers. uPlot's own ones have no end where numbers are large and alike.
function ticks(_, __, low, high) {
  const least = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least);
  const first = Math.ceil(low / step);
  const count = Math.min(10, Math.floor(high / step) - first + 1);
  const round = (value) => Number(value.toPrecision(12));
  return Array.from({length: count}, (_, index) => round((first + index) * step));
}

function axisOf(label, more) {
  const faint = {stroke: "#8883", width: 1};
  const ink = () => getComputedStyle(document.body).color;
  return {stroke: ink, grid: faint, ticks: faint, size: 34, label, labelSize: 20,
    labelFont: "12px system-ui", splits: ticks, values: (_, values) => values.map(String), ...more};
}

function plotIn(home, options, data) {
  const frame = make("div", undefined, "plot");
  home.append(frame);
  const plot = new uPlot({width: frame.clientWidth || 340, ...options}, data, frame);
  for (const old of plots) if (!old.root.isConnected) plots.delete(old);
  plots.add(plot);
  return plot;
}

// Draws lines, as one table with their common x.
function drawLines(home, names, data, {x, y, time = false, text = numberText}) {
  const across = axisOf(x, time ? {size: 50, splits: undefined, values: undefined} : {});
  const up = axisOf(y, {size: 70, values: (_, values) => values.map((value) => text(value))});
  return plotIn(home, {
    height: 220,
    scales: {x: {time}},
    axes: [across, up],
    cursor: {focus: {prox: 16}},
    focus: {alpha: 0.3},
    series: [{label: x ?? "time"}, ...names.map((label, index) => ({
      label, stroke: COLOURS[index % COLOURS.length], width: 1.5, spanGaps: true,
      points: {show: false}, value: (_, value) => text(value)}))],
  }, data);
}

addEventListener("resize", () => {
  for (const plot of plots) {
    plot.setSize({width: plot.root.parentElement.clientWidth, height: plot.height});
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const plot of plots) plot.redraw();
});
