"use strict";
// Tables that can be sorted: of clients, and of runs.

const ROWS = 60; // rows shown at first: the page stays short, and a browser is slow with thousands

/**
 * columns: [{name, about, left, less, value(row), show(row)}]; rows of anything; narrow screens leave out a column with less.
 * order: {column, down}, kept by whoever made it; a column of -1 leaves the rows as they are.
 * chosen(row): whether it is marked; pick(row): what a click on it does; foot: a last row that is not sorted.
 */
function sortable(columns, rows, order, { chosen, pick, caption, odd, foot } = {}) {
  const body = h("tbody");
  order.most = order.most || ROWS;
  const heads = columns.map((column, i) => {
    const button = h("button", {
      type: "button", title: column.about,
      onclick: () => { order.down = order.column === i ? !order.down : !column.left; order.column = i; fill(); },
    }, column.name);
    return h("th", { scope: "col", class: classOf(column) }, button);
  });
  const table = h("table", {}, caption && h("caption", { class: "spoken" }, caption), h("thead", {}, h("tr", {}, heads)), body, foot && h("tfoot", {}, foot));
  let shown = rows;
  function fill() {
    const { value } = columns[order.column] || { value: () => 0 };
    const sorted = [...shown].sort((a, b) => compared(value(a), value(b), order.down));
    heads.forEach((head, i) => {
      head.setAttribute("aria-sort", i !== order.column ? "none" : order.down ? "descending" : "ascending");
      head.firstChild.textContent = columns[i].name + (i === order.column ? (order.down ? " ▾" : " ▴") : "");
    });
    const more = sorted.length > order.most && h("tr", {}, h("td", { colspan: columns.length },
      h("button", { type: "button", onclick: () => { order.most = Infinity; fill(); } }, `show the other ${sorted.length - order.most}`)));
    body.replaceChildren(...sorted.slice(0, order.most).map((row) => h("tr", {
      "aria-selected": chosen ? String(chosen(row)) : null, class: odd && odd(row) ? "odd" : null,
      onclick: pick && (() => pick(row)),
    }, columns.map((column) => h("td", { class: classOf(column) }, column.show(row))))), ...(more ? [more] : []));
  }
  table.fill = (only) => { if (only) shown = only; fill(); };
  fill();
  return table;
}
const classOf = (column) => [column.left && "left", column.less && "less", column.wrap && "wrap"].filter(Boolean).join(" ") || null;
/** What is missing comes last, whichever way. */
function compared(a, b, down) {
  if (!known(a) || !known(b)) return known(b) - known(a);
  return (typeof a === "string" ? a.localeCompare(b) : a - b) * (down ? -1 : 1);
}

function clientTable(run, ui) {
  const gains = new Map(run.gains ? run.gains.of.map(([client, ...rest]) => [client, rest]) : []);
  const gain = (client) => gains.get(client.id) || [];
  const columns = [
    { name: "client", left: true, about: "Its id", value: (c) => c.id, show: (c) => h("button", { type: "button", title: "Show in the charts", onclick: (event) => { event.stopPropagation(); ui.select(c.id); } }, String(c.id)) },
    { name: "group", left: true, about: "Its group after the last round", value: (c) => c.node, show: (c) => (c.node < 0 ? "absent" : [h("span", { class: "swatch", style: `background:${run.colour.node(c.node)}` }), named(run, c.node)]) },
    run.true_groups && { name: "true group", left: true, less: true, about: "From the data; hidden from all methods", value: (c) => c.truth, show: (c) => [h("span", { class: "swatch", style: `background:${run.colour.truth(c.truth)}` }), letter(c.truth), c.adversary ? " (adversary)" : ""] },
    { name: "examples", less: true, about: "Training examples", value: (c) => c.examples, show: (c) => number(c.examples) },
    { name: run.metric, about: "On its own test data, as last tested", value: (c) => c.score, show: (c) => [score(run, c.score), c.personal.includes(lastTested(run)) && ownMark("of its personal model")] },
    run.gains && { name: "over fedavg", about: `How much better its ${run.metric} is than with FedAvg, both in round ${run.gains.round}`,
      value: (c) => gain(c)[0], show: (c) => (gain(c).length ? gained(...gain(c), `fedavg in round ${run.gains.round}`) : "–") },
    { name: "loss", less: true, about: "On its own test data, as last tested", value: (c) => c.loss, show: (c) => number(c.loss) },
    { name: "with the model of each group on its path", left: true, less: true, about: "As last tested in each group; the best is underlined; (own): of the client's personal model", value: (c) => c.path.length, show: (c) => way(run, c) },
    { name: "best", left: true, less: true, about: "The group on its path whose model was best for it", value: (c) => c.best, show: (c) => (known(c.best) ? named(run, c.best) : "–") },
    { name: "missed", less: true, about: "Rounds in which it did not answer, or was away", value: (c) => c.silent, show: (c) => number(c.silent) },
    run.clients.some((c) => c.refused) && { name: "refused", less: true, about: "Replies that were refused", value: (c) => c.refused, show: (c) => number(c.refused) },
  ].filter(Boolean);
  const table = sortable(columns, run.clients, ui.order, {
    chosen: (client) => client.id === ui.client, pick: (client) => ui.select(client.id), caption: "Clients",
    odd: (client) => client.node < 0,
  });
  const count = h("output", { class: "quiet" });
  const filter = h("input", { type: "search", placeholder: "7, or G3", "aria-label": "Show only this client or group", value: ui.filter || "", oninput: () => only(filter.value) });
  function only(text) {
    ui.filter = text;
    const wanted = text.trim().toLowerCase();
    const rows = run.clients.filter((c) => !wanted || String(c.id).toLowerCase() === wanted || named(run, c.node).toLowerCase() === wanted);
    count.textContent = plural(rows.length, "client");
    table.fill(rows);
  }
  only(ui.filter || "");
  ui.follow.push(() => table.fill());
  return h("div", {}, h("div", { class: "controls" }, h("label", {}, "only ", filter), count), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of clients" }, table));
}
/** Marks a number that is of a client's personal model, and not of its group's. */
const ownMark = (title) => h("span", { class: "own", title }, " (own)");
const lastTested = (run) => run.scores.rounds[run.scores.rounds.length - 1];
const signed = (value) => (known(value) ? `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}` : "–");
function way(run, client) {
  return client.path.map(([node, round, value], i) => [
    i ? " → " : "", h("span", { class: node === client.best ? "best" : null, title: known(round) ? `as tested in round ${round}` : "never tested" },
      `${named(run, node)} ${known(value) ? value.toFixed(2) : "–"}`, client.personal.includes(round) && ownMark(`of its personal model, as tested in round ${round}`)),
  ]);
}
