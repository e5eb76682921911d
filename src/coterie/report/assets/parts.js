"use strict";
// The parts of a run's section that are words and small charts.

function tiles(run) {
  const accuracy = run.accuracy || {};
  const one = (value, label) => h("li", {}, h("b", {}, value), h("span", {}, label));
  return h("ul", { class: "tiles" },
    one(share(accuracy.mean), "mean accuracy"), one(share(accuracy.min), "worst client"), one(share(accuracy.std), "std over clients"),
    one(String(run.groups_count), run.groups_count === 1 ? "group" : "groups"),
    known(run.ari) && one(run.ari.toFixed(2), "adjusted Rand"),
    known(run.perplexity) && one(number(run.perplexity), "perplexity"),
    one(`${run.rounds_done}${run.limits.rounds > run.rounds_done && !run.finished ? ` of ${run.limits.rounds}` : ""}`, "rounds"),
    one(String(run.clients.length), "clients"), one(size(run.bytes_up), "sent up"), one(size(run.bytes_down), "sent down"),
    one(time(run.seconds), "computing"),
    run.privacy && one(number(run.privacy.epsilon), `ε at δ = ${run.privacy.delta}`),
    known(run.isolated) && one(share(run.isolated), "of adversaries isolated"));
}

/** Marks of the rounds in which groups changed. */
function marks(run) {
  const rounds = new Map();
  for (const event of run.events) if (event.changes) rounds.set(event.round, [...(rounds.get(event.round) || []), `${event.kind} of ${plural(event.count, "client")}`]);
  return rounds.size > 60 ? [] : [...rounds].map(([round, texts]) => ({ round, text: texts.join("\n") }));
}

/** A metric over rounds: a line per group, and its clients behind, as lines of their own or as a band. */
function scores(run, metric, ui) {
  const table = unpack(run.scores.metrics[metric]);
  const rounds = run.scores.rounds;
  const places = unpack(run.members);
  const values = run.nodes.map(() => new Map());
  for (let i = 0; i < table.rows; i += 1) {
    rounds.forEach((round, j) => {
      const id = places.at(i, round - 1);
      if (id < 0 || run.clients[i].adversary) return;
      if (!values[id].has(j)) values[id].set(j, []);
      values[id].get(j).push(table.at(i, j));
    });
  }
  const most = run.nodes.map((node) => node.id).sort((a, b) => values[b].size - values[a].size).slice(0, 24).sort((a, b) => a - b);
  const lots = run.clients.length > 60;
  const series = most.filter((id) => values[id].size).map((id) => {
    const sorted = [...values[id]].sort((a, b) => a[0] - b[0]).map(([j, all]) => [rounds[j], all.filter(known).sort((a, b) => a - b)]);
    const name = `${named(id)} (${plural(run.nodes[id].clients.length, "client")})`;
    return {
      name, colour: run.colour.node(id), wide: true, dash: run.nodes[id].last < run.rounds.groups.length ? 1 : 0,
      points: sorted.map(([round, all]) => [round, mean(all)]),
      band: lots && most.length <= 12 ? sorted.map(([round, all]) => [round, quantile(all, 0.1), quantile(all, 0.9)]) : null,
    };
  });
  const line = (i) => rounds.map((round, j) => [round, table.at(i, j)]);
  const clients = lots ? [] : run.clients.map((client, i) => ({ name: `client ${client.id}`, faint: true, colour: run.colour.node(client.node), points: line(i) }));
  const at = run.clients.findIndex((client) => client.id === ui.client);
  const picked = at < 0 ? [] : [{ name: `client ${ui.client}`, colour: "var(--text)", dash: 2, points: line(at) }];
  return chart({ title: "", y: metric, rounds: [1, Math.max(2, run.rounds.groups.length)], marks: marks(run), height: 300, series: [...clients, ...series, ...picked] });
}

function scoresPart(run, ui) {
  const metrics = Object.keys(run.scores.metrics);
  if (!metrics.length) return h("p", { class: "quiet" }, "No round has been tested.");
  ui.metric = metrics.includes(ui.metric) ? ui.metric : metrics[0];
  const place = h("div");
  const draw = () => place.replaceChildren(scores(run, ui.metric, ui));
  draw();
  ui.follow.push(draw);
  const behind = run.clients.length > 60 ? "bands: 80 % of its clients" : "thin lines: single clients";
  return h("div", {},
    h("p", { class: "about" }, `On clients' own test data. Thick lines: mean over a group; dashed: groups that ended; ${behind}. `
      + "Dotted verticals: groups changed. Choose a client in the table below to see its line."),
    h("div", { class: "controls" }, choices("Metric", metrics.map((name) => [name, name]), ui.metric, (name) => { ui.metric = name; draw(); })), place);
}

function decisions(run) {
  const rounds = [1, Math.max(2, run.rounds.groups.length)];
  const byId = new Map(run.clients.map((client) => [client.id, client]));
  return run.charts.map((spec) => {
    if (spec.links) return dendrogram(spec, (client) => run.colour.node((byId.get(client) || { node: -1 }).node));
    const series = spec.series.map((one, i) => ({
      ...one, name: known(one.node) ? `${named(one.node)}: ${one.name}` : one.name,
      colour: known(one.node) ? run.colour.node(one.node) : palette(i),
    }));
    return chart({ ...spec, series, rounds, marks: marks(run), height: 240 });
  });
}

function costs(run) {
  const rounds = [1, Math.max(2, run.rounds.groups.length)];
  const points = (values, of = (value) => value) => values.map((value, i) => [i + 1, known(value) ? of(value) : NaN]);
  const summed = (values) => { let sum = 0; return points(values, (value) => { sum += value; return sum / 1e6; }); };
  const kinds = Object.keys(run.rounds).filter((name) => name.startsWith("seconds_"));
  const line = (name, colour_, dash, values) => ({ name, colour: colour_, dash, points: values });
  return h("div", { class: "columns" },
    chart({ title: "Sent so far", y: "MB", rounds, height: 220, series: [
      line("by clients (up)", palette(0), 0, summed(run.rounds.bytes_up)), line("to clients (down)", palette(1), 1, summed(run.rounds.bytes_down))] }),
    chart({ title: "Time of each round", y: "seconds", rounds, height: 220, series: kinds.map((name, i) => line(name.slice(8), palette(i), i % 4, points(run.rounds[name]))) }),
    chart({ title: "Clients in each round", y: "clients", rounds, height: 220, series: [
      line("tasks sent", palette(0), 0, points(run.rounds.asked)), line("replies taken", palette(2), 1, points(run.rounds.answered)),
      line("replies refused", palette(4), 2, points(run.rounds.refused))] }),
    chart({ title: "Groups", y: "groups", rounds, height: 220, series: [
      line("groups", palette(0), 0, points(run.rounds.groups))] }));
}

function events(run, ui) {
  const list = h("ol", { class: "events" });
  const shown = (all) => run.events.filter((event) => all || event.changes || ["join", "walk", "move", "wait", "leave", "node"].includes(event.kind));
  const fill = () => {
    const wanted = shown(ui.all);
    list.replaceChildren(...wanted.slice(0, 400).map((event) => h("li", {}, h("b", {}, `round ${event.round}, ${event.kind}`),
      ` (${event.node >= 0 ? `${named(event.node)}, ` : ""}${event.count === event.clients.length ? `clients ${members(event.clients)}` : plural(event.count, "client")}): ${event.text}`)));
    if (wanted.length > 400) list.append(h("li", { class: "quiet" }, `and ${wanted.length - 400} more`));
    if (!wanted.length) list.append(h("li", { class: "quiet" }, "Groups never changed."));
  };
  fill();
  return h("div", {}, h("div", { class: "controls" },
    choices("Notes", [[false, "changes and walks"], [true, "every note"]], Boolean(ui.all), (all) => { ui.all = all; fill(); })), list);
}

const plain = (value) => (Array.isArray(value) ? `[${value.map(plain).join(", ")}]` : String(value));
function settings(run) {
  const table = (title, rows) => h("div", {}, h("h3", {}, title), h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, rows.map(([name, value, about]) => h("tr", {},
    h("th", { scope: "row", class: "left" }, name), h("td", { class: "left" }, plain(value)), about ? h("td", { class: "left quiet" }, about) : null))))));
  return h("details", {}, h("summary", {}, `All settings; seed ${run.seed}; versions`), run.settings.map((one) => table(one.title, one.rows)),
    table("versions", Object.entries(run.versions).map(([name, version]) => [name, version, ""])));
}
