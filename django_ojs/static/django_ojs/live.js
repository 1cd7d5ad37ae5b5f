// Keeps the live part of a page as it is on the server: asks for it every two seconds while somebody looks.
//
// The server renders it; each child with an id is replaced when its HTML has changed, and nothing else. The page
// works without this module. Whoever knows earlier that something happened (a push channel, say) sends the live
// element an `ojs:changed` event, and it is asked for at once.

const EVERY = 2000;
const SLOWEST = 15000;
const PATIENCE = 10000;

const live = document.querySelector("[data-ojs-live]");
const status = document.querySelector("[data-ojs-status]");
const said = document.querySelector("[data-ojs-said]");

let timer = 0;
let losses = 0;
let asking = null;
const known = new Map();

function show(state) {
  if (!status || status.dataset.state === state) return;
  status.dataset.state = state;
  status.textContent = status.dataset[state];
}

function parts(root) {
  return [...root.children].flatMap((child) => (child.id ? [child] : parts(child)));
}

function remember() {
  known.clear();
  for (const part of parts(live)) known.set(part.id, part.outerHTML);
}

function replace(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").body;
  const after = parts(fresh);
  const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement.id : "";
  const same = after.length === known.size && after.every((part) => known.has(part.id));
  if (same) {
    for (const part of after) {
      if (known.get(part.id) !== part.outerHTML) {
        known.set(part.id, part.outerHTML);
        swap(document.getElementById(part.id), part);
      }
    }
  } else {
    live.replaceChildren(...fresh.childNodes);
    remember();
  }
  if (focused && document.activeElement.id !== focused) {
    document.getElementById(focused)?.focus({ preventScroll: true });
  }
}

function swap(old, part) {
  const scrolled = [...old.querySelectorAll(".ojs-wide")].map((box) => [box.scrollLeft, box.scrollTop]);
  old.replaceWith(document.adoptNode(part));
  part.querySelectorAll(".ojs-wide").forEach((box, index) => {
    if (scrolled[index]) [box.scrollLeft, box.scrollTop] = scrolled[index];
  });
}

async function ask() {
  clearTimeout(timer);
  if (document.hidden) return show("paused");
  asking?.abort();
  const mine = (asking = new AbortController());
  const impatience = setTimeout(() => mine.abort(), PATIENCE);
  try {
    const answer = await fetch(live.dataset.ojsLive, { signal: mine.signal, cache: "no-store" });
    if (!answer.ok || answer.redirected) throw new Error(`answered ${answer.status}`);
    const html = await answer.text();
    if (mine !== asking) return;
    replace(html);
    losses = 0;
    show("live");
  } catch {
    if (mine !== asking) return;
    losses += 1;
    show("lost");
  } finally {
    clearTimeout(impatience);
    if (mine === asking) timer = setTimeout(ask, Math.min(EVERY * 2 ** Math.min(losses, 3), SLOWEST));
  }
}

// Buttons of the live part: done without leaving the page, with what the server says about it.
async function act(event) {
  const form = event.target.closest("form[data-ojs-inline]");
  if (!form) return;
  event.preventDefault();
  const button = event.submitter;
  try {
    const body = new URLSearchParams(new FormData(form));
    const answer = await fetch(button?.formAction || form.action, { method: "POST", body });
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const list = page.querySelector("ul.messagelist");
    said.replaceChildren(...(list ? [document.adoptNode(list)] : []));
  } catch (error) {
    said.textContent = `${said.dataset.failed} ${error.message}`;
  }
  await ask();
}

if (live) {
  remember();
  document.addEventListener("visibilitychange", ask);
  window.addEventListener("online", ask);
  window.addEventListener("offline", ask);
  live.addEventListener("ojs:changed", ask);
  document.addEventListener("submit", act);
  show("live");
  timer = setTimeout(ask, EVERY);
}
