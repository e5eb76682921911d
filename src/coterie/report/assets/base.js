"use strict";
// Helpers for elements, numbers and text. Text from a record only ever becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
const h = (tag, attributes, ...children) => made(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => made(document.createElementNS(SVG, tag), attributes, children);

/** The numbers of a packed array: {rows, columns, at(i, j)}; NaN where one is missing. See packing.py. */
function unpack(packed) {
  const raw = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
  const width = { i32: 4, u16: 2, u8: 1 }[packed.type];
  const view = new DataView(raw.buffer);
  const read = { i32: (i) => view.getInt32(i * 4, true), u16: (i) => view.getUint16(i * 2, true), u8: (i) => raw[i] }[packed.type];
  const missing = packed.type === "i32" ? null : 2 ** (8 * width) - 1;
  const step = missing === null ? 1 : (packed.high - packed.low) / (missing - 1);
  const value = (code) => (missing === null ? code : code === missing ? NaN : packed.low + step * code);
  const [rows, columns] = packed.shape.length === 2 ? packed.shape : [0, 0];
  return { rows, columns, at: (i, j) => value(read(i * columns + j)) };
}

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
/** A number with about so many digits that tell, as short as it goes. */
function number(value, digits = 3) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (value === 0 || Number.isInteger(value) && size < 1e6) return String(value);
  if (size < 1e-4 || size >= 1e6) return value.toExponential(1);
  if (size < 1e-2) return String(Number(value.toPrecision(2)));
  return size >= 1 ? String(Number(value.toPrecision(digits + 1))) : value.toFixed(digits);
}
/** A value of the run's main metric. */
const score = (run, value) => (run.metric === "accuracy" ? share(value) : number(value));
const share = (value) => (known(value) ? value.toFixed(3) : "–");
function size(count) {
  if (!known(count)) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 1000) return unit === "B" ? `${count} B` : `${count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}
function time(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  return seconds < 6000 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
/** Ids in words: runs joined, long lists cut; names that contain a comma are in quotes. */
function members(ids, most = 10) {
  const spans = [];
  for (const id of [...ids].sort((a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b))) {
    const last = spans[spans.length - 1];
    if (last && typeof id === "number" && id === last[1] + 1) last[1] = id;
    else spans.push([id, id]);
  }
  const one = (id) => (typeof id === "string" && id.includes(",") ? `"${id}"` : `${id}`);
  const words = spans.map(([a, b]) => (a === b ? one(a) : b > a + 1 ? `${a}–${b}` : `${a}, ${b}`));
  return words.length > most ? `${words.slice(0, most).join(", ")}, … ${words[words.length - 1]}` : words.join(", ");
}
const letter = (number) => (known(number) ? (number < 26 ? String.fromCharCode(65 + number) : `T${number}`) : "–");
const mean = (values) => {
  const there = values.filter(known);
  return there.length ? there.reduce((a, b) => a + b, 0) / there.length : NaN;
};
function quantile(sorted, q) {
  if (!sorted.length) return NaN;
  const at = q * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

/** The value of a colour of the style sheet, for canvases. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const palette = (i) => `var(--c${i % 8})`;
/** Colours of lines that are no groups. */
const ink = (i) => `var(--i${i % 6})`;

// -- what is under the pointer, or the cursor of the keyboard --

const tip = document.getElementById("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
}
const hideTip = () => { tip.hidden = true; };

/**
 * Makes a drawing readable cell by cell: by pointer, and by the arrow keys once it has the focus. cells: {columns, rows};
 * find(x, y) -> [column, row] or null, of a point in the drawing; place(column, row) -> [x, y]; say(column, row) -> text.
 * shown(column, row) marks the place; pick(column, row), if there is one, is what a click or Enter does.
 */
function readable(element, label, { cells, find, place, say, shown, pick }) {
  const spoken = h("span", { class: "spoken", "aria-live": "polite" });
  let cursor = null;
  const show = (column, row, x, y) => {
    cursor = [column, row];
    shown(column, row);
    showTip(say(column, row), x, y);
  };
  const leave = () => { hideTip(); shown(null, null); cursor = null; };
  made(element, {
    tabindex: 0, role: "application", "aria-roledescription": "figure", "aria-label": `${label} Arrow keys read it cell by cell.`,
    onpointermove: (event) => {
      const box = element.getBoundingClientRect();
      const at = find(event.clientX - box.left, event.clientY - box.top);
      if (at) show(...at, event.clientX, event.clientY);
      else leave();
    },
    onpointerleave: leave,
    onblur: leave,
    onclick: () => { if (pick && cursor) pick(...cursor); },
    onkeydown: (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Escape") leave();
      if (event.key === "Enter" && pick && cursor) pick(...cursor);
      if (!step || !cells.columns) return;
      event.preventDefault();
      const wide = event.shiftKey ? 10 : 1;
      const from = cursor || [step[0] ? -step[0] : 0, step[1] ? -step[1] : 0]; // the first key shows the first cell
      const column = Math.max(0, Math.min(cells.columns - 1, from[0] + step[0] * wide));
      const row = Math.max(0, Math.min(cells.rows - 1, from[1] + step[1] * wide));
      const [x, y] = place(column, row);
      const box = element.getBoundingClientRect();
      show(column, row, box.left + x, box.top + y);
      spoken.textContent = say(column, row);
    },
  }, []);
  return spoken;
}

/** Draws now, and again whenever the width or the colours change. Returns the element. */
const drawings = new Set();
const widths = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const width = Math.floor(entry.contentRect.width);
    if (width > 0 && entry.target.lastWidth !== width) {
      entry.target.lastWidth = width;
      entry.target.draw(width);
    }
  }
});
function drawn(draw, attributes = {}) {
  const box = h("div", { class: "plot", ...attributes });
  box.draw = (width) => box.replaceChildren(...[draw(width)].flat());
  box.again = () => { if (box.lastWidth) box.draw(box.lastWidth); };
  drawings.add(box);
  widths.observe(box);
  return box;
}
function redraw() {
  for (const box of drawings) box.again();
}
/** Puts other things into a place, and forgets the drawings that were in it. */
function refill(place, ...children) {
  for (const box of place.querySelectorAll(".plot")) {
    drawings.delete(box);
    widths.unobserve(box);
  }
  place.replaceChildren(...children);
}

/** A canvas of so many CSS pixels, sharp on any screen. */
function canvas(width, height) {
  const ratio = window.devicePixelRatio || 1;
  const element = h("canvas", { width: Math.round(width * ratio), height: Math.round(height * ratio), style: `aspect-ratio:${width}/${height}` });
  const pen = element.getContext("2d");
  pen.scale(ratio, ratio);
  return [element, pen];
}

/** A row of buttons of which one is pressed. */
function choices(label, options, current, choose) {
  const buttons = options.map(([value, text]) => h("button", {
    type: "button", "aria-pressed": String(value === current),
    onclick: () => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === value)));
      choose(value);
    },
  }, text));
  return h("div", { class: "choices", role: "group", "aria-label": label }, buttons);
}
