"use strict";
// Shows what the server's events tell.

const token = new URLSearchParams(location.search).get("token");
const MOST_POINTS = 4000; // of each curve; beyond that every second one is dropped
const curves = new Map(); // by name: by rank: {times, updates, values}
const charts = new Map(); // by name: {plot, home, ranks, over}

function draw(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function sizeText(bytes) {
  for (const unit of ["B", "kB", "MB"]) {
    if (bytes < 1000) return `${Number(bytes.toPrecision(3))} ${unit}`;
    bytes /= 1000;
  }
  return `${Number(bytes.toPrecision(3))} GB`;
}

function showRanks(ranks, hosts) {
  const names = [...new Set(ranks.flatMap((one) => Object.keys(one.reports)))];
  const header = ["rank", "state", "iteration", "exchanges/s", "out/s", "in/s", "waiting", "for",
    "staleness", "memory", "epoch", "process", ...hosts.length > 1 ? ["node"] : [], ...names];
  fill(at("ranks"), header, ranks.map((one) => {
    const row = make("tr", undefined, one.state);
    const long = one.state === "waits" && one.waits_seconds >= 1;
    const cells = [one.rank, long ? `waits ${Math.round(one.waits_seconds)} s` : one.state,
      one.iteration.toLocaleString("en"), one.iterations.toFixed(1), sizeText(one.bytes_out),
      sizeText(one.bytes_in), `${Math.round(100 * one.waiting)}%`,
      one.waits_for === null ? "" : `rank ${one.waits_for}`, one.staleness, sizeText(one.memory),
      one.epoch, one.process, ...hosts.length > 1 ? [one.node] : [],
      ...names.map((name) => numberText(one.reports[name]))];
    row.append(...cells.map((text) => make("td", text)));
    return row;
  }));
}

function nameOf(host) {
  return host.host ? `Node ${host.node} (${host.host})` : `Node ${host.node}`;
}

function isHere(one) {
  return !["ended", "lost", "silent"].includes(one.state);
}

function showStuck(ranks, hosts) {
  const lines = [];
  for (const one of hosts) {
    const age = Math.round(one.age);
    if (one.state === "lost") lines.push(`${nameOf(one)} is lost; it last reported ${age} s ago.`);
    if (one.state === "silent") lines.push(`${nameOf(one)} has not reported for ${age} s.`);
  }
  for (const one of ranks) {
    const whom = one.waits_for === null ? "other ranks" : `rank ${one.waits_for}`;
    const seconds = Math.round(one.waits_seconds);
    if (one.state === "stopped") lines.push(`Rank ${one.rank} is stopped (SIGSTOP or a debugger).`);
    if (one.state === "ended") lines.push(`Rank ${one.rank} has ended.`);
    if (one.state === "waits" && seconds >= 1) {
      lines.push(`Rank ${one.rank} has waited for ${whom} for ${seconds} s.`);
    }
  }
  at("stuck").hidden = lines.length === 0;
  at("stuck").replaceChildren(...lines.map((text) => make("li", text)));
}

function showGraph(size, ranks, pairs) {
  const place = (rank) => {
    const angle = 2 * Math.PI * rank / size - Math.PI / 2;
    return [160 + 130 * Math.cos(angle), 160 + 130 * Math.sin(angle)];
  };
  const radius = Math.min(15, Math.max(5, 330 / size));
  const line = (from, to, kind) => {
    const [x1, y1] = place(from);
    const [x2, y2] = place(to);
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const short = (radius + 3) / length;
    const ends = {x1: x1 + (x2 - x1) * short, y1: y1 + (y2 - y1) * short,
      x2: x2 - (x2 - x1) * short, y2: y2 - (y2 - y1) * short};
    return draw("line", {...ends, class: kind, ...(kind === "wait" && {"marker-end": "url(#tip)"})});
  };
  const tip = draw("marker", {id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 5,
    markerHeight: 5, orient: "auto"}, draw("path", {d: "M0 0 8 4 0 8z"}));
  const parts = [draw("defs", {}, tip)];
  for (const [receiver, sender] of pairs) parts.push(line(sender, receiver, "fold"));
  for (const one of ranks) {
    const waits = one.waits_for !== null && (one.waits_seconds > 0 || one.waiting > 0.1);
    if (waits && isHere(one)) parts.push(line(one.rank, one.waits_for, "wait"));
  }
  const states = new Map(ranks.map((one) => [one.rank, one.state]));
  for (let rank = 0; rank < size; ++rank) {
    const [x, y] = place(rank);
    const node = draw("g", {class: states.get(rank) ?? "elsewhere"},
      draw("circle", {cx: x, cy: y, r: radius}));
    if (radius >= 9) node.append(draw("text", {x, y}, String(rank)));
    node.append(draw("title", {}, `rank ${rank}: ${states.get(rank) ?? "not seen yet"}`));
    parts.push(node);
  }
  at("graph").replaceChildren(...parts);
}

function showStaleness(size, ranks, pairs) {
  const found = new Map(pairs.map(([receiver, sender, , age]) => [`${receiver} ${sender}`, age]));
  const most = Math.max(1, ...found.values());
  const senders = [...Array(size).keys()];
  fill(at("staleness"), ["", ...senders], ranks.map((one) => {
    const row = make("tr");
    row.append(make("th", one.rank), ...senders.map((sender) => {
      const age = found.get(`${one.rank} ${sender}`);
      const cell = make("td", age ?? "", "age");
      if (age > 0) cell.style.background = `rgba(224, 123, 0, ${0.15 + 0.6 * age / most})`;
      return cell;
    }));
    return row;
  }));
}

function addPoints(points) {
  for (const [rank, name, times, updates, values] of points) {
    if (!curves.has(name)) curves.set(name, new Map());
    const ranks = curves.get(name);
    if (!ranks.has(rank)) ranks.set(rank, {times: [], updates: [], values: []});
    const curve = ranks.get(rank);
    curve.times.push(...times);
    curve.updates.push(...updates);
    curve.values.push(...values);
    if (curve.times.length > MOST_POINTS) {
      for (const key of ["times", "updates", "values"]) {
        curve[key] = curve[key].filter((_, index) => index % 2 === 0);
      }
    }
  }
}

function lineOf(curve, over) {
  if (!over) return [curve.times, curve.values];
  const last = new Map(curve.updates.map((update, index) => [update, curve.values[index]]));
  const updates = [...last.keys()].sort((one, other) => one - other);
  return [updates, updates.map((update) => last.get(update))];
}

function showCharts() {
  const over = at("updates").checked;
  const names = [...curves.keys()].sort((one, other) => one.includes(" ") - other.includes(" "));
  for (const name of names) {
    const ranks = [...curves.get(name).keys()].sort((one, other) => one - other);
    const data = uPlot.join(ranks.map((rank) => lineOf(curves.get(name).get(rank), over)));
    let chart = charts.get(name);
    if (chart && chart.over === over && chart.ranks === ranks.join()) {
      chart.plot.setData(data);
      continue;
    }
    const home = chart ? chart.home : make("div");
    if (!chart) at("charts").append(home);
    home.replaceChildren(make("h3", name));
    const text = name.includes("bytes") ? (value) => value === null ? "" : sizeText(value)
      : numberText;
    const names = ranks.map((rank) => `rank ${rank}`);
    const plot = drawLines(home, names, data, {x: over ? "update" : undefined, time: !over, text});
    charts.set(name, {plot, home, over, ranks: ranks.join()});
  }
}

function showChanges(changes) {
  at("changes").replaceChildren(...changes.map(({time, text}) =>
    make("li", `${new Date(1000 * time).toLocaleTimeString()} ${text}`)).reverse());
}

function showSummary(state) {
  if (state.ranks.length === 0) return;
  const epoch = Math.max(...state.ranks.map((one) => one.epoch));
  const others = state.ranks.length === state.size ? "" : ` of at most ${state.size}`;
  const where = state.hosts.length > 1 ? `${state.hosts.length} nodes` : state.host;
  at("summary").textContent = `${state.ranks.length} ranks${others} on ${where}. Epoch ${epoch}.`;
  at("scale").hidden = !state.elastic;
  at("fixed").hidden = Boolean(state.elastic);
  if (!state.elastic) return;
  const running = state.ranks.filter(isHere).map((one) => one.rank);
  if (!at("count").value) {
    [at("count").min, at("count").max] = state.elastic;
    at("count").value = running.length;
  }
  const chosen = at("leaver").value;
  if ([...at("leaver").options].map((option) => option.value).join() !== running.join()) {
    at("leaver").replaceChildren(...running.map((rank) => make("option", rank)));
    if (running.map(String).includes(chosen)) at("leaver").value = chosen;
  }
}

async function ask(action) {
  at("said").hidden = false;
  at("said").textContent = "…";
  try {
    const answer = await fetch(action, {method: "POST", headers: {"X-Malt-Token": token}});
    at("said").textContent = await answer.text();
  } catch {
    at("said").textContent = "No answer: the job has ended, or its host cannot be reached.";
  }
}

at("stop").addEventListener("click", () => {
  if (confirm("Stop all ranks of the job?")) ask("/stop");
});
at("set").addEventListener("click", () => ask(`/scale?count=${at("count").value}`));
at("leave").addEventListener("click", () => {
  const rank = at("leaver").value;
  if (confirm(`Ask rank ${rank} to leave the job?`)) ask(`/leave?rank=${rank}`);
});
at("updates").addEventListener("change", showCharts);

const events = new EventSource(`/events?token=${encodeURIComponent(token)}`);
events.onopen = () => curves.clear(); // a new connection begins with all points
events.onerror = () => { at("lost").hidden = false; };
events.onmessage = ({data}) => {
  const state = JSON.parse(data);
  at("lost").hidden = true;
  showSummary(state);
  showStuck(state.ranks, state.hosts);
  showRanks(state.ranks, state.hosts);
  showGraph(state.size, state.ranks, state.pairs);
  showStaleness(state.size, state.ranks, state.pairs);
  showChanges(state.changes);
  addPoints(state.points);
  showCharts();
};
