// The panels of the live page. Everything that comes from the service is put in as text, never as HTML.

import { brief, drawAtom } from "./atoms.js";
import { chart } from "./charts.js";

const place = (id) => document.getElementById(id);

/** An element with a class and text, or with children. */
export function make(name, className = "", content = "") {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (Array.isArray(content)) node.append(...content);
  else node.textContent = content;
  return node;
}

/** A number for people: four digits, thousands apart, or a dash. */
export function number(value, digits = 4) {
  if (typeof value !== "number") return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en").replaceAll(",", "\u202f");
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(digits - 2);
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 8 }).replaceAll(",", "\u202f");
}

const percent = (x) => (x === null ? "–" : x >= 0.0995 ? `${Math.round(100 * x)} %` : `${(100 * x).toFixed(1)} %`);
const clock = (at) => new Date(1000 * at).toLocaleTimeString("en-GB");
const sum = (map) => Object.values(map ?? {}).reduce((a, b) => a + (b ?? 0), 0);

// ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** The tiles at the top; rates are those of the last points. */
export function tiles(status, rate) {
  const lag = Object.keys(status.lag_records).length ? sum(status.lag_records) : null;
  const dead = sum(status.dead_letters);
  const found = [
    ["step t", number(status.step), status.epoch ? `epoch ${status.epoch}` : status.doing],
    ["tensors seen", number(status.seen_tensors), `${number(status.tensors)} this life`],
    ["tensors/s", number(rate, 3), `weight ${number(status.weight, 2)}`],
    ["lag", number(lag), lag === null ? "not known yet" : `records, ${number(status.lag_seconds, 2)} s`],
    ["surrogate loss", number(status.surrogate_loss), "of a tensor"],
    ["prequential", number(status.prequential_loss), "before learning"],
    ["zeros in codes", percent(status.code_zeros_ratio), `${number(status.dead_atoms)} dead atoms`],
    ["dead letters", number(dead), "since it began", dead > 0],
    ["checkpoint", number(status.checkpoint_step), age(status.checkpoint_age_seconds)],
  ];
  place("tiles").replaceChildren(...found.map(([name, value, more, alarm]) => {
    const tile = make("div", "tile", [make("div", "name", name), make("div", "value", value), make("div", "more", more)]);
    if (alarm) tile.dataset.alarm = "";
    return tile;
  }));
}

function age(seconds) {
  return seconds === null ? "none in this life" : `${number(Math.round(seconds))} s ago`;
}

// ── the dictionary ──────────────────────────────────────────────────────────────────────────────────────────────

/** What is known of an atom beside its picture. */
function facts(atom) {
  const lately = atom.lately === null ? "" : `lately ${percent(atom.lately)}`;
  const old = `${atom.at_least ? "at least " : ""}${number(atom.age)} step${atom.age === 1 ? "" : "s"} old`;
  const drift = atom.drift === null ? "" : atom.drift < 0.005 ? "at rest" : `turned by ${number(atom.drift, 2)}°`;
  return [lately, old, drift].filter(Boolean);
}

const use = (atom) => (atom.dead ? "dead" : `use ${percent(atom.use)}`);

/** The atoms; cards stay where they are, so that the focus does, and are filled anew. */
export function dictionary(found, choose) {
  const grid = place("atoms"), drawn = found.atoms.filter((atom) => atom.views);
  if (found.t === null) return grid.replaceChildren(make("p", "faint", "There is no dictionary yet."));
  const compared = found.compared_with === null ? "" : ` Turned: since the snapshot of step ${number(found.compared_with)}.`;
  const window_ = found.window ? ` Lately: in the last ${number(found.window.tensors)} tensors.` : "";
  const few = drawn.length < found.atoms.length ? ` ${drawn.length} of ${found.atoms.length} are drawn.` : "";
  place("dictionary-note").textContent =
    `After step ${number(found.t)}, the most used first: by the energy of an atom's part in the tensors so far.` +
    `${window_}${compared}${few} Choose an atom to see which tensors used it.`;
  if (grid.querySelector(":scope > :not(.atom)")) grid.replaceChildren();
  while (grid.children.length > drawn.length) grid.lastChild.remove();
  while (grid.children.length < drawn.length) grid.append(card(choose));
  const focused = document.activeElement?.closest(".atom")?.dataset.atom;
  drawn.forEach((atom, k) => fill(grid.children[k], atom));
  if (focused !== undefined) grid.querySelector(`.atom[data-atom="${Number(focused)}"]`)?.focus({ preventScroll: true });
  place("more").hidden = drawn.length === found.atoms.length;
  return grid;
}

function card(choose) {
  const meter = make("div", "meter", [make("div")]);
  const head = make("div", "atom-head", [make("strong"), make("span", "faint")]);
  const node = make("button", "atom", [head, make("div", "atom-views"), meter, make("div", "atom-facts")]);
  node.type = "button";
  node.addEventListener("click", () => choose(Number(node.dataset.atom)));
  return node;
}

function fill(node, atom) {
  node.dataset.atom = atom.atom;
  node.toggleAttribute("data-dead", atom.dead);
  node.querySelector("strong").textContent = `atom ${atom.atom}`;
  node.querySelector(".atom-head span").textContent = use(atom);
  node.querySelector(".meter div").style.width = `${100 * Math.min(1, atom.use)}%`;
  node.querySelector(".atom-facts").replaceChildren(...facts(atom).map((fact) => make("span", "", fact)));
  node.setAttribute("aria-label", `atom ${atom.atom}: ${[use(atom), ...facts(atom)].join(", ")}. Show who used it`);
  drawAtom(atom, node.querySelector(".atom-views"));
}

/** One atom, large, and the tensors that used it. */
export function atom(found) {
  place("atom-title").textContent = `Atom ${found.atom}`;
  const views = make("div", "atom-large");
  drawAtom(found, views);
  const rows = found.positions.map((one) => [
    [one.partition, "number"], [one.offset, "number"], [number(one.step), "number"],
    [number(one.code, 3), "number"], [percent(one.share), "number"],
  ]);
  const heads = ["partition", "offset", "step", "code", "share"], topic = found.positions[0]?.topic ?? "";
  const list = rows.length ? make("div", "scroll", [table(heads, rows)]) : make("p", "", "None did.");
  const said = found.window
    ? `Of the last ${number(found.window.tensors)} tensors of ${topic}, those in which it is strongest, and its share ` +
      "in their energy. What became of one: stream-ocpdl explain."
    : "Nothing was learned since the service began.";
  place("atom-body").replaceChildren(
    make("p", "", `${[use(found), ...facts(found)].join(", ")}; after step ${number(found.t)}.`),
    views, make("h3", "", "Who used it"), make("p", "faint", said), list,
  );
}

function table(heads, rows, className = "") {
  const cell = (name, text, kind = "") => make(name, kind, String(text));
  const numeric = heads.map((_, k) => (rows[0]?.[k]?.[1] === "number" ? "number" : ""));
  const head = make("thead", "", [make("tr", "", heads.map((text, k) => cell("th", text, numeric[k])))]);
  const body = make("tbody", "", rows.map((row) => make("tr", "", row.map(([text, kind]) => cell("td", text, kind)))));
  return make("table", className, [head, body]);
}

// ── curves ──────────────────────────────────────────────────────────────────────────────────────────────────────

const curve = (name, x, y, colour, dashed = false) => ({ name, x, y, colour, dashed });
const positive = (values) => values.map((value) => (value > 0 ? value : null)); // a logarithm has nothing else

const CURVES = ["losses", "movements", "throughput", "lag"];

/** In place of curves, why there are none. */
function without(reason) {
  for (const element of CURVES.map(place)) {
    window.Plotly?.purge(element);
    element.replaceChildren(make("p", "faint", reason));
    element.dataset.empty = "";
  }
}

/** All curves, if the library is there, and anything to draw. */
export function curves(points, modes) {
  if (!window.Plotly) return without("Curves are drawn by Plotly, which this service does not have: pip install plotly");
  if (!points.length) return without("Nothing was learned yet.");
  for (const element of CURVES.map(place).filter((one) => "empty" in one.dataset)) {
    element.replaceChildren();
    delete element.dataset.empty;
  }
  const t = points.map((p) => p.t), at = points.map((p) => new Date(1000 * p.at));
  const loss = [
    curve("surrogate f̂", t, positive(points.map((p) => p.surrogate)), 0),
    curve("prequential", t, positive(points.map((p) => p.prequential)), 1),
  ];
  const radius = (i) => positive(points.map((p) => p.radii?.[i]));
  const one = points.every((p) => p.radii.every((r) => r === p.radii[0])); // then it is drawn once
  const moves = modes.flatMap((mode, i) => [
    curve(brief(mode, 40), t, positive(points.map((p) => p.movements[i])), i),
    ...(one ? [] : [curve(`radius, ${brief(mode, 40)}`, t, radius(i), i, true)]),
  ]);
  if (one) moves.push(curve("radius", t, radius(0), 7, true));
  const rates = points.map((p, k) => rate(points, k));
  chart({ x: "step", y: "loss of a tensor", log: "y", curves: loss }, place("losses"));
  chart({ x: "step", y: "movement", log: "xy", curves: moves }, place("movements"));
  chart({ x: "time", y: "tensors/s", log: "", dates: true, curves: [curve("tensors/s", at, rates, 0)] }, place("throughput"));
  const lag = points.map((p) => p.lag);
  return chart({ x: "time", y: "records", log: "", dates: true, curves: [curve("lag", at, lag, 1)] }, place("lag"));
}

/** Tensors a second up to a point: over the points of at least the two seconds before it. */
export function rate(points, k) {
  let first = k;
  while (first > 0 && points[k].at - points[first].at < 2 && points[first - 1].tensors <= points[k].tensors) first--;
  const seconds = points[k].at - points[first].at;
  return seconds > 0.5 ? (points[k].tensors - points[first].tensors) / seconds : null;
}

// ── the theorem, chains, dead letters ───────────────────────────────────────────────────────────────────────────

/** The assumption card. */
export function card_(lines) {
  place("card").replaceChildren(...lines.map((line) => {
    const standing = make("span", `standing ${["holds", "fails", "open"].find((s) => s === line.standing) ?? ""}`, line.standing);
    const name = make("p", "", [standing, make("strong", "", line.name)]);
    return make("li", "", [name, make("p", "", line.meaning), make("p", "faint", `${line.standing}: ${line.reason}`)]);
  }));
}

/** How many chains go on, how many are silent, and what was found about their draws. */
export function chains(found, going, together) {
  const any = found.some((one) => one.count > 0);
  const said = any
    ? "Draws of samplers, in all lives of the model:"
    : "No draw of a sampler was repeated, late, behind a gap, or of tuning. That also holds where no draws come, but tensors.";
  const list = make("dl", "counts", found.flatMap((one) => {
    const count = make("dt", one.count > 0 ? "open" : "", number(one.count));
    return [count, make("dd", "", [make("strong", "", one.kind), ` · ${one.meaning}`])];
  }));
  const alive = "active" in going
    ? [make("p", going.silent ? "open" : "", `${number(going.active)} active, ${number(going.silent)} silent` +
        (together ? `; ${number(together)} in the last minibatch.` : "."))]
    : [];
  place("chains").replaceChildren(...alive, make("p", "", said), list);
}

/** The health of the chains; a number beyond its limit stands out. */
export function health(found) {
  place("health").hidden = !found.length;
  if (!found.length) return;
  const beyond = (value, wrong) => (typeof value === "number" && wrong ? "number open" : "number");
  const rows = found.map((one) => [
    [one.quantity],
    [number(one.classical_split_rhat), beyond(one.classical_split_rhat, one.classical_split_rhat > 1.1)],
    [number(one.autocorrelation_draws, 3), "number"],
    [number(one.effective_draws && Math.round(one.effective_draws)), beyond(one.effective_draws, one.effective_draws < 100)],
  ]);
  place("health-all").replaceChildren(table(["quantity", "split-R̂", "τ in draws", "ESS"], rows));
  place("health-note").textContent =
    "The classical split-R̂ of the chains of a run, limit 1.1; the longest autocorrelation time; the smallest effective " +
    "sample size of a chain, 100 at least. The norm is the sampler's alone: if it is well and loss or codes are not, " +
    "the dictionary still moves. It begins anew with every start of the service.";
}

/** What ranks tell of the last draws. */
export function ranks(found) {
  const rows = found.runs.filter((run) => run.window).flatMap((run) => Object.keys(run.window.rank_rhat).map((name) => [
    [`${run.run}: ${run.window.chains} × ${number(run.window.draws)}`], [name],
    [number(run.window.rank_rhat[name]), run.window.rank_rhat[name] > found.limits.rank_rhat ? "number open" : "number"],
    [number(run.window.bulk_ess[name] && Math.round(run.window.bulk_ess[name])), "number"],
    [number(run.window.tail_ess[name] && Math.round(run.window.tail_ess[name])), "number"],
  ]));
  const heads = ["run: chains × draws", "quantity", "rank R̂", "bulk ESS", "tail ESS"];
  const said = `Rank-normalised split-R̂, limit ${found.limits.rank_rhat}; ESS of all chains together.`;
  place("health-ranked").hidden = false;
  place("health-ranked").replaceChildren(make("p", "faint", said), table(heads, rows));
}

/** The last dead letters. */
export function letters(found) {
  if (!found.letters.length) return place("letters").replaceChildren(make("p", "", "Nothing was refused since it began."));
  const rows = found.letters.map((one) => [
    [clock(one.at), "time"], [`${one.topic} ${one.partition}:${one.offset}`], [one.error, "time"], [one.reason, "long"],
  ]);
  const said = `${number(found.refused)} since it began; the last ${rows.length}. All of them: stream-ocpdl dlq list`;
  const heads = ["when", "topic partition:offset", "error", "reason"];
  return place("letters").replaceChildren(make("p", "faint", said), table(heads, rows, "stack"));
}
