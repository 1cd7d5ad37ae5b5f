// Keeps the live part of a page as it is on the server.
//
// The server renders it, and this module asks for it: when an event on the WebSocket says that something happened,
// and now and then for what changes without one. Where there is no WebSocket, it asks every few seconds instead. What
// differs is changed in the page, node by node, so focus, scrolling and what is folded out stay. A page whose parts lie
// apart marks each with `data-ojs-part`. Everything about it is in attributes of the element with `data-ojs-live`, which
// the server has worked out (admin/live.py). Another script that knows of a change sends that element an
// `ojs:changed` event. The page works without this module.

const SLOWEST = 15000; // between two questions while the server does not answer
const PATIENCE = 10000; // for an answer
const DEBOUNCE = 300; // from an event to the question: others come with it
const RETRY = 1000; // to the first try to connect again; then twice as long each time
const RETRY_SLOWEST = 60000;
const TRIES = 4; // at a WebSocket that was never there
const ENDED = [4401, 4403]; // closed because the rights of this user ended: it would be refused again
const REFUSED = [401, 403]; // as is what leads elsewhere: to the login, also to that of another host

const live = document.querySelector("[data-ojs-live]");
const status = document.querySelector("[data-ojs-status]");
const said = document.querySelector("[data-ojs-said]");

let timer = 0;
let due = Infinity; // when the next question is put
let losses = 0; // questions in a row without an answer
let wasLost = false;
let gone = false;
let refused = false; // until the reader comes back to the page, maybe from a new login
let asking = null;
let asked = -Infinity; // when the last question was put
let unsettled = -Infinity; // until then an answer may be older than the last event

const setting = (name) => Number(live.dataset[name] || 0);

// The sign

function show(state) {
  if (!status || status.dataset.state === state) return;
  if (state === "lost" || state === "refused") wasLost = true;
  status.dataset.state = state;
  const isBack = wasLost && (state === "live" || state === "polling");
  const text = status.dataset[isBack ? "again" : state];
  if (status.textContent !== text) status.textContent = text; // else it would be read out twice
}

function showLive() {
  show(stream.isOpen ? "live" : "polling");
}

// The page

function parse(html) {
  return new DOMParser().parseFromString(html, "text/html");
}

function replace(html) {
  const fresh = parse(html);
  const focused = document.activeElement?.id;
  const parts = [...fresh.querySelectorAll("[data-ojs-part]")];
  const there = new Map([...document.querySelectorAll("[data-ojs-part]")].map((part) => [part.dataset.ojsPart, part]));
  // A part within another has changed with that one: its old node may be the one of another row by then.
  const outer = parts.filter((part) => !there.has(part.parentElement.closest("[data-ojs-part]")?.dataset.ojsPart));
  for (const part of outer) {
    const old = there.get(part.dataset.ojsPart);
    if (old?.isConnected) become(old, part);
  }
  if (!parts.length) becomeChildren(live, parse(`<body>${html}`).body); // else blanks before it would be lost: all would move
  if (focused && document.activeElement.id !== focused) {
    document.getElementById(focused)?.focus({ preventScroll: true });
  }
}

function become(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) return old.replaceWith(document.adoptNode(fresh));
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  const kept = (name) => name === "open" && old.nodeName === "DETAILS"; // what the reader has folded out
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !kept(name)) old.setAttribute(name, value);
  }
  becomeChildren(old, fresh);
}

function becomeChildren(old, fresh) {
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((node, index) => {
    if (index < before.length) become(before[index], node);
    else old.append(document.adoptNode(node));
  });
  for (const node of before.slice(after.length)) node.remove();
}

// Questions

async function ask() {
  schedule(Infinity);
  asking?.abort();
  asking = null;
  if (gone) return;
  if (document.hidden) return show("paused");
  const mine = (asking = new AbortController());
  asked = performance.now();
  const impatience = setTimeout(() => mine.abort(), PATIENCE);
  try {
    const answer = await fetch(live.dataset.ojsLive, { signal: mine.signal, cache: "no-store", redirect: "manual" });
    if (answer.status === 404 || answer.status === 410) return end();
    if (answer.type === "opaqueredirect" || REFUSED.includes(answer.status)) return refuse();
    if (!answer.ok) throw new Error(`answered ${answer.status}`);
    const html = await answer.text();
    if (mine !== asking) return;
    replace(html);
    losses = 0;
    if (refused) refused = stream.isOver = false;
    showLive();
    stream.connect();
  } catch {
    if (mine !== asking) return;
    losses += 1;
    show("lost");
  } finally {
    clearTimeout(impatience);
    if (mine === asking) {
      asking = null;
      plan();
    }
  }
}

// When to ask next.
function plan() {
  const now = performance.now();
  let pause = setting("ojsEvery");
  if (losses) pause = Math.min(pause * 2 ** Math.min(losses - 1, 4), SLOWEST);
  else if (unsettled > now) pause = Math.max(unsettled - now, asked + gap() - now, 0);
  else if (stream.isOpen) pause = setting("ojsFollowing");
  schedule(refused && !losses ? Infinity : now + pause);
}

function schedule(instant) {
  clearTimeout(timer);
  due = instant;
  if (due < Infinity) timer = setTimeout(ask, due - performance.now());
}

// What is asked for sooner has not changed: the server keeps it for so long.
function gap() {
  return Math.max(setting("ojsAge"), 1000);
}

function changed() {
  const now = performance.now();
  unsettled = now + setting("ojsInterval") + setting("ojsAge") + DEBOUNCE;
  if (asking || losses) return; // `plan` sees to it, when there is an answer
  const soon = Math.max(now + DEBOUNCE, asked + gap());
  if (soon < due) schedule(soon);
}

function refuse() {
  refused = true;
  losses = 0;
  stream.isOver = true;
  stream.leave();
  show("refused");
}

function end() {
  gone = true;
  asking = null;
  stream.isOver = true;
  stream.leave();
  show("gone");
}

// Events

const stream = {
  isOpen: false, // events come
  socket: null,
  timer: 0,
  failures: 0,
  wasOpen: false,
  isOver: false,
  isSilent: false,

  connect() {
    if (this.socket || this.timer || this.isOver || !live.dataset.ojsSocket) return;
    const url = new URL(live.dataset.ojsSocket, document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    try {
      this.socket = new WebSocket(url);
    } catch {
      this.isOver = true; // forbidden by a policy
      return;
    }
    const mine = this.socket;
    const on = (name, act) => mine.addEventListener(name, (event) => mine === this.socket && act(event));
    on("open", () => mine.send(live.dataset.ojsSubscribe));
    on("message", (event) => this.hear(JSON.parse(event.data)));
    on("close", (event) => this.lose(event.code));
  },

  hear(message) {
    this.isSilent = false;
    switch (message.action) {
      case "pong":
        return;
      case "error":
        this.isOver = message.code !== "internal_error";
        return this.socket.close();
      case "subscribed":
        this.isOpen = this.wasOpen = true;
        this.failures = 0;
        unsettled = performance.now() + setting("ojsAge") + DEBOUNCE; // something may have happened before
        if (losses || asking) return;
        showLive();
        return plan();
    }
    changed();
  },

  lose(code) {
    this.socket = null;
    this.isOver ||= ENDED.includes(code) || (!this.wasOpen && this.failures + 1 >= TRIES);
    if (this.isOpen) {
      this.isOpen = false;
      ask(); // is the server still there?
    }
    const pause = Math.min(RETRY * 2 ** this.failures, RETRY_SLOWEST);
    this.failures += 1;
    this.timer = setTimeout(() => {
      this.timer = 0;
      if (!losses && !document.hidden) this.connect(); // otherwise it is tried when the server has answered
    }, pause * (0.5 + Math.random()));
  },

  // A connection may be dead without anybody having said so.
  probe() {
    if (!this.isOpen) return;
    if (this.isSilent) {
      this.leave();
      return ask();
    }
    this.isSilent = true;
    this.socket.send('{"action": "ping"}');
  },

  leave() {
    const socket = this.socket;
    this.socket = null;
    this.isOpen = this.isSilent = false;
    socket?.close();
  },
};

const pressed = new Set();

// Buttons of the live part: done without leaving the page, with what the server says about it.
async function act(event) {
  const form = event.target.closest("form[data-ojs-inline]");
  if (!form) return;
  event.preventDefault();
  const address = event.submitter?.formAction || form.action;
  if (pressed.has(address)) return; // until it is answered
  pressed.add(address);
  let fault = "failed";
  const send = () => fetch(address, { method: "POST", body: new URLSearchParams(new FormData(form)) });
  try {
    let answer = await send();
    if (answer.status === 403) {
      await renew(form.elements.csrfmiddlewaretoken);
      answer = await send();
    }
    if (!answer.ok) {
      fault = { 403: "refused", 404: "missing" }[answer.status] ?? fault;
      throw new Error(fault);
    }
    const list = parse(await answer.text()).querySelector("ul.messagelist");
    if (!list && new URL(answer.url).pathname !== location.pathname) return location.assign(answer.url); // the login
    said.replaceChildren(...(list ? [document.adoptNode(list)] : []));
    form.reset(); // a reason is for one act
  } catch {
    said.innerHTML = '<ul class="messagelist"><li class="error"></li></ul>';
    said.querySelector("li").textContent = said.dataset[fault];
  } finally {
    pressed.delete(address);
  }
  await ask();
}

// A login, in another tab, makes the tokens of all pages void.
async function renew(token) {
  const page = parse(await (await fetch(location.href, { cache: "no-store" })).text());
  token.value = page.getElementById(token.form.id)?.elements.csrfmiddlewaretoken?.value ?? token.value;
}

if (live) {
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stream.leave();
    ask();
  });
  window.addEventListener("online", ask);
  window.addEventListener("offline", ask);
  live.addEventListener("ojs:changed", changed);
  document.addEventListener("submit", act);
  setInterval(() => stream.probe(), setting("ojsFollowing") || SLOWEST);
  if (!live.dataset.ojsSocket) showLive();
  stream.connect();
  plan();
}
