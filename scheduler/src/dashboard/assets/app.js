"use strict";
// The page: a stream of events from the daemon, what they say about cards and sessions, and how it is drawn.
//
//   /api/events ─▶ hello, full, more … ─▶ cards, sessions, lanes ─▶ render (each message), draw (each frame)
//   dialog ─▶ /api/change
//
// The key lives in this tab only. It is sent as a header, so no other site can use it.

const byId = (id) => document.getElementById(id);
const KEY = "gpushare-key";
const MOST_ROWS = 50;
const MOST_LANES = 12;
const COLORS = 8;
const SILENCE_MS = 5000;

const state = {
  role: "guest", live: false, tick: 0, tickMs: 250, window: 240, heardAt: 0,
  cards: new Map(), sessions: new Map(), lanes: new Map(), all: false, filter: "",
};

// ---- Words ----

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count >= 100 || unit === 0 ? count.toFixed(0) : count.toFixed(1)} ${units[unit]}`;
}

function time(ms) {
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

const nameOf = (id) => {
  const known = state.sessions.get(id) || state.lanes.get(id);
  return known && known.name ? known.name : `session ${id}`;
};

function some(ids, most) {
  if (ids.length === 0) return "nobody";
  const names = ids.slice(0, most).map(nameOf).join(", ");
  return ids.length > most ? `${names} and ${ids.length - most} more` : names;
}

const waits = (times) => (times ? `${time(times.p50)} / ${time(times.p99)}` : "–");

// ---- Elements ----

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function text(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

const colorOf = (id) => `var(--s${id % COLORS})`;

// ---- Connection ----

let attempt = 0;
let aborter = null;

const headers = (more = {}) => {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}`, ...more } : more;
};

function notice(words) {
  text(byId("notice"), words);
  byId("notice").hidden = !words;
}

function connection(kind, words) {
  byId("connection").className = kind;
  text(byId("connection"), words);
}

async function exchangeLink() {
  const link = new URLSearchParams(location.hash.slice(1)).get("link");
  if (!link) return;
  // The address bar, the history and bookmarks keep no secret.
  history.replaceState(null, "", "/");
  const answer = await fetch("/api/key", { method: "POST", headers: { Authorization: `Bearer ${link}` } });
  if (!answer.ok) return notice((await answer.text()).trim());
  sessionStorage.setItem(KEY, (await answer.json()).key);
}

async function listen() {
  aborter = new AbortController();
  const answer = await fetch("/api/events", { headers: headers(), signal: aborter.signal, cache: "no-store" });
  if (answer.status === 401) {
    const hadKey = sessionStorage.getItem(KEY) !== null;
    sessionStorage.removeItem(KEY);
    // What an earlier key showed goes with it.
    clear();
    hello("guest");
    // The answer to a link says more than this one.
    if (hadKey || byId("notice").hidden) notice((await answer.text()).trim());
    if (hadKey) return;
    // A new link comes with another address, which loads the page again.
    text(byId("role"), "");
    connection("lost", "not connected");
    await new Promise(() => {});
  }
  if (!answer.ok) throw new Error((await answer.text()).trim());
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the daemon closed the connection");
    state.heardAt = performance.now();
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    events.forEach(receive);
  }
}

async function run() {
  await exchangeLink().catch((cause) => notice(`the link could not be used: ${cause.message}`));
  for (;;) {
    const begun = performance.now();
    state.heardAt = begun;
    let why = "";
    try {
      await listen();
    } catch (cause) {
      why = cause.message;
    }
    state.live = false;
    // Whoever was connected for a while is back at once.
    attempt = performance.now() - begun > 10000 ? 0 : attempt + 1;
    const pause = why ? Math.min(8, 2 ** (attempt - 1)) : 0.1;
    if (why) connection("lost", `no answer from the daemon; trying again in ${pause < 1 ? 1 : pause} s`);
    await new Promise((done) => setTimeout(done, pause * 1000));
  }
}

setInterval(() => {
  if (aborter && performance.now() - state.heardAt > SILENCE_MS) aborter.abort(new Error("no news"));
}, 1000);

// ---- Events ----

function receive(event) {
  const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
  if (data.length === 0) return;
  const message = JSON.parse(data.join(""));
  if (message.role) return hello(message.role);
  if (message.kind === "full") {
    clear();
    Object.assign(state, { tickMs: message.tick_ms, window: message.window });
    text(byId("version"), message.version);
    for (const [id, runs] of message.runs) state.lanes.set(id, { runs });
    attempt = 0;
    state.live = true;
    connection("live", "live");
  }
  state.tick = message.tick;
  (message.cards || []).forEach((card) => state.cards.set(card.gpu, card));
  for (const session of message.sessions || []) {
    state.sessions.set(session.id, session);
    lane(session.id).name = session.name;
    lane(session.id).cards = session.memory.map(([gpu]) => gpu);
  }
  if (message.kind === "more") (message.runs || []).forEach(([id, run]) => lane(id).runs.push(run));
  for (const id of message.gone || []) {
    state.sessions.delete(id);
    lane(id).runs.push([state.tick, [0, 0, 0]]);
    lane(id).ended = state.tick;
  }
  prune();
  render();
}

function clear() {
  state.cards.clear();
  state.sessions.clear();
  state.lanes.clear();
  byId("cards").replaceChildren();
  byId("sessions").replaceChildren();
  cardNodes.clear();
  rowNodes.clear();
}

function lane(id) {
  if (!state.lanes.has(id)) state.lanes.set(id, { runs: [], cards: [] });
  return state.lanes.get(id);
}

function prune() {
  const first = state.tick - state.window;
  for (const [id, { runs, ended }] of state.lanes) {
    while (runs.length > 1 && runs[1][0] <= first) runs.shift();
    if (ended !== undefined && ended < first) state.lanes.delete(id);
  }
}

function hello(role) {
  state.role = role;
  const words = {
    guest: "numbers only; `gpushare-ctl dashboard` opens this page with names",
    viewer: "you may look",
    admin: "you may change settings",
  };
  text(byId("role"), words[role] || role);
  byId("leave").hidden = role === "guest";
  document.documentElement.dataset.role = role;
  if (role !== "guest") notice("");
}

// A new link in the same tab changes only the fragment.
window.addEventListener("hashchange", () => location.reload());

byId("leave").addEventListener("click", async () => {
  await fetch("/api/end", { method: "POST", headers: headers() }).catch(() => {});
  sessionStorage.removeItem(KEY);
  aborter.abort(new Error("the key was forgotten"));
  attempt = 0;
});

// ---- Cards ----

const cardNodes = new Map();

const FACTS = [
  "Holds now", "Queue", "Next turn", "Handoffs", "Wait p50 / p99", "Handoff p50 / p99", "Memory moved",
];

function cardNode(gpu) {
  if (cardNodes.has(gpu)) return cardNodes.get(gpu);
  const node = {
    title: element("h2"), mode: element("p", { class: "caption" }), memory: element("div", { class: "memory", role: "img" }),
    caption: element("p", { class: "caption" }), canvas: element("canvas", { role: "img" }),
    facts: FACTS.map(() => element("dd")),
    change: element("button", { type: "button" }, "Change …"),
  };
  node.change.addEventListener("click", () => openDialog({ gpu }));
  const keys = element("p", { class: "caption" },
    element("span", { class: "key hold" }, "holds, in the session's colour"),
    element("span", { class: "key move" }, "hands over: drains or moves memory"),
    element("span", { class: "key wait" }, "waits"));
  const list = element("dl", {},
    ...FACTS.map((name, at) => element("div", {}, element("dt", {}, name), node.facts[at])));
  byId("cards").append(element("article", {},
    element("div", { class: "title" }, node.title, node.change), node.mode,
    node.memory, node.caption, node.canvas, keys, list));
  cardNodes.set(gpu, node);
  return node;
}

function onCard(gpu) {
  const found = [];
  for (const session of state.sessions.values()) {
    const here = session.memory.find(([card]) => card === gpu);
    if (here) found.push([session, here[1]]);
  }
  return found;
}

function renderMemory(node, card, here) {
  const scale = Math.max(card.total, card.allocated, 1);
  const shown = here.filter(([, used]) => used > 0).sort((a, b) => b[1] - a[1]);
  const largest = shown.slice(0, 40).sort((a, b) => a[0].id - b[0].id);
  const rest = shown.slice(40).reduce((sum, [, used]) => sum + used, 0);
  const parts = largest.map(([session, used]) =>
    [used, colorOf(session.id), nameOf(session.id)]);
  if (rest > 0) parts.push([rest, "var(--faint)", `${shown.length - 40} more`]);
  while (node.memory.childElementCount > parts.length) node.memory.lastChild.remove();
  parts.forEach(([used, color, words], at) => {
    const part = node.memory.children[at] || node.memory.appendChild(element("span"));
    part.style.width = `${(100 * used) / scale}%`;
    part.style.background = color;
    part.title = `${words}: ${bytes(used)}`;
    // A name that is cut to two letters says nothing.
    text(part, used / scale > 0.06 ? words : "");
  });
  const ratio = card.capacity > 0 ? card.allocated / card.capacity : 0;
  const over = ratio > 1 ? `, ${ratio.toFixed(2)} times the capacity` : "";
  const allocated = `${bytes(card.allocated)} allocated${over}; capacity ${bytes(card.capacity)} of ${bytes(card.total)}`;
  const words = allocated + places(card.remapped);
  text(node.caption, words);
  node.memory.setAttribute("aria-label", words);
}

// Where remapped memory is; nothing for a card without it.
function places(remapped) {
  if (!remapped) return "";
  const moving = remapped.moving > 0 ? `, ${bytes(remapped.moving)} moving` : "";
  return `; remapped: ${bytes(remapped.resident)} on the card, ${bytes(remapped.hosted)} in host memory${moving}`;
}

// One direction of a handoff: how much, of how much, at which rate.
function way(words, { bytes: moved, rest, per_second: rate }) {
  const all = rest > 0 ? ` of ${bytes(moved + rest)}` : "";
  return moved === 0 ? "" : `${bytes(moved)}${all} ${words} at ${bytes(rate)}/s`;
}

function movedWords(moved) {
  if (!moved) return "";
  const ways = [way("out", moved.out), way("in", moved.in)].filter((words) => words);
  const both = ways.length === 2 ? `, ${Math.round(moved.overlap_percent)}% of it both ways at once` : "";
  return `${ways.join(", ") || "nothing yet"}, ${moved.is_running ? "so far " : ""}${time(moved.took_ms)}${both}`;
}

function renderCard(card) {
  const node = cardNode(card.gpu);
  const here = onCard(card.gpu);
  const holders = here.filter(([session]) => session.state === "holding" || session.state === "moving");
  const ids = holders.map(([session]) => session.id);
  text(node.title, `gpu${card.gpu}: ${card.name}`);
  node.title.title = card.uuid;
  text(node.mode, `${card.mode}: ${card.reason}`);
  node.change.hidden = state.role !== "admin";
  renderMemory(node, card, here);
  const queue = card.queue.filter((id) => (state.sessions.get(id) || {}).state === "waiting");
  const values = [
    some(ids, 3),
    card.waiters === 0 ? "empty" : `${card.waiters}: ${some(queue, 3)}`,
    time(card.quantum_ms), String(card.handoffs), waits(card.wait), waits(card.handoff),
    movedWords(card.moved),
  ];
  values.forEach((value, at) => text(node.facts[at], value));
  node.facts[FACTS.length - 1].parentElement.hidden = !card.moved;
  const label = `Timeline of the last minute. Holding now: ${some(ids, 3)}. Waiting: ${some(queue, 3)}.`;
  if (node.canvas.getAttribute("aria-label") !== label) node.canvas.setAttribute("aria-label", label);
  node.lanes = chooseLanes(card.gpu);
}

// Those that hold or held, then those that wait; shown by number, so that rows do not jump.
function chooseLanes(gpu) {
  const found = [];
  for (const [id, { runs, cards }] of state.lanes) {
    if (!cards.includes(gpu)) continue;
    let held = 0;
    let waited = 0;
    runs.forEach(([from, [hold, move, wait]], at) => {
      const until = at + 1 < runs.length ? runs[at + 1][0] : state.tick;
      const ticks = until - Math.max(from, state.tick - state.window);
      held += ticks * (hold + move);
      waited += ticks * wait;
    });
    if (held + waited > 0) found.push([id, held, waited]);
  }
  found.sort((a, b) => b[1] - a[1] || b[2] - a[2] || a[0] - b[0]);
  return { ids: found.slice(0, MOST_LANES).map(([id]) => id).sort((a, b) => a - b), more: found.length - MOST_LANES };
}

// ---- Timeline ----

function draw() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const since = state.live ? (performance.now() - state.heardAt) / state.tickMs : 0;
  const now = state.tick + Math.min(since, 4);
  for (const { canvas, lanes } of cardNodes.values()) if (lanes) drawCard(canvas, lanes, now, color);
}

function drawCard(canvas, { ids, more }, now, color) {
  const width = canvas.parentElement.clientWidth - 2 * parseFloat(getComputedStyle(canvas.parentElement).paddingLeft);
  const rowHeight = 20;
  const axis = 18;
  const height = Math.max(1, ids.length) * rowHeight + axis + (more > 0 ? rowHeight : 0);
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const left = Math.min(150, width * 0.28);
  const x = (tick) => left + ((tick - now + state.window) / state.window) * (width - left);
  const seconds = (state.window * state.tickMs) / 1000;
  const bottom = height - axis;
  pen.textAlign = "center";
  for (let ago = 0; ago < seconds; ago += 15) {
    const at = x(now - (ago * 1000) / state.tickMs);
    pen.strokeStyle = color("--line");
    pen.beginPath();
    pen.moveTo(at, 0);
    pen.lineTo(at, bottom);
    pen.stroke();
    pen.fillStyle = color("--faint");
    pen.textAlign = ago === 0 ? "right" : "center";
    pen.fillText(ago === 0 ? "now" : `${ago} s ago`, at, bottom + axis / 2 + 1);
  }
  pen.textAlign = "left";
  if (ids.length === 0) pen.fillText("nobody held the card or waited in the last minute", left + 8, rowHeight / 2);
  ids.forEach((id, row) => {
    const { runs } = state.lanes.get(id) || { runs: [] };
    const top = row * rowHeight;
    pen.fillStyle = color("--text");
    pen.fillText(fit(pen, nameOf(id), left - 8), 0, top + rowHeight / 2);
    runs.forEach(([from, [hold, move, wait]], at) => {
      const until = at + 1 < runs.length ? runs[at + 1][0] : now;
      // Whole pixels, so that equal neighbours have no seam.
      const begin = Math.round(Math.max(x(from), left) * ratio) / ratio;
      const end = Math.round(x(until) * ratio) / ratio;
      if (end <= begin) return;
      const bar = (height, share, fill) => {
        pen.globalAlpha = share === 0 ? 0 : 0.25 + 0.75 * (share / 100);
        pen.fillStyle = fill;
        pen.fillRect(begin, top + (rowHeight - height) / 2, end - begin, height);
      };
      bar(4, wait, color("--wait"));
      bar(10, move, color("--move"));
      bar(14, hold, color(`--s${id % COLORS}`));
      pen.globalAlpha = 1;
    });
  });
  if (more > 0) {
    pen.fillStyle = color("--faint");
    pen.fillText(`and ${more} more sessions, in the list below`, left + 8, bottom - rowHeight / 2);
  }
}

function fit(pen, words, width) {
  if (pen.measureText(words).width <= width) return words;
  let length = words.length;
  while (length > 1 && pen.measureText(`${words.slice(0, length)}…`).width > width) length -= 1;
  return `${words.slice(0, length)}…`;
}

// Ten frames a second are enough for a minute on some hundred pixels.
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
setInterval(() => {
  if (document.visibilityState === "visible" && !calm.matches) requestAnimationFrame(draw);
}, 100);
window.addEventListener("resize", () => requestAnimationFrame(draw));

// ---- Sessions ----

const rowNodes = new Map();
const CELLS = ["State", "Memory", "Weight", "Priority", "Wait p50 / p99", "Turns", "Processes"];

function rowNode(id) {
  if (rowNodes.has(id)) return rowNodes.get(id);
  const node = { name: element("th", { scope: "row" }), cells: [] };
  node.cells = CELLS.map((title) => element("td", { "data-title": title }));
  [2, 4, 5, 6].forEach((at) => node.cells[at].classList.add("number"));
  [0, 1, 4].forEach((at) => node.cells[at].classList.add("wide"));
  node.state = element("span");
  node.cells[0].append(node.state);
  node.used = element("span");
  node.meter = element("span", { class: "meter", "aria-hidden": "true" }, node.used);
  node.bytes = element("span");
  node.here = element("span", { class: "part" });
  node.cells[1].append(node.meter, node.bytes, node.here);
  node.change = element("button", { type: "button" }, "Change …");
  node.change.addEventListener("click", () => openDialog({ session: id }));
  node.row = element("tr", {}, node.name, ...node.cells, element("td", { class: "change" }, node.change));
  rowNodes.set(id, node);
  return node;
}

function stateWords(session) {
  if (session.phase !== "good") return session.phase;
  if (session.stuck) return "does not let go";
  if (session.frozen) return "frozen";
  const nowMs = state.tick * state.tickMs;
  const words = { idle: "idle", waiting: "waits", moving: "moves in", holding: "holds", dropping: "drains" };
  const age = Math.max(0, nowMs - session.since_ms);
  const showsAge = session.state !== "idle" && age >= 1000;
  return words[session.state] + (showsAge ? ` ${age < 60000 ? `${Math.floor(age / 1000)} s` : time(age)}` : "");
}

function renderRow(session) {
  const node = rowNode(session.id);
  text(node.name, nameOf(session.id));
  node.name.title = `session ${session.id}`;
  node.state.className = `state ${session.state}${session.stuck || session.phase !== "good" ? " bad" : ""}`;
  text(node.state, stateWords(session));
  const used = session.memory.reduce((sum, [, count]) => sum + count, 0);
  const limits = session.memory.map(([gpu, , limit]) => limit ?? (state.cards.get(gpu) || {}).total ?? 0);
  const limit = limits.reduce((sum, count) => sum + count, 0);
  node.used.style.width = `${limit > 0 ? Math.min(100, (100 * used) / limit) : 0}%`;
  node.used.style.background = colorOf(session.id);
  const hasQuota = session.memory.some(([, , quota]) => quota !== null);
  const onCard = (session.remapped || []).reduce((sum, [, { resident }]) => sum + resident, 0);
  const moves = (session.remapped || []).some(([, { moving }]) => moving > 0);
  text(node.bytes, hasQuota ? `${bytes(used)} of ${bytes(limit)}` : bytes(used));
  text(node.here, session.remapped ? `${moves ? "⇅ " : ""}${bytes(onCard)} on the card` : "");
  text(node.cells[2], String(session.weight));
  text(node.cells[3], session.priority);
  text(node.cells[4], waits(session.wait));
  text(node.cells[5], String(session.turns));
  text(node.cells[6], String(session.processes));
  node.change.hidden = state.role !== "admin";
  node.change.setAttribute("aria-label", `Change ${nameOf(session.id)}`);
  return node.row;
}

function renderSessions() {
  const wanted = [...state.sessions.values()].filter((session) =>
    nameOf(session.id).toLowerCase().includes(state.filter));
  const many = wanted.length > MOST_ROWS;
  const rank = (session) => (many && session.state === "idle" ? 1 : 0);
  wanted.sort((a, b) => rank(a) - rank(b) || a.id - b.id);
  const shown = state.all ? wanted : wanted.slice(0, MOST_ROWS);
  const rows = shown.map(renderRow);
  const body = byId("sessions");
  rows.forEach((row, at) => {
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] || null);
  });
  while (body.childElementCount > rows.length) body.lastChild.remove();
  for (const id of rowNodes.keys()) if (!state.sessions.has(id)) rowNodes.delete(id);
  const waiting = [...state.sessions.values()].filter((session) => session.state === "waiting").length;
  text(byId("count"), `${state.sessions.size}, of which ${waiting} wait`);
  byId("all").hidden = !many;
  text(byId("all"), state.all ? `Show ${MOST_ROWS}` : `Show all ${wanted.length}`);
}

function render() {
  if (document.visibilityState !== "visible") return;
  for (const gpu of [...state.cards.keys()].sort((a, b) => a - b)) renderCard(state.cards.get(gpu));
  if (state.cards.size === 0 && byId("cards").childElementCount === 0) {
    byId("cards").append(element("p", {}, "No card is known yet. It appears with the first program that uses it."));
  } else if (state.cards.size > 0) {
    byId("cards").querySelectorAll(":scope > p").forEach((node) => node.remove());
  }
  renderSessions();
  if (calm.matches) draw();
}

document.addEventListener("visibilitychange", render);
byId("all").addEventListener("click", () => { state.all = !state.all; render(); });
byId("filter").addEventListener("input", (event) => { state.filter = event.target.value.toLowerCase(); render(); });

// ---- Changes ----

const SETTINGS = {
  weight: { of: "session", kind: "number" },
  priority: { of: "session", choices: ["low", "normal", "high"] },
  pause: { of: "session", when: (session) => session.phase === "good" },
  resume: { of: "session", when: (session) => session.phase === "paused" },
  quantum: { of: "gpu", kind: "text" },
  mode: { of: "gpu", choices: ["auto", "parallel", "time-sliced", "serialized"] },
};

let target = null;

function openDialog(what) {
  target = what;
  const of = what.gpu === undefined ? "session" : "gpu";
  const session = state.sessions.get(what.session);
  const names = Object.keys(SETTINGS).filter((name) => SETTINGS[name].of === of
    && (!SETTINGS[name].when || SETTINGS[name].when(session)));
  byId("setting").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  text(byId("change-title"), of === "gpu" ? `Change gpu${what.gpu}` : `Change ${nameOf(what.session)}`);
  chooseSetting();
  byId("change").showModal();
}

function present(name) {
  if (target.gpu !== undefined) return name === "mode" ? state.cards.get(target.gpu).mode : "";
  return String((state.sessions.get(target.session) || {})[name] ?? "");
}

function chooseSetting() {
  const name = byId("setting").value;
  const { kind, choices } = SETTINGS[name];
  byId("value-label").hidden = !kind;
  byId("choice-label").hidden = !choices;
  byId("value").type = kind === "number" ? "number" : "text";
  byId("value").value = present(name);
  byId("value").placeholder = name === "quantum" ? "like 100ms, or auto" : "";
  byId("choice").replaceChildren(...(choices || []).map((value) => element("option", { value }, value)));
  if (choices) byId("choice").value = present(name);
  unask();
}

// The first press asks, the second one changes.
function unask() {
  text(byId("question"), "");
  text(byId("answer"), "");
  text(byId("ask"), "Change");
}

function asked() {
  const name = byId("setting").value;
  const { kind, choices } = SETTINGS[name];
  const value = choices ? byId("choice").value : byId("value").value.trim();
  const change = { set: name, ...target };
  if (kind || choices) change.value = kind === "number" ? Number(value) : value;
  return change;
}

async function submit(event) {
  event.preventDefault();
  const change = asked();
  const whose = target.gpu === undefined ? nameOf(target.session) : `gpu${target.gpu}`;
  if (!byId("question").textContent) {
    const to = change.value === undefined ? "" : ` to ${change.value}`;
    const words = change.value === undefined ? `${change.set} ${whose}` : `set ${change.set} of ${whose}${to}`;
    text(byId("question"), `Really ${words}?`);
    text(byId("answer"), "");
    text(byId("ask"), `Yes, ${change.value === undefined ? change.set : "set"} it`);
    return;
  }
  try {
    const answer = await fetch("/api/change", {
      method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(change),
    });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    byId("change").close();
  } catch (cause) {
    unask();
    text(byId("answer"), cause.message);
  }
}

byId("setting").addEventListener("change", chooseSetting);
byId("value").addEventListener("input", unask);
byId("choice").addEventListener("change", unask);
byId("cancel").addEventListener("click", () => byId("change").close());
byId("form").addEventListener("submit", submit);

run();
