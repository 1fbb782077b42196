"use strict";
// Shows the parts of a report, in their order.

const GONE = "death or eviction";
const KINDS = {computing: "#1b6ca8", scatter: "#2a9d63", gather: "#c9a7dc", allreduce: "#3c8f9c",
  fold: "#8f5aa8", waiting: "#f2a33a", [GONE]: "#c0221b"};
const ROW = 22; // pixels
const HINT = "Point at a bar to read it. Drag to look closer, and double-click to see all again.";

function showTable(home, {head, rows}) {
  const table = make("table");
  fill(table, head, rows.map((cells) => {
    const row = make("tr");
    row.append(...cells.map((text) => make("td", text)));
    return row;
  }));
  home.append(make("div", undefined, "scrolls"));
  home.lastChild.append(table);
}

function showChart(home, {x, y, lines}) {
  const data = uPlot.join([[[0]], ...lines.map(([, xs, ys]) => [xs, ys])]);
  drawLines(home, lines.map(([name]) => name), data, {x, y});
}

// The bars of a picture: in the row of a rank, from a time to a time, from a height to a height.
function barsOf({ranks, lived, bars, begin, width, shares}) {
  const found = [];
  for (const [row, from, to] of lived) found.push({row, from, to, kind: "computing"});
  for (const [row, kind, from, lasts, iteration, whom] of bars) {
    const name = whom >= 0 ? `waiting for rank ${whom}` : kind;
    const long = (1e6 * lasts).toLocaleString("en", {maximumFractionDigits: 1});
    const times = `${from.toFixed(6)} s, for ${long} us`;
    const which = iteration === null ? "" : `, iteration ${iteration}`;
    found.push({row, from, to: from + lasts, kind, whom, text: `${name}: ${times}${which}`});
  }
  shares.forEach((columns, row) => columns.forEach((parts, column) => {
    const [from, to] = [begin + column * width, begin + (column + 1) * width];
    const named = Object.keys(KINDS).map((kind, index) => [kind, parts[index] ?? 0])
      .filter(([, part]) => part > 0);
    const texts = named.map(([kind, part]) => `${kind} ${part}%`).join(", ");
    let low = 0;
    for (const [kind, part] of named) {
      const text = `${from.toFixed(3)} to ${to.toFixed(3)} s: ${texts}`;
      found.push({row, from, to, kind, low, high: Math.min(100, low + part), text});
      low += part;
    }
  }));
  for (const bar of found) {
    bar.top = bar.row + 0.08 + 0.84 * (1 - (bar.high ?? 100) / 100);
    bar.bottom = bar.row + 0.92 - 0.84 * (bar.low ?? 0) / 100;
    if (bar.text) bar.text = `rank ${ranks[bar.row]}, ${bar.text}`;
  }
  return found;
}

function showTimes(home, times) {
  const {ranks, deaths, left, right} = times;
  const bars = barsOf(times);
  const key = make("p", undefined, "key");
  const shown = new Set([...bars.map((bar) => bar.kind), deaths.length > 0 && GONE]);
  for (const [kind, colour] of Object.entries(KINDS).filter(([kind]) => shown.has(kind))) {
    const name = make("span", kind === "computing" ? "outside MALT: computing" : kind);
    name.prepend(make("i"));
    name.firstChild.style.background = colour;
    key.append(name);
  }
  const said = make("p", HINT, "note");
  const drawBars = (plot) => {
    const {ctx, bbox} = plot;
    const [px, py] = [(time) => plot.valToPos(time, "x", true), (y) => plot.valToPos(y, "y", true)];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.font = `${11 * devicePixelRatio}px system-ui`;
    for (const bar of bars) {
      const [x, y] = [Math.round(px(bar.from)), py(bar.top)]; // no seams between bars
      const wide = Math.max(Math.round(px(bar.to)) - x, 0.5);
      ctx.fillStyle = KINDS[bar.kind];
      ctx.fillRect(x, y, wide, py(bar.bottom) - y);
      if (bar.whom >= 0 && wide >= 14 * devicePixelRatio) {
        ctx.fillStyle = "#222";
        ctx.fillText(bar.whom, x + wide / 2, (y + py(bar.bottom)) / 2);
      }
    }
    ctx.fillStyle = KINDS[GONE];
    for (const [row, time] of deaths) {
      ctx.fillRect(px(time) - 2, py(row), 4, py(row + 1) - py(row));
    }
    ctx.restore();
  };
  const tell = (plot) => {
    const [x, y] = [plot.posToVal(plot.cursor.left, "x"), plot.posToVal(plot.cursor.top, "y")];
    const close = 3 * (plot.scales.x.max - plot.scales.x.min) / plot.width;
    const gone = deaths.find(([row, time]) => row === Math.floor(y) && Math.abs(time - x) < close);
    const bar = bars.findLast(
      (one) => one.from <= x && x < one.to && one.top <= y && y < one.bottom);
    said.textContent = plot.cursor.left < 0 ? HINT
      : gone ? `rank ${ranks[gone[0]]} is gone at ${gone[1].toFixed(3)} s` : bar?.text ?? HINT;
  };
  const none = {show: false};
  home.append(key);
  plotIn(home, {
    height: ROW * ranks.length + 60,
    scales: {x: {time: false}, y: {range: [0, ranks.length], dir: -1}},
    axes: [axisOf("seconds"), axisOf(undefined, {size: 70, grid: none, ticks: none,
      splits: ranks.map((_, row) => row + 0.5), values: ranks.map((rank) => `rank ${rank}`)})],
    cursor: {y: false, points: {show: false}},
    legend: {show: false},
    series: [{}, {}],
    hooks: {draw: [drawBars], setCursor: [tell]},
  }, [[left, right], [null, null]]);
  home.append(said);
}

const {title, parts} = JSON.parse(at("data").textContent);
document.title = at("title").textContent = title;
for (const {heading, text, list, table, chart, times} of parts) {
  const home = make("section", undefined, table || times || list ? "wide" : "");
  document.body.append(home);
  if (heading) home.append(make("h2", heading));
  if (text) home.append(make("p", text));
  if (table) showTable(home, table);
  if (chart) showChart(home, chart);
  if (times) showTimes(home, times);
  if (list) home.append(make("ul"));
  if (list) home.lastChild.append(...list.map((one) => make("li", one)));
}
