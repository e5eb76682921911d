"use strict";
// The top of a verdict: two large numbers, and a strip of all clients with a dot for each way to train.

const STRIP = { right: 62, bottom: 34, top: 4, gap: 6 };

/** A score as people say it: shares in percent. */
function large(value, isShare, digits) {
  if (!known(value)) return "–";
  return isShare ? `${(100 * value).toFixed(digits)} %` : number(value).replace("-", "−");
}
/** Decimals of percents that keep two different numbers different. */
const decimals = ([first, second]) => (first !== second && Math.round(100 * first) === Math.round(100 * second) ? 1 : 0);

/** The same with a small unit, for large print. */
function largeShown(value, isShare, digits) {
  const [amount, unit] = large(value, isShare, digits).split(" ");
  return [amount, unit && h("small", {}, unit)];
}

/** The two numbers, with an arrow between them if the first is a baseline of the second. */
function bigNumbers(headline) {
  const digits = decimals(headline.numbers.map((entry) => entry.value));
  const isComparison = headline.numbers.every((entry) => known(entry.worst));
  const entry = ({ value, label, about }, i) => h("div", { class: i || !isComparison ? "big delivered" : "big" },
    h("b", {}, largeShown(value, headline.is_share, digits)), h("span", { class: "what" }, worded(label)), h("span", { class: "quiet" }, about));
  const [first, second] = headline.numbers.map(entry);
  return h("div", { class: "numbers" }, first, isComparison && h("span", { class: "arrow", role: "img", "aria-label": "to" }, "→"), second);
}

/** The worst client with both methods, and how many clients gain and lose. */
function heroFacts(headline) {
  const [first, second] = headline.numbers;
  const { gains, is_share } = headline;
  if (!known(first.worst) || !known(second.worst)) return null;
  const digits = decimals([first.worst, second.worst]);
  return h("ul", { class: "facts" },
    h("li", {}, worded("worst client"), h("b", {}, `${large(first.worst, is_share, digits)} → ${large(second.worst, is_share, digits)}`)),
    gains && h("li", {}, worded("significantly better for"), h("b", {}, `${gains.better} of ${plural(gains.of, "client")}`)),
    gains && h("li", {}, "significantly worse for", h("b", {}, gains.worse ? `${gains.worse} of ${plural(gains.of, "client")}` : "none")));
}

/** How a dot of each role looks, so that all are seen where they meet: a ring, a dot in it, and a small one on that. */
const DOTS = {
  shared: (x, y, r) => s("circle", { class: "dot-shared", cx: x, cy: y, r: r + 1 }),
  groups: (x, y, r, fill) => s("circle", { cx: x, cy: y, r: r - 0.6, fill }),
  alone: (x, y, r) => s("circle", { class: "dot-alone", cx: x, cy: y, r: Math.max(0.8, r * 0.55) }),
};
const DRAWN = Object.keys(DOTS);

/** Clients by group, in each the best with the method of the groups first. */
function stripRows(headline, run) {
  const order = new Map(run ? run.clients.map((client, i) => [client.id, { place: i, node: client.node }]) : []);
  const last = headline.series.length - 1;
  const sign = run && run.better === "smaller" ? 1 : -1;
  const rows = headline.rows.map(([client, values]) => ({ client, values, node: order.has(client) ? order.get(client).node : -1 }));
  const groupPlace = new Map();
  for (const { node } of order.values()) if (!groupPlace.has(node)) groupPlace.set(node, groupPlace.size);
  return rows.sort((a, b) => (groupPlace.get(a.node) ?? 1e9) - (groupPlace.get(b.node) ?? 1e9)
    || compared(a.values[last], b.values[last], sign < 0) || compared(a.values[0], b.values[0], sign < 0));
}

/** Where each row is: the middle of each, the height of a row, and the height of all. Gaps are between groups. */
function stripLayout(rows) {
  const n = rows.length;
  const high = n <= 12 ? 26 : n <= 24 ? 17 : n <= 44 ? 11.5 : Math.max(0.5, 520 / n);
  const changes = rows.filter((row, i) => i && row.node !== rows[i - 1].node).length;
  const gap = changes <= 24 ? STRIP.gap : 0;
  let y = STRIP.top;
  const middles = rows.map((row, i) => {
    if (i && row.node !== rows[i - 1].node) y += gap;
    y += high;
    return y - high / 2;
  });
  return { high, middles, bottom: y };
}

/** The names of groups to the right of their rows. */
function stripGroups(rows, middles, high, x, run) {
  const texts = [];
  for (let i = 0; i < rows.length;) {
    let to = i + 1;
    while (to < rows.length && rows[to].node === rows[i].node) to += 1;
    const room = middles[to - 1] - middles[i] + high;
    if (rows[i].node >= 0 && run && run.groups_count > 1 && room >= 11) {
      texts.push(s("rect", { x, y: middles[i] - high / 2, width: 4, height: room, rx: 2, fill: run.colour.node(rows[i].node) }),
        s("text", { class: "strong", x: x + 9, y: (middles[i] + middles[to - 1]) / 2 + 4 }, named(run, rows[i].node)));
    }
    i = to;
  }
  return texts;
}

/** A tick of the strip's axis. */
const stripTick = (value, isShare) => (isShare ? `${Number((100 * value).toPrecision(6))} %` : rounded(value, false));

function stripDrawing(headline, run, rows, width, label) {
  const { high, middles, bottom } = stripLayout(rows);
  const names = high >= 11 ? rows.map((row) => String(row.client)) : [];
  const longest = Math.max(0, ...names.map((name) => name.length));
  const left = Math.min(10 + 6.6 * longest, width * 0.3, 120) + 6;
  const grouped = run && run.groups_count > 1;
  const right = width - (grouped ? STRIP.right : 16);
  const r = Math.max(1.9, Math.min(5, high * 0.36));
  const values = rows.flatMap((row) => row.values).filter(known);
  const [low, high_] = span(values);
  const constant = headline.constant && headline.constant.value;
  const shows = known(constant) && (headline.is_share || (constant >= low && constant <= high_));
  const [from, to] = span(shows ? [...values, constant] : values);
  const room = (to - from) * 0.03;
  const x = headline.is_share && to - from > 0.4 ? scale(0, 1, left + 6, right - 6, width / 90, false) : scale(from - room, to + room, left + 6, right - 6, width / 110, false);
  const dots = headline.series.map(({ role }, j) => [role, j]).sort(([a], [b]) => DRAWN.indexOf(a) - DRAWN.indexOf(b));
  const fill = (row) => (run ? run.colour.node(row.node) : palette(0));
  const band = s("rect", { class: "row-shown", x: 0, width, height: Math.max(high, 3), hidden: true });
  const drawing = s("svg", { viewBox: `0 0 ${width} ${bottom + STRIP.bottom}`, height: bottom + STRIP.bottom, role: "img", "aria-label": label },
    band,
    s("g", { class: "axis" }, x.ticks.map((tick) => [
      s("line", { x1: x.at(tick), x2: x.at(tick), y1: STRIP.top, y2: bottom + 3 }),
      s("text", { x: x.at(tick), y: bottom + 17, "text-anchor": "middle" }, stripTick(tick, headline.is_share))]),
    s("text", { x: (left + right) / 2, y: bottom + 31, "text-anchor": "middle" }, headline.metric)),
    shows && s("line", { class: "constant", x1: x.at(constant), x2: x.at(constant), y1: STRIP.top, y2: bottom + 3 }, s("title", {}, headline.constant.label)),
    rows.map((row, i) => {
      const there = row.values.filter(known);
      return [
        names.length > 0 && s("text", { x: left - 6, y: middles[i] + 4, "text-anchor": "end" }, names[i].length > 16 ? `${names[i].slice(0, 15)}…` : names[i]),
        there.length > 1 && high >= 4 && s("line", { class: "reach", x1: x.at(Math.min(...there)), x2: x.at(Math.max(...there)), y1: middles[i], y2: middles[i] }),
        dots.map(([role, j]) => known(row.values[j]) && DOTS[role](x.at(row.values[j]), middles[i], r, fill(row)))];
    }),
    stripGroups(rows, middles, high, right + 8, run));
  return { drawing, band, middles, high, x };
}

/** The strip of clients: a row for each, a dot for each way to train that was measured. */
function strip(headline, run) {
  const rows = stripRows(headline, run);
  const label = `${headline.caption}: a row for each client, a dot for each method.`;
  const say = (row) => [`client ${row.client}${run && run.groups_count > 1 && row.node >= 0 ? `, ${named(run, row.node)}` : ""}`,
    ...headline.series.map(({ name, about }, j) => `${about ? `${about} (${name})` : name}: ${large(row.values[j], headline.is_share, 1)}`)].join("\n");
  const box = drawn((width) => {
    const { drawing, band, middles, high, x } = stripDrawing(headline, run, rows, width, label);
    const spoken = readable(drawing, label, {
      cells: { columns: 1, rows: rows.length },
      find: (px, py) => (py >= 0 && py <= middles[middles.length - 1] + high ? [0, nearest(middles, (middle) => Math.abs(middle - py))] : null),
      place: (column, row) => [x.at(x.low), middles[row]],
      say: (column, row) => say(rows[row]),
      shown: (column, row) => {
        band.toggleAttribute("hidden", row === null);
        if (row !== null) band.setAttribute("y", middles[row] - Math.max(high, 3) / 2);
      },
    });
    return [drawing, spoken];
  });
  return h("figure", { class: "strip" }, stripLegend(headline, run), box);
}

/** What the dots are. */
function stripLegend(headline, run) {
  const several = run && run.groups_count > 1;
  const dot = (role) => s("svg", { width: 14, height: 14, style: "width:14px", "aria-hidden": "true" }, DOTS[role](7, 7, 5, "var(--all)"));
  const colours_ = s("svg", { width: 38, height: 14, style: "width:38px", "aria-hidden": "true" }, [0, 1, 2].map((i) => DOTS.groups(7 + 12 * i, 7, 5, palette(i))));
  const constant = headline.constant && headline.is_share;
  return h("figcaption", {}, h("ul", { class: "legend" },
    headline.series.map(({ name, about, role }) => h("li", {}, role === "groups" && several ? colours_ : dot(role),
      ` ${about ? `${about} (${name})` : several ? `${name}: a colour for each group` : name}`)),
    constant && h("li", {}, s("svg", { width: 14, height: 14, style: "width:14px", "aria-hidden": "true" }, s("line", { class: "constant", x1: 7, x2: 7, y1: 0, y2: 14 })), ` ${headline.constant.label}`)));
}
