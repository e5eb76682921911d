"use strict";
// The top of the page: what the groups are, why, whether they are better, and for whom.

const GROUPS_LISTED = 12;

/** A gain over FedAvg: [by, noise, sign], where a sign of null means that noise is not known. */
const markOf = (sign) => (!known(sign) ? "?" : sign > 0 ? "▲" : sign < 0 ? "▼" : "≈");
const judged = (sign) => (!known(sign) ? "noise is not known" : sign > 0 ? "significantly better" : sign < 0 ? "significantly worse" : "no significant difference");
function gained(by, sign, over) {
  const kind = !known(sign) ? "unsure" : sign > 0 ? "up" : sign < 0 ? "down" : "same";
  return h("span", { class: `gain ${kind}`, title: `${signed(by)} over ${over}: ${judged(sign)}` }, `${markOf(sign)} ${signed(by)}`);
}

function verdictOf(doc, said, i) {
  const run = doc.runs.find((one) => one.run_dir === said.run);
  const lead = said.use || said.found;
  const title = doc.verdicts.length > 1 ? `Verdict: ${said.scenario}` : "Verdict";
  return h("section", { class: "verdict", id: `verdict-${i}`, "aria-labelledby": `verdict-title-${i}` },
    h("h1", { id: `verdict-title-${i}` }, title), 
    said.constant && h("p", {}, said.constant), said.warnings.map((text) => h("p", { class: "warning" }, text)),
    said.by_time && h("p", {}, said.by_time),
    h("p", { class: "lead" }, lead),
    h("h3", {}, "What are the groups?"), lead !== said.found && h("p", {}, said.found), run && groupsNow(run),
    said.why && [h("h3", {}, "Why?"), h("p", {}, said.why)],
    h("h3", {}, "Is it better than one model for all, and than training alone?"),
    said.better.map((text) => h("p", {}, text)),
    said.missing && [h("p", {}, said.missing), said.command && h("pre", {}, said.command)],
    [said.left_out, said.unequal].map((text) => text && h("p", { class: "quiet" }, text)),
    said.table && clientsByMethod(said, run));
}

/** The groups of a run's last round, with their clients. */
function groupsNow(run) {
  const ids = [...new Set(run.clients.map((client) => client.node))].filter((id) => id >= 0);
  const item = (id) => {
    const there = run.clients.filter((client) => client.node === id).map((client) => client.id);
    return h("li", {}, h("span", { class: "swatch", style: `background:${run.colour.node(id)}` }), h("b", {}, named(id)),
      ` ${members(there)} (${plural(there.length, "client")}${known(run.nodes[id].score) ? `, ${run.metric} ${score(run, run.nodes[id].score)}` : ""})`);
  };
  return h("ul", { class: "now" }, ids.slice(0, GROUPS_LISTED).map(item),
    ids.length > GROUPS_LISTED && h("li", { class: "quiet" }, `and ${ids.length - GROUPS_LISTED} more`));
}

/** Each client's main metric with each method, in one round; the worst client first. */
function clientsByMethod(said, run) {
  const { table } = said;
  const nodes = new Map(run ? run.clients.map((client) => [client.id, client.node]) : []);
  const swatch = (client) => nodes.get(client) >= 0 && h("span", { class: "swatch", style: `background:${run.colour.node(nodes.get(client))}` });
  const cell = (value, gain) => [h("span", {}, score(table, value)), gain && [" ", gained(gain[0], gain[2], table.over)]];
  const columns = [
    { name: "client", left: true, about: "Colours are the groups above", value: (r) => r.client, show: (r) => [swatch(r.client), String(r.client)] },
    { name: "tests", about: "Number of test examples, or of their subjects", value: (r) => r.tests, show: (r) => number(r.tests) },
    ...table.methods.map((method, i) => ({
      name: method, about: `${table.metric} in round ${table.round}`, value: (r) => r.values[i], show: (r) => cell(r.values[i], r.gains[i]),
    })),
  ];
  const order = states.get(`verdict ${said.scenario}`) || { column: 2, down: table.better === "smaller" };
  states.set(`verdict ${said.scenario}`, order);
  const means = h("tr", {}, h("td", {}, table.pooled ? "all rows" : "mean"), h("td", {}, ""), table.means.map((value) => h("td", {}, score(table, value))));
  const seeds = table.seeds.length > 1 ? `, means over ${table.seeds.length} seeds` : "";
  const marks_ = table.over && table.methods.length > 1 ? `Differences are from ${table.over}: ▲ significantly better, ▼ significantly worse, ≈ no significant difference. ` : "";
  return [h("h3", {}, `${table.metric[0].toUpperCase()}${table.metric.slice(1)} of each client in round ${table.round}${seeds}`), h("p", { class: "about" }, marks_, said.noise),
    h("div", { class: "tall", tabindex: 0, role: "region", "aria-label": "Clients by method" },
      sortable(columns, table.rows, order, { caption: "Clients by method", foot: means }))];
}
