"use strict";
// The matrices behind decisions, ordered by group, round by round.

// Blue to white to orange for similarities, which colour-blind readers can distinguish; white to dark for distances.
const DIVERGING = [[33, 77, 140], [91, 141, 196], [176, 204, 228], [247, 247, 247], [246, 206, 158], [224, 145, 66], [158, 79, 12]];
const SEQUENTIAL = [[255, 255, 245], [205, 225, 214], [127, 188, 193], [56, 140, 170], [31, 88, 132], [17, 41, 84]];

function mixed(stops, part) {
  const at = Math.max(0, Math.min(1, part)) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  return stops[i].map((value, j) => Math.round(value + (at - i) * (stops[i + 1][j] - value)));
}

/** How values of a matrix are coloured: cosines of either sign around zero, anything else from the least to the greatest. */
function shades(matrix, what) {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < matrix.rows; i += 1) {
    for (let j = 0; j < matrix.columns; j += 1) {
      const value = matrix.at(i, j);
      if (i !== j && value < low) low = value;
      if (i !== j && value > high) high = value;
    }
  }
  if (!(low <= high)) [low, high] = [0, 1];
  const cosine = what === "cosine" && low < 0;
  if (cosine) {
    const reach = Math.max(Math.abs(low), Math.abs(high), 1e-9);
    [low, high] = [-reach, reach];
  }
  const stops = cosine ? DIVERGING : SEQUENTIAL;
  return { low, high, stops, what, of: (value) => (known(value) ? mixed(stops, high > low ? (value - low) / (high - low) : 0.5) : [128, 128, 128]) };
}

function squares(run, ui) {
  const all = run.squares;
  const lost = run.squares_lost > 0 && h("p", { class: "quiet" }, `${plural(run.squares_lost, "matrix file")} could not be read.`);
  if (!all.length) return lost || null;
  ui.square = ui.earlier ? Math.min(ui.square, all.length - 1) : all.length - 1; // the latest, unless the reader has gone back
  const place = h("div");
  const caption = h("output", { class: "quiet" });
  const layers = h("span");
  const draw = () => {
    const one = all[ui.square];
    const known_ = Object.keys(one.layers);
    const layer = known_.includes(ui.layer) ? ui.layer : known_[0];
    caption.textContent = `round ${one.round}${all.length > 1 ? ` (${ui.square + 1} of ${all.length})` : ""}`;
    layers.replaceChildren(known_.length < 2 ? "" : h("label", {}, "layer ", h("select", {
      onchange: (event) => { ui.layer = event.target.value; draw(); },
    }, known_.map((name) => h("option", { value: name, selected: name === layer }, name)))));
    refill(place, h("div", { class: "matrix" }, heat(run, one, unpack(one.layers[layer]), ui), h("p", { class: "about" }, worded(one.text))));
  };
  const slider = h("input", {
    type: "range", min: 0, max: all.length - 1, step: 1, value: ui.square, "aria-label": "Clustering round",
    oninput: () => { ui.square = Number(slider.value); ui.earlier = ui.square < all.length - 1; draw(); slider.setAttribute("aria-valuetext", caption.textContent); },
  });
  draw();
  return h("figure", {}, h("div", { class: "controls" }, all.length > 1 && slider, caption, layers), place, lost,
    run.squares_in_all - run.squares_lost > all.length && h("p", { class: "quiet" }, `${all.length} of ${run.squares_in_all} matrices are on this page.`));
}

function heat(run, one, matrix, ui) {
  const shade = shades(matrix, one.what);
  const n = matrix.rows;
  const byId = new Map(run.clients.map((client) => [client.id, client]));
  const label = `Matrix of ${plural(one.clients.length, "client")} in round ${one.round}.`;
  const first = (cell) => (one.edges ? one.edges[cell] : cell);
  const truth = (id) => { const client = byId.get(id); return client && known(client.truth) ? `, true group ${letter(client.truth)}` : ""; };
  const whose = (cell) => (one.edges ? `clients ${members(one.clients.slice(one.edges[cell], one.edges[cell + 1]), 3)}` : `client ${one.clients[cell]}${truth(one.clients[cell])}`);
  const box = drawn((outer) => {
    const stripe = run.true_groups ? 12 : 0;
    const width = Math.min(outer - 90, 560);
    const side = width - stripe - 4;
    const cell = side / n;
    const [element, pen] = canvas(outer, width);
    const image = new ImageData(n, n);
    for (let i = 0; i < n; i += 1) for (let j = 0; j < n; j += 1) image.data.set([...shade.of(i === j && !one.edges ? NaN : matrix.at(i, j)), 255], 4 * (i * n + j));
    const small = h("canvas", { width: n, height: n });
    small.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    const zero = stripe + 4;
    pen.drawImage(small, zero, zero, side, side);
    pen.fillStyle = colour("--text");
    for (let i = 1; i < n; i += 1) {
      if (one.groups[first(i)] !== one.groups[first(i) - 1]) {
        pen.fillRect(zero, zero + i * cell - 0.75, side, 1.5);
        pen.fillRect(zero + i * cell - 0.75, zero, 1.5, side);
      }
    }
    for (let i = 0; !one.edges && cell >= 16 && i < n; i += 1) { // on the diagonal, where there is nothing to compare
      pen.font = "10px system-ui, sans-serif";
      [pen.fillStyle, pen.textAlign, pen.textBaseline] = ["#fff", "center", "middle"];
      pen.fillText(String(one.clients[i]), zero + (i + 0.5) * cell, zero + (i + 0.5) * cell);
    }
    pen.textAlign = "left";
    for (let i = 0; run.true_groups && i < n; i += 1) {
      const client = byId.get(one.clients[first(i)]);
      pen.fillStyle = css(run.colour.truth(client && client.truth));
      pen.fillRect(0, zero + i * cell, stripe, cell + 0.5);
      pen.fillRect(zero + i * cell, 0, cell + 0.5, stripe);
    }
    key(pen, shade, width + 14, Math.min(side, 220));
    const frame = s("rect", { fill: "none", stroke: "var(--text)", "stroke-width": 2, width: Math.max(cell, 4), height: Math.max(cell, 4), hidden: true });
    const over = s("svg", { style: `position:absolute;inset:0;height:${width}px;pointer-events:none`, "aria-hidden": "true" }, frame);
    const group = (i) => (one.groups[first(i)] < 0 ? "gone" : `${ordinal(one.groups[first(i)] + 1)} group`);
    const spoken = readable(element, label, {
      cells: { columns: n, rows: n },
      find: (x, y) => {
        const [column, row] = [Math.floor((x - zero) / cell), Math.floor((y - zero) / cell)];
        return column >= 0 && row >= 0 && column < n && row < n ? [column, row] : null;
      },
      place: (column, row) => [zero + (column + 0.5) * cell, zero + (row + 0.5) * cell],
      say: (column, row) => `${whose(row)} (${group(row)})\nand ${whose(column)} (${group(column)}):\n`
        + `${one.edges ? "mean " : ""}${shade.what} ${number(matrix.at(row, column))}`,
      shown: (column, row) => {
        frame.toggleAttribute("hidden", column === null);
        if (column !== null) made(frame, { x: zero + column * cell, y: zero + row * cell }, []);
      },
      pick: (column, row) => ui.select(one.clients[first(row)]),
    });
    return [element, over, spoken];
  });
  return box;
}
const ordinal = (i) => `${i}${["th", "st", "nd", "rd"][i % 100 > 10 && i % 100 < 14 ? 0 : i % 10] || "th"}`;

/** What the colours mean. */
function key(pen, shade, x, high) {
  for (let i = 0; i < high; i += 1) {
    pen.fillStyle = `rgb(${mixed(shade.stops, 1 - i / high).join()})`;
    pen.fillRect(x, 22 + i, 14, 1.5);
  }
  pen.fillStyle = colour("--quiet");
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (const part of [0, 0.5, 1]) pen.fillText(number(shade.high - part * (shade.high - shade.low), 2), x + 20, 22 + part * high);
  pen.fillText(shade.what, x, 8);
}
