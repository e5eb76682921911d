"use strict";
// Groups over the rounds: a row per client, a block per group; and the same as a list, with the reasons.

/** Colours of a run's present groups and of its true groups; figures have the same, see colours.py. */
function colours(run) {
  return {
    node: (id) => {
      const node = run.nodes[id];
      if (!node) return "var(--ended)";
      if (known(node.colour)) return node.name === "all" ? "var(--all)" : palette(node.colour);
      return manyGroups(run) ? palette(id) : "var(--ended)";
    },
    truth: (i) => (known(run.truth_colours[i]) ? palette(run.truth_colours[i]) : "var(--ended)"),
  };
}
/** What a group is called: "all" if it has all clients. */
const named = (run, id) => (run.nodes[id] ? run.nodes[id].name : "–");
const css = (value) => (value.startsWith("var(") ? colour(value.slice(4, -1)) : value);

function groupsMap(run, ui) {
  const n = run.clients.length;
  const rounds = run.rounds.groups.length;
  const height = Math.max(90, Math.min(360, n * 13));
  const members_ = unpack(run.members);
  const label = `Groups of ${plural(n, "client")} over ${plural(rounds, "round")}.`;
  const box = drawn((width) => {
    const left = run.true_groups ? 34 : 12;
    const right = width < 480 ? 92 : 150;
    const wide = (width - left - right) / rounds;
    const high = height / n;
    const [element, pen] = canvas(width, height + 24);
    const gap = manyGroups(run) ? 0 : Math.min(2, high);
    const air = high >= 8 ? high * 0.35 : 0; // few clients are stripes, many are blocks
    const seam = manyGroups(run) ? 0 : Math.min(2, wide / 4); // with thousands of groups, lines would cover everything
    const paint = (i, id) => css(ui.byTruth && run.true_groups ? run.colour.truth(run.clients[i].truth) : run.colour.node(id));
    for (let i = 0; i < n; i += 1) {
      for (let from = 0; from < rounds;) {
        const id = members_.at(i, from);
        let to = from + 1;
        while (to < rounds && members_.at(i, to) === id) to += 1;
        if (id >= 0) {
          pen.fillStyle = paint(i, id);
          pen.fillRect(left + from * wide, i * high + air / 2, (to - from) * wide - seam, high - air + (air ? 0 : 0.5));
        }
        from = to;
      }
      if (run.true_groups) {
        pen.fillStyle = css(run.colour.truth(run.clients[i].truth));
        pen.fillRect(0, i * high, 14, Math.ceil(high));
      }
    }
    pen.fillStyle = colour("--ground");
    for (let i = 1; gap > 0 && i < n; i += 1) {
      for (let from = 0; from < rounds; from += 1) { // lines between groups
        if (members_.at(i, from) !== members_.at(i - 1, from)) pen.fillRect(left + from * wide, i * high - gap / 2, wide, gap);
      }
    }
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    if (run.true_groups) trueLetters(run, pen, high);
    names(run, pen, high, width - right + 6, width < 480);
    pen.fillStyle = colour("--quiet");
    pen.textAlign = "center";
    for (const tick of ticks(1, rounds, Math.min(12, width / 70)).filter((t) => Number.isInteger(t) && t >= 1)) {
      pen.fillText(String(tick), left + (tick - 0.5) * wide, height + 12);
    }
    const frame = s("rect", { fill: "none", stroke: "var(--text)", "stroke-width": 2, hidden: true });
    const over = s("svg", { style: `position:absolute;inset:0;height:${height + 24}px;pointer-events:none`, "aria-hidden": "true" }, frame);
    const spoken = readable(element, label, {
      cells: { columns: rounds, rows: n },
      find: (x, y) => {
        const [column, row] = [Math.floor((x - left) / wide), Math.floor(y / high)];
        return row >= 0 && row < n && column < rounds && x >= 0 ? [Math.max(0, column), row] : null;
      },
      place: (column, row) => [left + (column + 0.5) * wide, (row + 0.5) * high],
      say: (column, row) => sayPlace(run, members_.at(row, column), row, column + 1),
      shown: (column, row) => {
        frame.toggleAttribute("hidden", column === null);
        if (column === null) return;
        const id = members_.at(row, column);
        let [top, bottom] = [row, row];
        while (top > 0 && members_.at(top - 1, column) === id) top -= 1;
        while (bottom + 1 < n && members_.at(bottom + 1, column) === id) bottom += 1;
        const node = run.nodes[id] || { first: column + 1, last: column + 1 };
        made(frame, { x: left + (node.first - 1) * wide, y: top * high, width: (node.last - node.first + 1) * wide, height: (bottom - top + 1) * high }, []);
      },
      pick: (column, row) => ui.select(run.clients[row].id),
    });
    return [element, over, spoken];
  });
  return h("figure", {}, box);
}

/** The letters of true groups beside their clients. */
function trueLetters(run, pen, high) {
  pen.fillStyle = colour("--text");
  pen.textAlign = "left";
  for (let i = 0; i < run.clients.length;) {
    let to = i + 1;
    while (to < run.clients.length && run.clients[to].truth === run.clients[i].truth) to += 1;
    if ((to - i) * high >= 11) pen.fillText(letter(run.clients[i].truth), 17, ((i + to) / 2) * high);
    i = to;
  }
}

/** The groups of now, to the right of their blocks. */
function names(run, pen, high, x, narrow) {
  pen.textAlign = "left";
  for (let i = 0; i < run.clients.length;) {
    const id = run.clients[i].node;
    let to = i + 1;
    while (to < run.clients.length && run.clients[to].node === id) to += 1;
    if (id >= 0 && (to - i) * high >= 12) {
      const node = run.nodes[id];
      pen.fillStyle = colour("--text");
      pen.fillText(`${named(run, id)}  ${narrow ? to - i : plural(to - i, "client")}  ${known(node.score) ? node.score.toFixed(2) : ""}`, x, ((i + to) / 2) * high);
    }
    i = to;
  }
}

function sayPlace(run, id, row, round) {
  const client = run.clients[row];
  const truth = known(client.truth) ? `, true group ${letter(client.truth)}` : "";
  const bad = client.adversary ? ", an adversary" : "";
  if (id < 0) return `round ${round}, client ${client.id}${truth}${bad}: absent`;
  const node = run.nodes[id];
  const lines = [`round ${round}, client ${client.id}${truth}${bad}`, `in ${sayNode(run, node)}`];
  if (known(node.why)) lines.push(`since round ${node.first}: ${run.reasons[node.why]}`);
  return lines.join("\n");
}
/** Its clients in words; of a large group the first. */
const inside = (node) => members(node.clients) + (node.count > node.clients.length ? ", …" : "");
const sayNode = (run, node) => `${node.name}, rounds ${node.first} to ${node.last}, ${plural(node.count, "client")} (${inside(node)}), `
  + `${run.metric} ${score(run, node.score)}${known(node.tested) ? ` in round ${node.tested}` : ""}`;

/** The groups as a tree: every group below the one that gave most of its members; a reason that siblings share once. */
function groupsList(run) {
  if (run.nodes.length > 150) return h("p", { class: "quiet" }, `${run.nodes.length} groups in all rounds: too many for a list.`);
  const below = new Map();
  for (const node of run.nodes) {
    const from = node.parents.length ? node.parents[0] : -1;
    below.set(from, [...(below.get(from) || []), node]);
  }
  const reason = (node) => known(node.why) && `Round ${node.first}: ${run.reasons[node.why]}`;
  const item = (node, siblings) => {
    const first = siblings.find((sibling) => reason(sibling) === reason(node));
    return [
      reason(node) && first === node && h("li", { class: "why" }, reason(node)),
      h("li", {},
        h("span", { class: "swatch", style: `background:${run.colour.node(node.id)}` }), h("b", {}, node.name),
        ` rounds ${node.first}–${node.last} · ${plural(node.count, "client")}: ${inside(node)} · ${run.metric} ${score(run, node.score)}`,
        truths(run, node),
        node.parents.length > 1 && h("span", { class: "why" }, `also from ${node.parents.slice(1, 6).map((id) => named(run, id)).join(", ")}`),
        children(node.id))];
  };
  const children = (id) => {
    const nodes = below.get(id) || [];
    return nodes.length > 0 && h("ul", { class: id < 0 ? "tree" : null }, nodes.map((node) => item(node, nodes)));
  };
  return children(-1);
}
function truths(run, node) {
  return run.true_groups && ` · true groups ${node.truth.map(([i, count]) => `${letter(i)} ${count}`).join(", ") || "unknown"}`;
}
