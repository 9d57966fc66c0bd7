// Draws the views that views.py makes: decode → a canvas (heat, colour) or an SVG (lines, bars). No library, no network.
// Colours of text and lines are custom properties of style.css, so that light and dark need no code.

const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"];
const BALANCE = ["16306d", "2a64b5", "6ba1d4", "b3cde6", "f1f1f1", "f0c3ab", "df8566", "b93b36", "6b0f22"];
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320, HEIGHT = 132, LEFT = 8, RIGHT = 8, TOP = 14, BOTTOM = 18;

/** The 256 colours between these, as bytes. */
function table(hexes) {
  const anchors = hexes.map((hex) => [0, 2, 4].map((k) => parseInt(hex.slice(k, k + 2), 16)));
  const found = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (anchors.length - 1), k = Math.min(Math.floor(at), anchors.length - 2);
    for (let c = 0; c < 3; c++) found[3 * i + c] = anchors[k][c] + (at - k) * (anchors[k + 1][c] - anchors[k][c]);
  }
  return found;
}

const EVEN = table(VIRIDIS), SIGNED = table(BALANCE);

/** The colour of x between 0 and 1, as CSS has it. */
export function colour(x, signed = false) {
  const colours = signed ? SIGNED : EVEN, i = 3 * Math.max(0, Math.min(255, Math.round(255 * x)));
  return `rgb(${colours[i]}, ${colours[i + 1]}, ${colours[i + 2]})`;
}

/** The points of a view as x between 0 and 1. */
function points(view) {
  const bytes = Uint8Array.from(atob(view.values), (c) => c.charCodeAt(0));
  if (view.dtype === "u1") return Float32Array.from(bytes, (b) => b / 255);
  const data = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => data.getFloat32(4 * i, true));
}

/** The numbers of a view, in the units of the data. */
export function decode(view) {
  const [low, high] = view.range;
  return Float64Array.from(points(view), (x) => low + (high - low) * x);
}

/** A number for people. */
export function short(value) {
  return value === 0 ? "0" : Number(value.toPrecision(3)).toString();
}

/** A name, or its beginning: there is little room. */
export function brief(name, letters = 24) {
  return name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
}

function html(name, className, text = "") {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  return node;
}

function svg(name, attributes, text = "") {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

/** The indices that a point stands for. */
function indices(axis, k) {
  const first = k * axis.step, last = Math.min(first + axis.step, axis.size) - 1;
  return first === last ? `${axis.name} ${first}` : `${axis.name} ${first}–${last}`;
}

function painted(view) {
  const [rows, columns] = view.shape, x = points(view), numbers = decode(view), coloured = view.kind === "colour";
  const canvas = html("canvas", "view-cells");
  canvas.width = columns;
  canvas.height = rows;
  canvas.style.aspectRatio = `${Math.max(columns, rows / 3)} / ${Math.max(rows, columns / 3)}`;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  const colours = view.signed ? SIGNED : EVEN;
  for (let k = 0; k < rows * columns; k++) {
    const i = 3 * Math.round(255 * (coloured ? 0 : x[k]));
    for (let c = 0; c < 3; c++) image.data[4 * k + c] = coloured ? 255 * x[3 * k + c] : colours[i + c];
    image.data[4 * k + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  canvas.addEventListener("pointermove", (event) => {
    const i = Math.min(rows - 1, Math.max(0, Math.floor((event.offsetY / canvas.clientHeight) * rows)));
    const j = Math.min(columns - 1, Math.max(0, Math.floor((event.offsetX / canvas.clientWidth) * columns)));
    const at = i * columns + j, cell = coloured ? [0, 1, 2].map((c) => numbers[3 * at + c]) : [numbers[at]];
    canvas.title = `${indices(view.axes[0], i)}, ${indices(view.axes[1], j)}: ${cell.map(short).join(", ")}`;
  });
  return canvas;
}

/** Ends of the axes of a drawing: a line at zero, the bound above it, first and last index below. */
function frame(view, axis) {
  const [low, high] = view.range, node = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "view-lines" });
  const zero = TOP + (HEIGHT - TOP - BOTTOM) * (high > low ? high / (high - low) : 1);
  node.append(
    svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: zero, y2: zero, class: "view-axis" }),
    svg("text", { x: LEFT, y: TOP - 4 }, short(high)),
    svg("text", { x: LEFT, y: HEIGHT - 5 }, "0"),
    svg("text", { x: WIDTH / 2, y: HEIGHT - 5, "text-anchor": "middle" }, axis.name === view.title ? "" : brief(axis.name)),
    svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, String(axis.size - 1)),
  );
  return { node, zero, at: (x) => HEIGHT - BOTTOM - x * (HEIGHT - TOP - BOTTOM) };
}

function lines(view) {
  const [count, length] = view.shape, x = points(view), axis = view.axes[view.axes.length - 1];
  const { node, at } = frame(view, axis), wide = WIDTH - LEFT - RIGHT;
  for (let i = 0; i < count; i++) {
    const place = (k) => `${(LEFT + (wide * k) / Math.max(1, length - 1)).toFixed(1)},${at(x[i * length + k]).toFixed(1)}`;
    const line = svg("polyline", { points: Array.from({ length }, (_, k) => place(k)).join(" "), class: "view-line" });
    line.style.stroke = `var(--line-${i % 8})`;
    if (count > 1) line.append(svg("title", {}, indices(view.axes[0], i)));
    node.append(line);
  }
  return node;
}

function bars(view) {
  const [count] = view.shape, x = points(view), numbers = decode(view), axis = view.axes[0];
  const { node, zero, at } = frame(view, axis), wide = (WIDTH - LEFT - RIGHT) / count;
  for (let k = 0; k < count; k++) {
    const y = at(x[k]), top = Math.min(y, zero);
    const size = { x: LEFT + wide * (k + 0.1), width: 0.8 * wide, y: top, height: Math.abs(y - zero), class: "view-bar" };
    const bar = svg("rect", size);
    bar.append(svg("title", {}, `${indices(axis, k)}: ${short(numbers[k])}`));
    node.append(bar);
  }
  return node;
}

/** Draw a view into an element, in place of what is there. */
export function draw(view, element) {
  const found = html("figure", "view"), first = view.axes[0].name;
  const body = view.kind === "lines" ? lines(view) : view.kind === "bars" ? bars(view) : painted(view);
  const said = `${view.title || view.axes.map((axis) => axis.name).join(" × ")}, up to ${short(view.range[1])}`;
  body.setAttribute("role", "img");
  body.setAttribute("aria-label", said);
  if (view.title) found.append(html("figcaption", "view-title", view.title));
  found.append(body);
  if (view.kind === "heat" || view.kind === "colour") {
    const [low, high] = view.range.map(short), legend = html("div", "view-legend");
    legend.append(html("span", "", `${first} ↓  ${view.axes[1].name} →`));
    if (view.kind === "heat") {
      const bar = html("span", "view-scale");
      const stops = Array.from({ length: 9 }, (_, k) => colour(k / 8, view.signed)).join(", ");
      bar.style.background = `linear-gradient(to right, ${stops})`;
      const scale = html("span", "view-range");
      scale.append(low, bar, high);
      legend.append(scale);
    }
    found.append(legend);
  } else if (view.kind === "lines" && view.axes.length > 1) {
    found.append(html("div", "view-legend", `a line for each ${first}`));
  }
  if (view.note) found.append(html("div", "view-note", view.note));
  element.replaceChildren(found);
}

/** Draw all views of an atom into an element, in place of what is there. */
export function drawAtom(atom, element) {
  const places = atom.views.map((view) => {
    const place = html("div", "view-place");
    draw(view, place);
    return place;
  });
  element.replaceChildren(...places);
}
