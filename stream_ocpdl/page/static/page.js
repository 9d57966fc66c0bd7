// The live page: connects, keeps what it was told, and has the panels drawn. Paused while nobody can see it.

import * as panels from "./panels.js";

const FEWEST = 600, MOST = 1200;        // points that are kept: of more, every second one goes
const REDRAWN = 2000;                   // milliseconds between two pictures of the dictionary
const CURVED = 1500;                    // and between two of the curves
const REASONS = 4;                      // why it is not ready, at most
const TOLD = 60;                        // seconds for which a restart is told
const PAUSES = [1000, 2000, 4000, 5000]; // before another attempt
const ANSWER = 2000;                    // milliseconds in which a service that is there says why it has no stream
const SHARE = 4;                        // a dictionary that took the service a second is asked for again after so many

const clock = (at) => new Date(1000 * at).toLocaleTimeString("en-GB");
const place = (id) => document.getElementById(id);
const now = {
  events: null, timer: 0, attempts: 0, lastAt: 0, restartedAt: -Infinity, goneSince: null, instance: null,
  shard: new URLSearchParams(location.search).get("shard"), shown: null, paused: false, atoms: 36, drawing: false,
};

/** Nothing is known any more of a shard, or another one is shown. */
function forget() {
  Object.assign(now, { points: [], modes: [], known: false, dictionary: "", drawAt: 0, refused: -1, card: "", grown: false, curvesAt: 0 });
}

forget();

// ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────

/** What the service answers, or nothing; an answer for a shard that is no longer chosen is nothing. */
async function ask(path, more = {}) {
  const chosen = now.shard ?? now.shown, query = new URLSearchParams({ ...(chosen === null ? {} : { shard: chosen }), ...more });
  try {
    const answer = await fetch(`${path}?${query}`);
    return answer.ok && chosen === (now.shard ?? now.shown) ? await answer.json() : null;
  } catch {
    return null;
  }
}

// ── the connection ──────────────────────────────────────────────────────────────────────────────────────────────

function connect() {
  disconnect();
  if (now.paused || document.hidden) return say("paused", now.paused ? "paused" : "paused while hidden");
  const last = now.points.at(-1)?.at;
  const query = new URLSearchParams({ ...(now.shard === null ? {} : { shard: now.shard }), ...(last ? { since: last } : {}) });
  const events = new EventSource(`/api/events?${query}`);
  now.events = events;
  events.addEventListener("frame", (event) => frame(JSON.parse(event.data)));
  events.addEventListener("bye", () => lost("The service is ending."));
  events.onerror = () => failed(events);
  return undefined;
}

function disconnect() {
  now.events?.close();
  now.events = null;
  clearTimeout(now.timer);
}

/** Why a service that is there has no stream for us, "" if it has one by now; nothing if it is not there. */
async function refusal(address) {
  const stop = new AbortController(), timer = setTimeout(() => stop.abort(), ANSWER);
  try {
    const answer = await fetch(address, { signal: stop.signal });
    return answer.ok ? "" : answer.status === 503 ? (await answer.json()).error : null;
  } catch {
    return null;
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

/** There is no stream, or no more: either all are taken, or the service is gone. */
async function failed(events) {
  events.close();
  const told = await refusal(events.url);
  if (now.events !== events) return; // somebody paused it, or chose another shard
  if (typeof told !== "string") return lost("The service does not answer.");
  disconnect();
  now.goneSince = null;
  if (told) say("waiting", "full", `The service is there, but ${told}.${seen()} Trying again …`, now.lastAt > 0);
  again();
  return undefined;
}

/** Of when that is which is shown. */
function seen() {
  return now.lastAt ? ` What you see is of ${clock(now.lastAt)}.` : "";
}

function again() {
  now.timer = setTimeout(connect, PAUSES[Math.min(now.attempts++, PAUSES.length - 1)]);
}

/** The service is gone: say so and since when, and try again, not too often. */
function lost(why) {
  disconnect();
  now.goneSince ??= new Date();
  say("gone", "gone", `${why} It is gone since ${now.goneSince.toLocaleTimeString("en-GB")}.${seen()} Trying again …`);
  again();
}

/** The state in a word, and what there is to know about it; and whether what is shown is of the past. */
function say(state, word, notice = "", stale = state === "gone") {
  const pill = place("state"), box = place("notice");
  if (pill.textContent !== word) pill.textContent = word;
  pill.dataset.state = box.dataset.state = state;
  if (box.textContent !== notice) box.textContent = notice;
  box.hidden = !notice;
  document.body.classList.toggle("stale", stale);
}

// ── a frame ─────────────────────────────────────────────────────────────────────────────────────────────────────

function frame(found) {
  if (now.instance !== null && now.instance !== found.instance) {
    Object.assign(now, { restartedAt: found.at, dictionary: "", refused: -1, known: false });
  }
  Object.assign(now, { attempts: 0, goneSince: null, lastAt: found.at, instance: found.instance });
  document.title = `${found.model} · stream_ocpdl`;
  place("model").textContent = found.model;
  choices(found);
  const waiting = found.reasons.length > 0;
  const told = found.at - now.restartedAt < TOLD ? `The service was started again; seen at ${clock(now.restartedAt)}.` : "";
  const notes = [told, waiting ? `Not ready: ${some(found.reasons)}.` : ""].filter(Boolean).join(" ");
  say(waiting ? "waiting" : "live", waiting ? "not ready" : "live", notes, !found.status && now.shown !== null);
  if (found.status) return shard(found);
  const elsewhere = found.role === "standby" ? "This process is a standby: another one writes." : "No such shard is written here.";
  place("standing").textContent = `${found.role}. ${elsewhere}`;
  return undefined;
}

/** The first reasons, and how many more there are: of many shards there may be many. */
function some(reasons) {
  const more = reasons.length - REASONS;
  return [...reasons.slice(0, REASONS), ...(more > 0 ? [`and ${more} more`] : [])].join("; ");
}

function shard(found) {
  if (now.shown !== found.shard) { // the one before was given to another process
    if (now.shown !== null) forget();
    now.shown = found.shard;
  }
  const status = found.status, many = found.count > 1 ? `, shard ${found.shard} of ${found.count}` : "";
  place("standing").textContent = `${found.role}${many} · ${status.doing} · step ${panels.number(status.step)}`;
  const renamed = now.modes.join() !== status.modes.join(); // names may come with the first tensors
  now.modes = status.modes;
  if (!now.known) history();
  append(found.points);
  const rate = now.points.length ? panels.rate(now.points, now.points.length - 1) : null;
  const stale = now.points.length && found.at - now.points.at(-1).at > 5; // nothing was learned for a while
  panels.tiles(status, stale ? 0 : rate);
  now.grown ||= found.points.length > 0 || renamed;
  if (now.grown && performance.now() - now.curvesAt > CURVED) curves();
  const card = JSON.stringify([status.card, status.integrity, status.chains, status.chains_in_minibatch, status.health]);
  if (card !== now.card) {
    now.card = card;
    panels.card_(status.card);
    panels.chains(status.integrity, status.chains, status.chains_in_minibatch);
    panels.health(status.health);
  }
  if (status.refused !== now.refused) {
    now.refused = status.refused;
    ask("/api/dead-letters").then((all) => all && panels.letters(all));
  }
  const held = status.dictionary;
  redraw(held ? `${held.epoch}/${held.t}` : "none");
}

/** Points that are newer than ours; a model that went back takes ours with it. */
function append(points) {
  for (const point of points) {
    while (now.points.length && now.points.at(-1).t >= point.t) now.points.pop();
    now.points.push(point);
  }
  if (now.points.length > MOST) now.points = now.points.filter((_, k) => k % 2 === 0 || k >= FEWEST);
}

/** What happened before this page was opened. */
async function history() {
  now.known = true;
  const found = await ask("/api/history");
  if (!found) {
    now.known = false;
    return;
  }
  const first = found.points[0]?.t ?? Infinity, last = found.points.at(-1)?.at ?? 0;
  const newer = now.points.filter((point) => point.at > last);
  now.points = now.points.filter((point) => point.t < first);
  append([...found.points, ...newer]);
  curves();
}

function curves() {
  Object.assign(now, { grown: false, curvesAt: performance.now() });
  panels.curves(now.points, now.modes);
}

/** Ask for the dictionary if there is another one; not twice at a time, and not too often. */
async function redraw(version) {
  if (version === now.dictionary || now.drawing || performance.now() < now.drawAt) return;
  now.drawing = true;
  const found = await ask("/api/dictionary", { atoms: now.atoms });
  now.drawing = false;
  if (!found) return;
  const pause = Math.max(REDRAWN, SHARE * 1000 * (found.seconds ?? 0));
  Object.assign(now, { dictionary: version, drawAt: performance.now() + pause });
  panels.dictionary(found, choose);
  document.documentElement.dataset.drawn = String(found.t);
}

async function choose(r) {
  const found = await ask(`/api/atoms/${r}`);
  if (!found) return;
  panels.atom(found);
  if (!place("atom").open) place("atom").showModal();
}

// ── what people do ──────────────────────────────────────────────────────────────────────────────────────────────

/** The shards that can be chosen. */
function choices(found) {
  const select = place("shard"), wanted = found.shards.join();
  place("chooser").hidden = found.count < 2 || !found.shards.length;
  if (select.dataset.shards !== wanted) {
    select.dataset.shards = wanted;
    select.replaceChildren(...found.shards.map((number) => new Option(String(number), String(number))));
  }
  if (found.shard !== undefined && document.activeElement !== select) select.value = String(found.shard);
}

place("shard").addEventListener("change", (event) => {
  Object.assign(now, { shard: event.target.value, shown: null });
  forget();
  panels.curves([], []);
  connect();
});

place("pause").addEventListener("click", () => {
  now.paused = !now.paused;
  place("pause").textContent = now.paused ? "Go on" : "Pause";
  place("pause").setAttribute("aria-pressed", String(now.paused));
  connect();
});

place("more").addEventListener("click", () => {
  Object.assign(now, { atoms: Math.min(200, 2 * now.atoms), dictionary: "", drawAt: 0 });
});

place("rank").addEventListener("click", () => {
  ask("/api/chains").then((found) => found && panels.ranks(found));
});

place("atom").addEventListener("click", (event) => { // beside it
  if (event.target === place("atom")) place("atom").close();
});

document.addEventListener("visibilitychange", connect);
connect();
