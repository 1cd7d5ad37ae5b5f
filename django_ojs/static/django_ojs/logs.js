// Shows what the handler of a job logs, as it comes: asks for the lines behind the last one while the job may go on.
//
// The server renders the lines (admin/logs.py). This module adds them at the end, keeps the end in view while the
// reader follows, and asks anew for all lines that fit when the reader has chosen a level or a text.

const EVERY = 1000;
const SLOWEST = 15000;
const PATIENCE = 10000;
const DEBOUNCE = 300;
const MOST = 5000; // rows of a page
const REFUSED = [401, 403]; // as is what leads elsewhere, to the login: until the reader comes back to the page

const box = document.querySelector("[data-ojs-logs]");
const find = (selector) => box?.querySelector(selector);
const body = find("tbody");
const lines = find(".ojs-log-lines");
const level = find("[data-ojs-level]");
const text = find("[data-ojs-text]");
const follows = find("[data-ojs-scroll]");
const file = find("[data-ojs-file]");
const status = find("[data-ojs-logs-state]");
const none = find("[data-ojs-none]");

let cursor = box?.dataset.cursor ?? "";
let goesOn = box?.hasAttribute("data-goes-on");
let timer = 0;
let losses = 0;
let asking = null;

function show(word) {
  if (status.dataset.state === word) return;
  status.dataset.state = word;
  status.textContent = status.dataset[word] ?? "";
}

// Above the first line of each attempt a row says which it is.
function headed(rows) {
  const found = [];
  let began = body.lastElementChild?.dataset.began;
  for (const row of rows) {
    if (row.dataset.began !== began) {
      began = row.dataset.began;
      const head = document.createElement("tr");
      head.className = "ojs-log-attempt";
      head.dataset.began = began;
      const cell = document.createElement("td");
      cell.colSpan = 4;
      cell.textContent = `${box.dataset.attemptTitle} ${row.dataset.attempt}`;
      head.append(cell);
      found.push(head);
    }
    found.push(row);
  }
  return found;
}

function add(rows) {
  if (!rows.length) return;
  // The row that says how many lines are missing comes again when they are more.
  for (const row of rows.filter((one) => one.hasAttribute("data-dropped"))) {
    body.querySelector(`[data-dropped][data-began="${row.dataset.began}"]`)?.remove();
  }
  body.append(...headed(rows));
  while (body.rows.length > MOST) body.firstElementChild.remove();
  box.hidden = false;
  if (follows.checked) lines.scrollTop = lines.scrollHeight;
}

function asked() {
  const query = new URLSearchParams();
  if (level.value) query.set("level", level.value);
  if (text.value.trim()) query.set("text", text.value.trim());
  return query;
}

async function ask() {
  clearTimeout(timer);
  asking?.abort();
  asking = null;
  if (document.hidden) return;
  const mine = (asking = new AbortController());
  const impatience = setTimeout(() => mine.abort(), PATIENCE);
  let more = false;
  let refused = false;
  try {
    const query = asked();
    if (cursor) query.set("after", cursor);
    const answer = await fetch(`${box.dataset.ojsLogs}?${query}`, { signal: mine.signal, cache: "no-store", redirect: "manual" });
    refused = answer.type === "opaqueredirect" || REFUSED.includes(answer.status);
    if (answer.status === 404) goesOn = false;
    else if (!answer.ok && !refused) throw new Error(`answered ${answer.status}`);
    else if (!refused) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("tbody");
      if (mine !== asking) return;
      cursor = page.dataset.cursor || cursor;
      goesOn = page.hasAttribute("data-goes-on");
      more = page.hasAttribute("data-more");
      add([...page.rows].map((row) => document.adoptNode(row)));
      none.hidden = body.rows.length > 0;
    }
    losses = 0;
    show(refused ? "refused" : goesOn ? "live" : "");
  } catch {
    if (mine !== asking) return;
    losses += 1;
    show("lost");
  } finally {
    clearTimeout(impatience);
    if (mine === asking) {
      asking = null;
      if (!refused && (more || goesOn || losses)) timer = setTimeout(ask, more ? 0 : Math.min(EVERY * 2 ** losses, SLOWEST));
    }
  }
}

// All lines that fit, from the first one.
function anew() {
  cursor = "";
  body.replaceChildren();
  find("[data-ojs-cut]")?.remove();
  const query = asked();
  query.set("format", "text");
  file.href = `${box.dataset.ojsLogs}?${query}`;
  ask();
}

if (box) {
  const first = [...body.rows];
  body.replaceChildren();
  add(first);
  if (!first.length) box.hidden = true;
  let typed = 0;
  level.addEventListener("change", anew);
  text.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(anew, DEBOUNCE);
  });
  text.addEventListener("keydown", (event) => event.key === "Enter" && event.preventDefault());
  find("[data-ojs-all]")?.addEventListener("click", anew);
  lines.addEventListener("scroll", () => {
    if (lines.scrollTop + lines.clientHeight < lines.scrollHeight - 40) follows.checked = false;
  });
  follows.addEventListener("change", () => {
    if (follows.checked) lines.scrollTop = lines.scrollHeight;
  });
  document.addEventListener("visibilitychange", ask);
  if (goesOn) ask();
}
