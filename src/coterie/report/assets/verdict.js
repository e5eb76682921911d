"use strict";
// The top of the page: how good, for whom, which method, and below it the groups and the reasons.

const GROUPS_LISTED = 12;
// With more columns, a gain stands below its value on narrow screens.
const MOST_COLUMNS_BESIDE = 5;

/** A gain over FedAvg: [by, sign], where a sign of null means that noise is not known. */
const markOf = (sign) => (!known(sign) ? "?" : sign > 0 ? "▲" : sign < 0 ? "▼" : "≈");
const judged = (sign) => (!known(sign) ? "noise is not known" : sign > 0 ? "significantly better" : sign < 0 ? "significantly worse" : "no significant difference");
const about = (count) => (count < 1000 ? String(count) : Number(count.toPrecision(2)).toLocaleString("en"));
function gained(by, sign, over, needed) {
  const kind = !known(sign) ? "unsure" : sign > 0 ? "up" : sign < 0 ? "down" : "same";
  const more = known(needed) ? `; needs about ${about(needed)} test examples to be sure` : "";
  return h("span", { class: `gain ${kind}`, title: `${signed(by)} over ${over}: ${judged(sign)}${more}` }, `${markOf(sign)} ${signed(by)}`);
}

function verdictOf(doc, said, i) {
  const run = doc.runs.find((entry) => entry.run_dir === said.run);
  return h("section", { class: "verdict", id: `verdict-${i}`, "aria-labelledby": `verdict-title-${i}` },
    hero(doc, said, run, i),
    h("div", { class: "below" },
      said.table && h("div", { class: "clients", id: `clients-${i}` }, clientsByMethod(said, run)),
      details(said, run, i)));
}

/** Two numbers, the clients, and one sentence. */
function hero(doc, said, run, i) {
  const { headline } = said;
  const lead = said.use || said.found;
  const cut = lead.indexOf(": ");
  const [claim, reason] = said.use && cut > 0 ? [lead.slice(0, cut), lead.slice(cut + 2)] : [lead.replace(/\.$/, ""), ""];
  const unfinished = doc.runs.filter((entry) => !entry.finished && entry.scenario === said.scenario)
    .map((entry) => `${entry.name}: ${entry.rounds_done} of ${entry.limits.rounds} rounds`);
  return h("div", { class: headline ? "hero" : "hero bare" },
    h("div", { class: "told" },
      h("p", { class: "eyebrow" }, said.title),
      headline && bigNumbers(headline),
      h("p", { class: "caption" }, headline ? worded(headline.caption) : "No round has been tested yet."),
      h("h1", { id: `verdict-title-${i}` }, `${claim}.`),
      reason && h("p", { class: "reason" }, worded(`${reason[0].toUpperCase()}${reason.slice(1)}`)),
      headline && heroFacts(headline),
      said.sure && h("p", {}, worded(said.sure)),
      said.personal && h("p", { class: "quiet" }, worded(said.personal)),
      unfinished.length > 0 && h("p", { class: "unfinished" }, `Not finished: ${unfinished.slice(0, 4).join("; ")}${unfinished.length > 4 ? "; …" : ""}.`),
      said.warnings.map((text) => h("p", { class: "warning" }, worded(text))),
      h("p", {}, h("a", { href: `#details-${i}` }, "Why, and for whom"))),
    headline && strip({ ...headline, metric: run ? run.metric : "" }, run));
}

/** The groups, why they are these, and how the method compares with the baselines. */
function details(said, run, i) {
  const lead = said.use || said.found;
  return h("div", { class: "details", id: `details-${i}` },
    h("section", {}, h("h2", {}, "The groups"), lead !== said.found && h("p", {}, worded(said.found)), said.personal && h("p", {}, worded(said.personal)), run && groupsNow(run)),
    said.why && h("section", {}, h("h2", {}, "Why"), h("p", {}, worded(said.why))),
    howSure(said.screen),
    h("section", {}, h("h2", {}, "Is it better?"),
      said.better.map((text) => h("p", {}, worded(text))),
      said.constant && h("p", {}, worded(said.constant)),
      said.by_time && h("p", {}, said.by_time),
      said.missing && [h("p", {}, said.missing), said.command && h("pre", {}, said.command)],
      [said.left_out, said.unequal].map((text) => text && h("p", { class: "quiet" }, text)),
      said.noise && h("details", {}, h("summary", {}, "When is a difference significant?"), h("p", { class: "about" }, worded(said.noise)))));
}

/** The differences on which the decision rests, what is not decided, and how the clients' scores are spread. */
function howSure(screen) {
  const { scores } = screen;
  const cells = (row) => [row.by_clients, row.by_examples, ...row.quantiles].map((value) => h("td", {}, score(scores, value)));
  const spread = scores && scores.rows.map((row) => h("tr", {}, h("td", { class: "left" }, row.name), cells(row)));
  const headings = ["", "mean", "by tests", "10 %", "median", "90 %"];
  return h("section", {}, h("h2", {}, "How sure, and what is open"),
    [...screen.sure, ...screen.changes, ...screen.worst].map((text) => h("p", {}, worded(text))),
    screen.open.length > 0 && [h("p", {}, "Not decided:"), h("ul", {}, screen.open.map((text) => h("li", {}, worded(text))))],
    scores && h("details", {}, h("summary", {}, "How the clients' scores are spread"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Scores over clients" },
        h("table", {}, h("thead", {}, h("tr", {}, headings.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, spread)))));
}

/** The groups of a run's last round, with their clients. */
function groupsNow(run) {
  const ids = [...new Set(run.clients.map((client) => client.node))].filter((id) => id >= 0);
  const item = (id) => {
    const inGroup = run.clients.filter((client) => client.node === id);
    const there = inGroup.map((client) => client.id);
    const own = inGroup.filter((client) => client.personal_now).length;
    return h("li", {}, h("span", { class: "swatch", style: `background:${run.colour.node(id)}` }), h("b", {}, named(run, id)),
      ` ${plural(there.length, "client")}: ${members(there)}`,
      known(run.nodes[id].score) && h("span", { class: "quiet" }, ` · ${run.metric} ${score(run, run.nodes[id].score)}${own ? `, ${own === there.length ? "all" : own} with personal models` : ""}`));
  };
  return h("ul", { class: "now" }, ids.slice(0, GROUPS_LISTED).map(item),
    ids.length > GROUPS_LISTED && h("li", { class: "quiet" }, `and ${ids.length - GROUPS_LISTED} more`));
}

/** Each client's main metric with each method, in one round; the worst client first. */
function clientsByMethod(said, run) {
  const { table } = said;
  const nodes = new Map(run ? run.clients.map((client) => [client.id, client.node]) : []);
  const swatch = (client) => nodes.get(client) >= 0 && h("span", { class: "swatch", style: `background:${run.colour.node(nodes.get(client))}` });
  const cell = (value, gain, personal) => [h("span", {}, score(table, value)), personal > 0 && ownMark(personal === table.seeds.length ? "of its personal model" : `of its personal model with ${personal} of ${plural(table.seeds.length, "seed")}`), gain && [" ", gained(gain[0], gain[2], table.over, gain[3])]];
  const needs = table.rows.map((row) => Math.max(...row.gains.filter((gain) => gain && known(gain[3])).map((gain) => gain[3])));
  const needsOf = new Map(table.rows.map((row, i) => [row.client, Number.isFinite(needs[i]) ? needs[i] : null]));
  const columns = [
    { name: "client", left: true, about: "Colours are the groups", value: (r) => r.client, show: (r) => [swatch(r.client), String(r.client)] },
    { name: "tests", less: true, about: "Number of test examples, or of their subjects", value: (r) => r.tests, show: (r) => number(r.tests) },
    ...table.methods.map((method, i) => ({
      name: method, about: `${table.metric} in round ${table.round}`, value: (r) => r.values[i], show: (r) => cell(r.values[i], r.gains[i], r.personal[i]),
    })),
    table.alone && { name: "over training alone", less: true, wrap: true, about: `How much better ${table.alone} is than training alone (independent)`,
      value: (r) => (r.over_alone ? r.over_alone[0] : null), show: (r) => (r.over_alone ? gained(r.over_alone[0], r.over_alone[2], "independent", r.over_alone[3]) : "–") },
    needs.some(Number.isFinite) && { name: "to be sure", less: true, about: "Test examples needed to be sure of a difference that is not significant, if it stays the same",
      value: (r) => needsOf.get(r.client), show: (r) => (known(needsOf.get(r.client)) ? `needs ~${about(needsOf.get(r.client))}` : "") },
  ].filter(Boolean);
  const order = states.get(`verdict ${said.scenario}`) || { column: 2, down: table.better === "smaller" };
  states.set(`verdict ${said.scenario}`, order);
  const foot = [table.pooled ? "all rows" : "mean", "", ...table.means.map((value) => score(table, value)), ...Array(columns.length - table.methods.length - 2).fill("")];
  const means = h("tr", {}, foot.map((text, i) => h("td", { class: columns[i].less ? "less" : null }, text)));
  const seeds = table.seeds.length > 1 ? `, means over ${table.seeds.length} seeds` : "";
  const unsure = table.rows.some((row) => row.gains.some((gain) => gain && !known(gain[2])));
  const marks_ = table.over && table.methods.length > 1
    ? `Differences are from ${table.over}: ▲ significantly better, ▼ significantly worse, ≈ no significant difference${unsure ? ", ? noise is not known" : ""}.${needs.some(Number.isFinite) ? " Where it is not significant, more test examples could tell: how many, if the difference stayed the same, is in the last column." : ""}` : "";
  const own = table.rows.some((row) => row.personal.some(Boolean)) ? " (own): of the client's personal model." : "";
  return [h("h2", {}, `${table.metric[0].toUpperCase()}${table.metric.slice(1)} of each client in round ${table.round}${seeds}`), h("p", { class: "about" }, worded(`${marks_}${own}`)),
    h("div", { class: columns.length > MOST_COLUMNS_BESIDE ? "scroll stacked" : "scroll", tabindex: 0, role: "region", "aria-label": "Clients by method" },
      sortable(columns, table.rows, order, { caption: "Clients by method", foot: means }))];
}
