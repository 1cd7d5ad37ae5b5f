// One press acts once: of a double click, of a key that is held down, and of a button that is pressed again because the
// server takes its time.

const BUSY = 5000; // so long a form that is sent is not sent again: by then its answer has changed the page

const posts = (control) => control?.form?.method === "post";
const sent = new WeakMap();

// The first click has sent its form, or has changed the page, where the second one would press another button.
document.addEventListener(
  "click",
  (event) => {
    if (event.detail > 1 && posts(event.target.closest("button, input[type=submit]"))) event.preventDefault();
  },
  true,
);

document.addEventListener(
  "keydown",
  (event) => {
    const writes = event.target.localName === "textarea";
    if (event.repeat && event.key === "Enter" && !writes && posts(event.target)) event.preventDefault();
  },
  true,
);

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post" || form.hasAttribute("data-ojs-inline")) return; // its buttons do many things: live.js
  if (performance.now() - sent.get(form) < BUSY) event.preventDefault();
  else sent.set(form, performance.now());
});

window.addEventListener("pageshow", (event) => {
  if (event.persisted) for (const form of document.forms) sent.delete(form); // the reader has come back to the page
});
