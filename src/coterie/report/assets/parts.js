"use strict";
// Text and small charts of a run's section.

function tiles(run) {
  const found = run.score || {};
  const bad = run.clients.filter((client) => client.adversary).length;
  const worst = run.clients.filter((client) => known(found.worst) && !client.adversary && client.score === found.worst).map((client) => client.id);
  const named_ = worst.length ? `: ${worst.slice(0, 4).join(", ")}${worst.length > 4 ? ` and ${worst.length - 4} more` : ""}` : "";
  const who = bad ? " (honest clients)" : "";
  const one = (value, label, about) => h("li", { title: about }, h("b", {}, value), h("span", {}, worded(label)));
  return h("ul", { class: "tiles" },
    one(score(run, found.mean), `${run.pooled ? "pooled" : "mean"} ${run.metric}${who}`, `${run.pooled ? "All test rows of the clients together" : "Mean over clients, each on its own test data"}, as last tested`),
    one(score(run, found.worst), `worst client${worst.length > 1 ? "s" : ""}${named_ || who}`, `The worst ${run.metric} of a client${who}`),
    one(score(run, found.std), `standard deviation over clients${who}`, `Standard deviation of the ${run.metric} over clients`),
    one(String(run.groups_count), run.groups_count === 1 ? "group" : "groups", "Groups after the last round"),
    known(run.ari) && one(run.ari.toFixed(2), "adjusted Rand index", "Agreement with the true groups: 1 if they are the same, about 0 by chance"),
    known(run.perplexity) && one(number(run.perplexity), "perplexity", "Mean over clients"),
    one(`${run.rounds_done}${run.limits.rounds > run.rounds_done && !run.finished ? ` of ${run.limits.rounds}` : ""}`, "rounds", "Communication rounds completed"),
    one(String(run.clients.length), "clients", "All clients that ever took part"),
    one(size(run.bytes_up), "sent up", "By all clients, in all rounds"), one(size(run.bytes_down), "sent down", "To all clients, in all rounds"),
    one(time(run.seconds), "computing time", "Training, server and tests, in all rounds"),
    ...virtualTiles(run, one),
    run.privacy && one(number(run.privacy.epsilon), run.privacy.label || `ε at δ = ${run.privacy.delta}`, run.privacy.words),
    known(run.isolated) && one(`${Math.round(run.isolated * bad)} of ${bad}`, "adversaries isolated", "In no group with an honest client"));
}

/** What a run on a simulated fleet takes; nothing for other runs. */
function virtualTiles(run, one) {
  if (!run.virtual) return [];
  return [
    one(time(run.virtual.seconds), "virtual time", "Until the last round of the simulated devices ends"),
    one(`${Math.round(100 * run.virtual.idle)}%`, "of device time idle", "Devices waited for others"),
    one(`${Math.round(100 * run.virtual.lost)}%`, "of device time lost", "Devices worked for updates that do not count"),
    one(`${number(run.virtual.joules)} J`, "energy of devices", "An estimate: seconds of devices times their power"),
  ];
}

/** Marks of the rounds in which groups changed. */
function marks(run) {
  const rounds = new Map();
  for (const event of run.events) if (event.changes) rounds.set(event.round, [...(rounds.get(event.round) || []), `${event.kind} of ${plural(event.count, "client")}`]);
  return rounds.size > Math.max(12, run.rounds.groups.length / 4) ? [] : [...rounds].map(([round, texts]) => ({ round, text: texts.join("\n") }));
}

const manyGroups = (run) => run.nodes.length > 40;

/** Clients' values of a metric by the group they were in: id -> position of the round -> values; under "all", of everybody. */
function byGroup(run, table) {
  const places = unpack(run.members);
  const values = new Map([["all", new Map()]]);
  const put = (key_, j, value) => {
    if (!values.has(key_)) values.set(key_, new Map());
    const of = values.get(key_);
    if (!of.has(j)) of.set(j, []);
    of.get(j).push(value);
  };
  run.scores.rounds.forEach((round, j) => run.clients.forEach((client, i) => {
    const [id, value] = [places.at(i, round - 1), table.at(i, j)];
    if (id < 0 || client.adversary || !known(value)) return;
    put("all", j, value);
    if (!manyGroups(run)) put(id, j, value);
  }));
  return values;
}

/** A metric over rounds: a line per group, and its clients behind, as lines of their own or as a band. */
function curves(run, metric, ui) {
  const table = unpack(run.scores.metrics[metric]);
  const rounds = run.scores.rounds;
  const values = byGroup(run, table);
  const together = run.scores.pooled[metric]; // a metric such as R2: over the members' test rows, not in their mean
  const single = run.clients.length <= 60;
  const line = (key_, name, colour_, dash, banded) => {
    const sorted = [...values.get(key_)].sort((a, b) => a[0] - b[0]).map(([j, all]) => [rounds[j], all.sort((a, b) => a - b)]);
    return {
      name, colour: colour_, dash, wide: true, points: sorted.map(([round, all]) => [round, together ? (together[key_] || {})[round] ?? NaN : mean(all)]),
      band: banded ? sorted.map(([round, all]) => [round, quantile(all, 0.1), quantile(all, 0.9)]) : null,
    };
  };
  const last = run.rounds.groups.length;
  const groups = run.nodes.filter((node) => values.has(node.id)).map((node) => line(
    node.id, `${node.name} (${plural(node.count, "client")})`, run.colour.node(node.id), node.last < last ? 1 : 0, !single && run.nodes.length <= 12));
  const series = manyGroups(run) ? [line("all", "all clients", ink(0), 0, true)] : groups;
  const own = (i) => rounds.map((round, j) => [round, table.at(i, j)]);
  const clients = single ? run.clients.map((client, i) => ({ name: `client ${client.id}`, faint: true, colour: run.colour.node(client.node), points: own(i) })) : [];
  const at = run.clients.findIndex((client) => client.id === ui.client);
  const picked = at < 0 ? [] : [{ name: `client ${ui.client}`, colour: run.colour.node(run.clients[at].node), dash: 2, points: own(at) }];
  return chart({ title: "", y: metric, key: `${run.name} ${metric}`, rounds: [1, Math.max(2, last)], marks: marks(run), height: 300, series: [...clients, ...series, ...picked] });
}

function scoresPart(run, ui) {
  const metrics = Object.keys(run.scores.metrics);
  if (!metrics.length) return h("p", { class: "quiet" }, "No round has been tested.");
  ui.metric = metrics.includes(ui.metric) ? ui.metric : metrics[0];
  const place = h("div");
  const draw = () => refill(place, curves(run, ui.metric, ui));
  draw();
  ui.follow.push(draw);
  const behind = run.clients.length > 60 ? "bands: clients except the best and the worst tenth" : "thin lines: single clients";
  const what = manyGroups(run) ? "Too many groups for separate lines: mean over all clients" : "Thick lines: mean over a group (R2 and the root mean squared error: over its test rows together); dashed: groups that ended";
  return h("div", {},
    h("p", { class: "about" }, `On clients' own test data. ${what}; ${behind}. `
      + `${marks(run).length ? "Dotted verticals: groups changed. " : ""}Choose a client in the table of clients to see its line.`),
    h("div", { class: "controls" }, choices("Metric", metrics.map((name) => [name, name]), ui.metric, (name) => { ui.metric = name; draw(); })), place);
}

/** A chart of a run, from its numbers. Series of one name are named by their groups alone. */
function runChart(run, spec) {
  const rounds = [1, Math.max(2, run.rounds.groups.length)];
  const byId = new Map(run.clients.map((client) => [client.id, client]));
  if (spec.links) return dendrogram(spec, (client) => run.colour.node((byId.get(client) || { node: -1 }).node));
  const severalNames = new Set(spec.series.map((line) => line.name)).size > 1;
  const nameOf = (line) => {
    if (!known(line.node)) return line.name;
    return severalNames ? `${named(run, line.node)}: ${line.name}` : named(run, line.node);
  };
  const series = spec.series.map((line, i) => ({ ...line, name: nameOf(line), colour: known(line.node) ? run.colour.node(line.node) : ink(i) }));
  const isTitle = spec.y && spec.y.replaceAll("_", " ").toLowerCase() === spec.title.toLowerCase();
  return chart({ ...spec, y: isTitle ? "" : spec.y, key: `${run.name} ${spec.title}`, series, rounds, marks: marks(run), height: 220, groupName: (id) => named(run, id) });
}

/** What was decided once or twice, in words: a chart of it would have a dot or two. */
const decidedOnce = (spec) => h("li", {}, h("b", {}, worded(spec.title)), h("span", {}, worded(spec.about)), spec.outcomes.map(outcome));
const isOnce = (spec) => spec.outcomes && spec.rounds <= spec.outcomes.length;

/** Charts of the decisions, with their bounds. */
function decisions(run) {
  const once = run.charts.filter(isOnce);
  const drawn_ = run.charts.filter((spec) => spec.links || spec.outcomes && !isOnce(spec)).map((spec) => runChart(run, spec));
  if (!once.length && !drawn_.length) return null;
  return [
    once.length > 0 && h("ul", { class: "once" }, once.map(decidedOnce)),
    drawn_.length > 0 && h("div", { class: drawn_.length > 1 ? "columns" : null }, drawn_)];
}

/** Charts of what has no bound, folded. */
function moreNumbers(run) {
  const further = run.charts.filter((spec) => !spec.links && !spec.outcomes);
  if (!further.length) return null;
  return h("details", {}, h("summary", {}, `More numbers (${further.length})`),
    h("div", { class: "columns" }, further.map((spec) => runChart(run, spec))));
}

function costs(run) {
  const rounds = [1, Math.max(2, run.rounds.groups.length)];
  const points = (values, of = (value) => value) => values.map((value, i) => [i + 1, known(value) ? of(value) : NaN]);
  const summed = (values) => { let sum = 0; return points(values, (value) => { sum += value; return sum / 1e6; }); };
  const kinds = Object.keys(run.rounds).filter((name) => name.startsWith("seconds_"));
  const line = (name, colour_, dash, values) => ({ name, colour: colour_, dash, points: values });
  return h("div", { class: "columns" },
    chart({ title: "Sent so far", y: "MB", rounds, height: 220, series: [
      line("by clients (up)", ink(0), 0, summed(run.rounds.bytes_up)), line("to clients (down)", ink(1), 1, summed(run.rounds.bytes_down))] }),
    chart({ title: "Time of each round", y: "seconds", rounds, height: 220, series: kinds.map((name, i) => line(name.slice(8), ink(i), i % 4, points(run.rounds[name]))) }),
    chart({ title: "Tasks and replies", about: "A client may have several tasks in a round.", y: "tasks", counts: true, rounds, height: 220, series: [
      line("tasks sent", ink(0), 0, points(run.rounds.asked)), line("replies taken", ink(1), 1, points(run.rounds.answered)),
      line("replies refused", ink(2), 2, points(run.rounds.refused))] }),
    chart({ title: "Number of groups", y: "groups", counts: true, rounds, height: 220, series: [
      line("groups", ink(0), 0, points(run.rounds.groups))] }));
}

function events(run, ui) {
  const list = h("ol", { class: "events" });
  const shown = (all) => run.events.filter((event) => all || event.shown);
  const fill = () => {
    const wanted = shown(ui.all);
    list.replaceChildren(...wanted.slice(0, 400).map((event) => h("li", {}, h("b", {}, `Round ${event.round}`), ui.all && h("span", { class: "quiet" }, `, ${event.kind}`),
      ` (${event.node >= 0 ? `${named(run, event.node)}, ` : ""}${event.count === event.clients.length ? `clients ${members(event.clients)}` : plural(event.count, "client")}): `, worded(event.text))));
    if (wanted.length > 400) list.append(h("li", { class: "quiet" }, `and ${wanted.length - 400} more`));
    if (!wanted.length) list.append(h("li", { class: "quiet" }, "Groups never changed."));
  };
  fill();
  return h("div", {}, h("div", { class: "controls" },
    choices("Events", [[false, "changes and choices"], [true, "every event"]], Boolean(ui.all), (all) => { ui.all = all; fill(); })), list);
}

const plain = (value) => (Array.isArray(value) ? `[${value.map(plain).join(", ")}]` : String(value));
function settings(run) {
  const table = (title, rows) => h("div", {}, h("h3", {}, title), h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, rows.map(([name, value, about]) => h("tr", {},
    h("th", { scope: "row", class: "left" }, name), h("td", { class: "left" }, plain(value)), about ? h("td", { class: "left quiet" }, about) : null))))));
  return h("details", {}, h("summary", {}, `All settings; seed ${run.seed}; versions`), run.settings.map((one) => table(one.title, one.rows)),
    table("versions", Object.entries(run.versions).map(([name, version]) => [name, version, ""])));
}
