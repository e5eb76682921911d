"use strict";
// The page: sections of runs, the comparison of several, light and dark, print, and updates while a run is in progress.

const main = document.getElementById("main");
const root = document.documentElement;
const states = new Map();

/** What the reader has chosen in a run's section; kept when the page is drawn anew. */
function stateOf(name) {
  if (!states.has(name)) states.set(name, { order: { column: 0, down: false }, byTruth: false });
  return states.get(name);
}

/** Whether a run ever had several groups. */
const hasGroups = (run) => run.rounds.groups.some((count) => count > 1);

/** The runs that a page shows at once: those whose groups its verdicts describe. The others are folded. */
const isOpen = (doc, run) => doc.runs.length === 1 || doc.verdicts.some((said) => said.run === run.run_dir);

function groupsPart(run, ui) {
  if (!hasGroups(run)) return h("p", {}, `All ${plural(run.clients.length, "client")} were one group in every round.`);
  const map = groupsMap(run, ui);
  const byTruth = run.true_groups && choices("Colours", [[false, "colours: groups found"], [true, "colours: true groups"]], ui.byTruth,
    (value) => { ui.byTruth = value; redraw(); });
  return [
    h("p", { class: "about" }, worded("One row per client, one block per group; rounds from left to right. "
      + `${run.true_groups ? "Letters at the left: the true groups. " : ""}`
      + "At the right: the current groups, with their clients and mean score; grey: groups that have ended. Point at a block for details and reasons.")),
    byTruth && h("div", { class: "controls" }, byTruth), map,
    h("details", { open: run.nodes.length <= 24 }, h("summary", {}, "As a tree, with reasons"), groupsList(run))];
}

function section(doc, run, i) {
  const ui = stateOf(run.name);
  ui.follow = [];
  ui.select = (id) => { ui.client = ui.client === id ? null : id; ui.follow.forEach((draw) => draw()); };
  const similar = squares(run, ui);
  const decided = decisions(run);
  const more = moreNumbers(run);
  const part = (title, ...children) => [h("h2", { id: `${title.toLowerCase().replaceAll(" ", "-")}-${i}` }, title), children];
  const title = `${run.method} on ${run.title}, seed ${run.seed}`;
  const content = [
    h("p", { class: "quiet" }, `${run.about} ${run.finished ? "" : `This run has not ended: ${run.rounds_done} of ${run.limits.rounds} rounds. `}`),
    tiles(run),
    part("Groups over rounds", groupsPart(run, ui)),
    part("Scores", scoresPart(run, ui)),
    (decided || more) && part("Decisions", decided, more),
    similar && part("Similarity", h("p", { class: "about" }, "The values behind decisions, for every two clients; rows and columns ordered "
      + "by group, with lines between groups"
      + (run.true_groups ? ", stripes: true groups" : "") + `. ${run.squares.length > 1 ? "The slider selects a round in which clients were compared." : ""}`), similar),
    part("Clients", clientTable(run, ui)),
    part("Traffic and time", h("details", {}, h("summary", {}, "Charts of traffic and time"), costs(run))),
    part("What happened", events(run, ui)),
    part("Settings", settings(run))];
  const attributes = { class: "run", id: `run-${i}`, "aria-labelledby": `title-${i}` };
  if (isOpen(doc, run)) return h("section", attributes, h("h1", { id: `title-${i}` }, title), content);
  const groups = hasGroups(run) ? `, ${plural(run.groups_count, "group")}` : ", one model";
  return h("section", attributes, h("details", { class: "folded" },
    h("summary", {}, h("h1", { id: `title-${i}` }, title), h("span", { class: "quiet" }, ` ${run.pooled ? "pooled" : "mean"} ${run.metric} ${score(run, (run.score || {}).mean)}${groups}`)),
    content));
}

const interval = (value, digits = 3) => (!known(value.mean) ? "–" : `${value.mean.toFixed(digits)}${spread(value, digits)}`);
/** Half the interval; the standard deviation over seeds where there is none, or where it was cut at a limit of the metric. */
const spread = (value, digits) => {
  const whole = known(value.high) && known(value.low) && Math.abs(value.high + value.low - 2 * value.mean) < 1e-6 * Math.max(1, Math.abs(value.mean));
  return whole ? ` ± ${(value.high - value.mean).toFixed(digits)}` : known(value.sd) ? ` (sd ${value.sd.toFixed(digits)})` : "";
};
/** The virtual time of runs on a simulated fleet, the mean over seeds; NaN for other runs. */
const virtualSeconds = (entry) => (entry.virtual.includes(null) ? NaN : mean(entry.virtual.map((run) => run.seconds)));
function comparison(doc) {
  const names = [...new Set(doc.runs.map((run) => run.metric))];
  const metric = names.length === 1 ? names[0] : "score";
  const columns = [
    { name: "method", left: true, value: (r) => r.label, show: (r) => r.label },
    doc.verdicts.length > 1 && { name: "scenario", left: true, value: (r) => r.scenario, show: (r) => r.scenario },
    { name: "seeds", less: true, value: (r) => r.seeds.length, show: (r) => String(r.seeds.length) },
    { name: "rounds", less: true, value: (r) => r.rounds[0], show: (r) => r.rounds.join(", ") },
    ...[[metric, "score", 3], ["worst client", "worst", 3], ["std. deviation", "std", 3, true], ["adjusted Rand index", "ari", 2, true], ["groups", "groups", 1]].map(([name, key_, digits, less]) => (
      { name, less, value: (r) => r[key_].mean, show: (r) => interval(r[key_], digits) })),
    { name: "up", less: true, value: (r) => r.bytes_up.mean, show: (r) => size(Math.round(r.bytes_up.mean)) },
    { name: "down", less: true, value: (r) => r.bytes_down.mean, show: (r) => size(Math.round(r.bytes_down.mean)) },
    { name: "time", less: true, value: (r) => r.seconds.mean, show: (r) => time(r.seconds.mean) },
    doc.runs.some((run) => run.virtual) && { name: "virtual time", less: true, value: virtualSeconds, show: (r) => time(virtualSeconds(r)) },
  ].filter(Boolean);
  const last = Math.max(2, ...doc.runs.map((run) => run.rounds.groups.length));
  const smaller = doc.runs.every((run) => run.better === "smaller");
  const pooledOf = (run, of) => (of === mean ? (run.scores.pooled[run.metric] || {}).all : undefined);
  const over = (of) => doc.runs.slice(0, 24).filter((run) => run.scores.metrics[run.metric]).map((run, i) => {
    const table = unpack(run.scores.metrics[run.metric]);
    const honest = run.clients.map((client, j) => [client, j]).filter(([client]) => !client.adversary).map(([, j]) => j);
    return { name: run.name, colour: ink(i), dash: i % 4, points: run.scores.rounds.map((round, j) => {
      const together = pooledOf(run, of);
      return [round, together ? together[round] ?? NaN : of(honest.map((row) => table.at(row, j)))];
    }) };
  });
  const order = states.get("") || { column: -1, down: false };
  states.set("", order);
  return h("section", { class: "run", id: "compared" }, h("h1", {}, `${plural(doc.runs.length, "run")} compared`),
    h("p", { class: "about" }, "The recommended method first. Means over the seeds of each method; ± half the 95 % interval (Student's t) where there are several."),
    h("div", { class: "scroll" }, sortable(columns, doc.compared, order, { caption: "Comparison" })),
    doc.settings.map((line) => h("p", { class: "quiet" }, line)),
    doc.runs.length > 24 && h("p", { class: "quiet" }, "The charts show the first 24 runs."),
    h("div", { class: "columns" },
      chart({ title: `Mean ${metric}`, y: metric, rounds: [1, last], series: over(mean) }),
      chart({ title: "Worst client", y: metric, rounds: [1, last], series: over((values) => { const there = values.filter(known); return there.length ? (smaller ? Math.max : Math.min)(...there) : NaN; }) })),
    mapsOf(doc));
}

/** The groups over rounds of runs that have some, side by side; a single one is in its own section. */
function mapsOf(doc) {
  const grouped = doc.runs.filter((run) => hasGroups(run) && run.method !== "independent");
  if (grouped.length < 2) return null;
  return [
    h("div", { class: "columns" }, grouped.slice(0, 8).map((run) => h("div", {}, h("h3", {}, `${run.name}: groups over rounds`), groupsMap(run, { byTruth: false, select: () => {} })))),
    grouped.length > 8 && h("p", { class: "quiet" }, "The groups of the first 8 runs; those of the others are in their own sections.")];
}

function render(doc) {
  widths.disconnect(); // remove the previous drawings
  drawings.clear();
  hideTip();
  for (const run of doc.runs) Object.assign(run, { groups_count: run.rounds.groups[run.rounds.groups.length - 1], rounds_done: run.rounds.groups.length });
  for (const run of doc.runs) run.colour = colours(run);
  explained.clear();
  main.replaceChildren(...[
    doc.verdicts.map((said, i) => verdictOf(doc, said, i)),
    doc.runs.length > 1 && comparison(doc),
    doc.runs.map((run, i) => section(doc, run, i)),
    wordList(),
    h("p", { class: "quiet" }, `Made by Coterie ${doc.coterie} from the records of ${plural(doc.runs.length, "run")}.`)].flat().filter(Boolean));
  const several = [h("a", { href: "#verdict-0" }, "verdict"), h("a", { href: "#compared" }, "comparison"), ...doc.runs.map((run, i) => h("a", { href: `#run-${i}` }, run.name))];
  const parts = [...main.querySelectorAll("section.run h2")].map((head) => h("a", { href: `#${head.id}` }, head.textContent));
  document.getElementById("nav").replaceChildren(...(doc.runs.length > 1 ? several : parts));
}

/** Unfolds what a link leads to. */
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target && (target.closest("details") || target.querySelector(":scope > details.folded"));
  if (folded) folded.open = true;
}
addEventListener("hashchange", unfold);

// -- light and dark --

const themes = ["auto", "light", "dark"];
const wish = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
try { theme = localStorage.getItem("coterie-theme") || "auto"; } catch { /* a page from a file may have no storage */ }
function dress(wanted) {
  root.dataset.theme = wanted === "auto" ? (wish.matches ? "dark" : "light") : wanted;
  document.getElementById("theme").textContent = `colours: ${theme}`;
  redraw();
}
document.getElementById("theme").addEventListener("click", () => {
  theme = themes[(themes.indexOf(theme) + 1) % themes.length];
  try { localStorage.setItem("coterie-theme", theme); } catch { /* see above */ }
  dress(theme);
});
wish.addEventListener("change", () => dress(theme));
addEventListener("beforeprint", () => dress("light"));
addEventListener("afterprint", () => dress(theme));

// -- a run in progress: its file is written again after each round, and the page reloads it --

const placeKey = `coterie-place ${location.pathname}`;
const everyElement = (selector) => [...main.querySelectorAll(selector)];

/** Stores for the page after a reload what the reader has chosen, opened and scrolled to. */
function storePlace() {
  const place = {
    choices: [...states],
    open: everyElement("details").map((details) => details.open),
    scrolled: everyElement(".scroll").map((box) => box.scrollLeft),
    x: window.scrollX,
    y: window.scrollY,
  };
  try { sessionStorage.setItem(placeKey, JSON.stringify(place)); } catch { /* a page from a file may have no storage */ }
}

/** What was stored before the reload, or null. */
function storedPlace() {
  try {
    const text = sessionStorage.getItem(placeKey);
    sessionStorage.removeItem(placeKey);
    return JSON.parse(text);
  } catch { return null; }
}

/** Brings the reader back to this place, once everything is drawn. */
async function restorePlace(place) {
  const details = everyElement("details");
  if (place.open.length === details.length) details.forEach((element, i) => { element.open = place.open[i]; });
  const frame = () => new Promise((done) => { requestAnimationFrame(done); });
  await frame();
  await frame();
  everyElement(".scroll").forEach((box, i) => { box.scrollLeft = place.scrolled[i] || 0; });
  scrollTo(place.x, place.y);
}

/** Reloads the page after some seconds, but not while the reader types or chooses, or does not see it. */
function reloadLater(seconds) {
  const status = document.getElementById("live");
  status.hidden = false;
  status.textContent = "live";
  setInterval(() => {
    const busy = document.activeElement && document.activeElement.matches("input, select");
    if (busy || document.hidden) return;
    storePlace();
    location.reload();
  }, 1000 * seconds);
}

dress(theme);
const place = storedPlace();
if (place) for (const [name, chosen] of place.choices) states.set(name, chosen);
render(JSON.parse(document.getElementById("document").textContent));
unfold();
if (place) restorePlace(place);
if (document.body.dataset.reload) reloadLater(Number(document.body.dataset.reload));
