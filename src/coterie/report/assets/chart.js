"use strict";
// Line charts over rounds, and dendrograms.

const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const CROWD = 10; // more lines than this are shown by group
const EDGE = { left: 58, right: 14, top: 20, bottom: 30 };

/** What the reader has chosen in a chart, by its key: kept when the page is drawn anew. */
const chosen = new Map();

/** Round numbers that cut [low, high] into about `count` parts. */
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw);
  const out = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) out.push(Number(value.toPrecision(12)));
  return out;
}
function powers(low, high, count) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const step = Math.max(1, Math.ceil((to - from) / Math.max(count, 1)));
  return Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, i) => 10 ** (from + i * step));
}

/** Where values go: {at(value) -> pixel, ticks}. */
function scale(low, high, from, to, count, log) {
  if (log) [low, high] = [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.0001))];
  else if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const of = log ? Math.log10 : (value) => value;
  const [a, b] = [of(low), of(high)];
  return { low, high, at: (value) => from + ((of(value) - a) / (b - a)) * (to - from), ticks: log ? powers(low, high, count) : ticks(low, high, count) };
}
const rounded = (value, log) => (log && value <= 1e-16 ? "<1e-16" : log && (value < 0.01 || value >= 1e4) ? `1e${Math.round(Math.log10(value))}` : String(Number(value.toPrecision(6))));

function axes(x, y, width, height, label, { log, below = "round" }) {
  const bottom = height - EDGE.bottom;
  return s("g", { class: "axis" },
    y.ticks.map((tick) => [
      s("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y.at(tick), y2: y.at(tick) }),
      s("text", { x: EDGE.left - 6, y: y.at(tick) + 4, "text-anchor": "end" }, rounded(tick, log)),
    ]),
    x.ticks.map((tick) => s("text", { x: x.at(tick), y: bottom + 14, "text-anchor": "middle" }, String(tick))),
    s("text", { x: (EDGE.left + width - EDGE.right) / 2, y: height - 2, "text-anchor": "middle" }, below),
    label && s("text", { x: 4, y: 11 }, label));
}

function span(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (known(value) && value < low) low = value;
    if (known(value) && value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

/** A path through points; broken where one is missing. */
function path(points, x, y) {
  let out = "";
  let up = true;
  for (const [round, value] of points) {
    up = up || !known(value);
    if (!known(value)) continue;
    out += `${up ? "M" : "L"}${x.at(round).toFixed(1)} ${y.at(value).toFixed(1)}`;
    up = false;
  }
  return out;
}
function area(band, x, y) {
  const there = band.filter(([, low, high]) => known(low) && known(high));
  if (there.length < 2) return "";
  const upper = there.map(([round, , high]) => `${x.at(round).toFixed(1)} ${y.at(high).toFixed(1)}`);
  const lower = there.map(([round, low]) => `${x.at(round).toFixed(1)} ${y.at(low).toFixed(1)}`).reverse();
  return `M${upper.join("L")}L${lower.join("L")}Z`;
}

/**
 * A chart: {title, about, y, log, counts, series, levels, marks, rounds: [first, last], height}. A series: {name, colour, dash, points,
 * band, faint, wide, client}; faint ones are neither in the legend nor in the tooltip. marks: [{round, text}].
 */
function chart(spec) {
  const choice = chosen.get(spec.key) || { hidden: new Set() };
  if (spec.key) chosen.set(spec.key, choice);
  const { hidden } = choice;
  const listed = spec.series.filter((one) => !one.faint);
  const groups = [...new Set(listed.map((one) => one.node).filter(known))];
  const label = `${spec.title || spec.y}. Line chart over rounds ${spec.rounds[0]} to ${spec.rounds[1]}.`;
  const crowded = listed.length > CROWD && groups.length > 1;
  if (choice.group === undefined && crowded) [choice.group] = groups;
  const there = (one) => !crowded || !known(choice.group) || !known(one.node) || one.node === choice.group;
  const box = drawn((width) => lines({ ...spec, series: spec.series.filter(there) }, width, hidden, label));
  const legend = h("ul", { class: "legend", "aria-label": "Lines" });
  const toggle = (one, button) => {
    if (!hidden.delete(one.name)) hidden.add(one.name);
    button.setAttribute("aria-pressed", String(!hidden.has(one.name)));
    box.again();
  };
  const list = () => legend.replaceChildren(...listed.filter(there).map((one) => {
    const button = h("button", { type: "button", "aria-pressed": String(!hidden.has(one.name)), onclick: () => toggle(one, button) }, sample(one), one.name);
    return h("li", {}, button);
  }));
  list();
  const pick = (value) => { choice.group = value; box.again(); list(); };
  return h("figure", { class: "chart" },
    spec.title && h("h3", {}, spec.title), spec.about && h("p", { class: "about" }, worded(spec.about)), spec.outcomes && outcome(spec.outcomes[spec.outcomes.length - 1]),
    crowded && h("div", { class: "controls" }, choices("Group", [...groups.map((id) => [id, spec.groupName(id)]), [null, "all"]], choice.group, pick)),
    box, listed.length > 1 && legend);
}
/** The last comparison of a decision, with a light: whether it was reached. */
const outcome = ({ text, held }) => h("p", { class: `outcome ${held}` }, text);
const sample = (one) => s("svg", { width: 26, height: 10, "aria-hidden": "true", style: "width:26px" },
  s("line", { x1: 1, x2: 25, y1: 5, y2: 5, stroke: one.colour, "stroke-width": 2.5, "stroke-dasharray": DASHES[one.dash || 0] }));

function lines(spec, width, hidden, label) {
  const height = spec.height || 260;
  const shown = spec.series.filter((one) => !hidden.has(one.name));
  const values = shown.flatMap((one) => [...one.points.map((p) => p[1]), ...(one.band || []).flatMap((b) => [b[1], b[2]])]);
  const levels = spec.levels || [];
  const [low, high] = span([...values, ...levels.map((level) => level.value)].filter((v) => !spec.log || v > 0));
  const room = spec.log ? 0 : (high - low) * 0.04;
  const y = scale(low - room, high + room, height - EDGE.bottom, EDGE.top, 5, spec.log);
  const x = scale(spec.rounds[0], spec.rounds[1], EDGE.left, width - EDGE.right, Math.min(10, width / 70), false);
  x.ticks = x.ticks.filter(Number.isInteger);
  if (spec.counts) y.ticks = y.ticks.filter(Number.isInteger);
  const cross = s("line", { class: "cross", y1: EDGE.top, y2: height - EDGE.bottom, hidden: true });
  const drawing = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label },
    axes(x, y, width, height, spec.y, spec),
    (spec.marks || []).map((mark) => s("g", {},
      s("line", { class: "mark", x1: x.at(mark.round), x2: x.at(mark.round), y1: EDGE.top, y2: height - EDGE.bottom }),
      s("title", {}, mark.text))),
    levels.map((level) => s("g", {},
      s("line", { class: "level", x1: EDGE.left, x2: width - EDGE.right, y1: y.at(level.value), y2: y.at(level.value) }),
      s("text", { class: "strong", x: width - EDGE.right, y: y.at(level.value) - 4, "text-anchor": "end" }, `${level.name} ${number(level.value)}`))),
    shown.map((one) => one.band && s("path", { d: area(one.band, x, y), fill: one.colour, "fill-opacity": 0.16 })),
    shown.map((one) => s("path", {
      d: path(one.points, x, y), fill: "none", stroke: one.colour, "stroke-width": one.faint ? 1 : one.wide ? 3 : 2,
      "stroke-opacity": one.faint ? 0.3 : 1, "stroke-dasharray": DASHES[one.dash || 0], "stroke-linejoin": "round",
    })),
    shown.filter((one) => !one.faint).flatMap((one) => one.points.filter((p, i) => known(p[1]) && !known((one.points[i - 1] || [])[1])
      && !known((one.points[i + 1] || [])[1])).map((p) => s("circle", { cx: x.at(p[0]), cy: y.at(p[1]), r: 3, fill: one.colour }))),
    cross);
  const rounds = [...new Set(shown.flatMap((one) => one.points.map((p) => p[0])))].sort((a, b) => a - b);
  const spoken = readable(drawing, label, {
    cells: { columns: rounds.length, rows: 1 },
    find: (px) => rounds.length && px >= EDGE.left - 8 ? [nearest(rounds, (round) => Math.abs(x.at(round) - px)), 0] : null,
    place: (column) => [x.at(rounds[column]), EDGE.top],
    say: (column) => sayRound(spec, shown, rounds[column]),
    shown: (column) => {
      cross.toggleAttribute("hidden", column === null);
      if (column !== null) for (const name of ["x1", "x2"]) cross.setAttribute(name, x.at(rounds[column]));
    },
  });
  return [drawing, spoken];
}
function nearest(values, distance) {
  let best = 0;
  values.forEach((value, i) => { if (distance(value) < distance(values[best])) best = i; });
  return best;
}
function sayRound(spec, shown, round) {
  const marks = (spec.marks || []).filter((mark) => mark.round === round).map((mark) => mark.text);
  const values = shown.filter((one) => !one.faint).map((one) => [one.name, (one.points.find((p) => p[0] === round) || [])[1]]);
  const there = values.filter(([, value]) => known(value)).map(([name, value]) => `${name}: ${number(value)}`);
  const rest = there.length > 14 ? [`and ${there.length - 14} more`] : [];
  return [`round ${round}`, ...there.slice(0, 14), ...rest, ...marks].join("\n");
}

/** A dendrogram: links of SciPy's form, the threshold as a level, leaves by client. */
function dendrogram(spec, colourOf) {
  const leaves = spec.leaves;
  const label = `${spec.title}. Dendrogram of ${leaves.length} clients.`;
  const box = drawn((width) => {
    const height = 280;
    const [, high] = span([...spec.links.flatMap((link) => link.map((p) => p[1])), ...spec.levels.map((level) => level.value)]);
    const y = scale(0, high * 1.04, height - EDGE.bottom, EDGE.top, 5, false);
    const x = scale(0, 10 * leaves.length, EDGE.left, width - EDGE.right, 0, false);
    x.ticks = [];
    const every = Math.ceil((leaves.length * 18) / (width - EDGE.left - EDGE.right));
    return s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label },
      axes(x, y, width, height, spec.y, { below: "client" }),
      spec.links.map((link) => s("path", {
        d: `M${link.map(([a, b]) => `${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("L")}`, fill: "none", stroke: "var(--text)",
      }, s("title", {}, `merged at ${number(link[1][1])}`))),
      leaves.map((client, i) => s("g", {},
        s("circle", { cx: x.at(10 * i + 5), cy: y.at(0), r: Math.min(4, (width / leaves.length) * 0.35), fill: colourOf(client) }),
        i % every === 0 && s("text", { x: x.at(10 * i + 5), y: y.at(0) + 15, "text-anchor": "middle" }, String(client)))),
      spec.levels.map((level) => [
        s("line", { class: "level", x1: EDGE.left, x2: width - EDGE.right, y1: y.at(level.value), y2: y.at(level.value) }),
        s("text", { class: "strong", x: width - EDGE.right, y: y.at(level.value) - 4, "text-anchor": "end" }, `${level.name} ${number(level.value)}`),
      ]));
  });
  return h("figure", { class: "chart" }, h("h3", {}, spec.title), h("p", { class: "about" }, spec.about), box);
}
