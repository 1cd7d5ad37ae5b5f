// Follows the event log: over the event WebSocket, and where that cannot be had by asking every two seconds.
//
// Data of an event gets into the page as text only. The page keeps as many rows as the viewer has chosen, and
// nothing is lost between the two ways: each goes on behind the last event that was seen.

const EVERY = 2000;
const SLOWEST = 15000;
const PATIENCE = 10000;
const RETRY = [5000, 15000, 60000];
const KNOWN = 2000;
const CHARACTERS = 4000;
const REFUSED = [401, 403]; // as is what leads elsewhere, to the login: until the reader comes back to the page
const ZEROS = "00000000-0000-0000-0000-000000000000";

const box = document.querySelector("[data-ojs-tail]");
const worth = JSON.parse(box?.dataset.worth ?? "{}"); // members worth a glance, and what they are called
const status = document.querySelector("[data-ojs-follow]");
const button = document.querySelector("[data-ojs-pause]");
const none = document.querySelector("[data-ojs-none]");
const choices = Object.fromEntries(["detail", "order", "rows"].map((name) => [name, document.querySelector(`[data-ojs-${name}]`)]));
const body = box?.querySelector("tbody");

const known = new Set();
let cursor = box?.dataset.cursor;
let state = "";
let paused = false;
let waiting = [];
let socket = null;
let refusals = 0;
let timer = 0;
let losses = 0;
let asking = false;

function show(next = state) {
  state = next;
  const word = paused && state !== "lost" && state !== "refused" ? (waiting.length ? "waiting" : "paused") : state;
  const text = word === "waiting" ? `${status.dataset.waiting} ${waiting.length}` : status.dataset[word];
  status.dataset.state = word === "asking" ? "live" : word;
  if (status.textContent !== text) status.textContent = text;
}

// Rows

function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

function shorten(text, length = 160) {
  const line = String(text).replace(/\s+/g, " ").trim();
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}

function note(data) {
  if (data.error && typeof data.error === "object") {
    return shorten(`${data.error.type ?? "error"}: ${data.error.message ?? ""}`);
  }
  const found = Object.entries(worth).filter(([name]) => data[name] !== undefined && data[name] !== null);
  return shorten(found.map(([name, word]) => `${word}: ${data[name]}`).join(", "));
}

function about(event, data) {
  if (!data.job_id) return make("span", shorten(event.subject ?? "", 60));
  const element = make(box.dataset.job ? "a" : "span", `…${String(data.job_id).slice(-12)}`, "ojs-id");
  element.title = String(data.job_id);
  if (box.dataset.job) element.href = box.dataset.job.replace(ZEROS, encodeURIComponent(data.job_id));
  return element;
}

function cell(content, className = "") {
  const made = make("td", "", className);
  made.append(content);
  return made;
}

function row(event) {
  const data = event.data ?? {};
  const time = make("time", ojsLocal(new Date(event.time)));
  time.dateTime = time.title = event.time;
  const label = /^[a-z]+$/.test(data.state ?? "") ? make("span", data.state, `ojs-label ojs-${data.state}`) : "";
  const full = JSON.stringify(data, null, 2);
  const shown = cell(make("span", note(data)), "ojs-data");
  const whole = make("pre", full.length > CHARACTERS ? `${full.slice(0, CHARACTERS)}…` : full, "ojs-json");
  whole.tabIndex = 0; // it scrolls
  shown.append(whole);
  const made = make("tr");
  made.dataset.id = event.id;
  made.append(
    cell(time, "ojs-line"), cell(make("code", event.type, "ojs-code")), cell(about(event, data), "ojs-line"),
    cell(shorten(data.job_type ?? "", 60)), cell(shorten(data.queue ?? "", 60)), cell(label),
    cell(data.attempt ? String(data.attempt) : "", "ojs-number"), shown,
  );
  return made;
}

function gap() {
  const made = make("tr", "", "ojs-gap");
  const only = cell(box.dataset.gap);
  only.colSpan = 8;
  made.append(only);
  return made;
}

function trim() {
  const most = Number(choices.rows.value);
  while (body.rows.length > most) (choices.order.value === "top" ? body.lastElementChild : body.firstElementChild).remove();
}

function put(rows) {
  if (!rows.length) return;
  const following = choices.order.value === "bottom" && innerHeight + scrollY >= document.body.scrollHeight - 40;
  if (choices.order.value === "top") body.prepend(...rows.toReversed());
  else body.append(...rows);
  trim();
  none.hidden = true;
  if (following) scrollTo(scrollX, document.body.scrollHeight);
}

function take(events, lost = false) {
  const fresh = events.filter((event) => !known.has(event.id));
  for (const event of fresh) {
    known.add(event.id);
    cursor = event.id;
  }
  for (const id of known) {
    if (known.size <= KNOWN) break;
    known.delete(id);
  }
  const rows = [...(lost ? [gap()] : []), ...fresh.slice(-Number(choices.rows.value)).map(row)];
  if (paused) waiting = [...waiting, ...rows].slice(-Number(choices.rows.value));
  else put(rows);
}

// Asking

async function ask() {
  clearTimeout(timer);
  if (state === "live" || asking) return;
  if (document.hidden) return;
  asking = true;
  const impatience = new AbortController();
  const limit = setTimeout(() => impatience.abort(), PATIENCE);
  let next = EVERY;
  try {
    const address = new URL(box.dataset.more, location.href);
    address.searchParams.set("after", cursor);
    const answer = await fetch(address, { signal: impatience.signal, cache: "no-store", redirect: "manual" });
    if (answer.type === "opaqueredirect" || REFUSED.includes(answer.status)) return refuse();
    if (!answer.ok) throw new Error(`answered ${answer.status}`);
    const found = await answer.json();
    take(found.events, Boolean(found.gap));
    if (found.cursor) cursor = found.cursor;
    losses = 0;
    if (found.has_more) next = 0;
    const comesBack = state === "refused";
    if (state !== "live") show("asking");
    if (comesBack) connect();
  } catch {
    losses += 1;
    next = Math.min(EVERY * 2 ** Math.min(losses, 3), SLOWEST);
    if (state !== "live") show("lost");
  } finally {
    clearTimeout(limit);
    asking = false;
    if (state !== "live" && state !== "refused") timer = setTimeout(ask, next);
  }
}

function refuse() {
  const old = socket;
  socket = null;
  show("refused");
  old?.close();
}

// The WebSocket

function connect() {
  if (!box.dataset.socket || socket || state === "refused") return;
  const address = new URL(box.dataset.socket, location.href);
  address.protocol = address.protocol.replace("http", "ws");
  try {
    socket = new WebSocket(address);
  } catch {
    return; // forbidden by a policy
  }
  const mine = socket;
  mine.addEventListener("open", () => {
    const wish = { action: "subscribe", channel: "events", filter: JSON.parse(box.dataset.filter) };
    mine.send(JSON.stringify(cursor ? { ...wish, after: cursor } : wish));
  });
  mine.addEventListener("message", (message) => hear(mine, JSON.parse(message.data)));
  mine.addEventListener("close", () => {
    if (mine !== socket) return;
    socket = null;
    setTimeout(connect, RETRY[Math.min(refusals, RETRY.length - 1)]);
    refusals += 1;
    if (state === "live") show("lost");
    ask();
  });
}

function hear(mine, said) {
  if (said.action === "subscribed") {
    refusals = 0;
    clearTimeout(timer);
    show("live");
  } else if (said.action === "error") {
    mine.close();
  } else if (said.specversion && said.id) {
    if (!said.type.startsWith("system.") && said.type !== "server.shutdown") take([said]);
    else if (said.type !== "server.shutdown") take([], true);
    show();
  }
}

// What the viewer does

function keep(name) {
  const here = new URL(location.href);
  here.searchParams.set(name, choices[name].value);
  history.replaceState(null, "", here);
}

if (box) {
  for (const one of body.rows) known.add(one.dataset.id);
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? button.dataset.go : button.dataset.stop;
    button.setAttribute("aria-pressed", String(paused));
    if (!paused) put(waiting.splice(0));
    show();
  });
  choices.detail.addEventListener("change", () => {
    box.classList.toggle("ojs-all", choices.detail.value === "full");
    keep("detail");
  });
  choices.order.addEventListener("change", () => {
    body.append(...[...body.rows].reverse());
    keep("order");
  });
  choices.rows.addEventListener("change", () => {
    trim();
    keep("rows");
  });
  document.addEventListener("visibilitychange", ask);
  window.addEventListener("online", ask);
  show("asking");
  connect();
  timer = setTimeout(ask, box.dataset.socket ? EVERY : 0);
}
