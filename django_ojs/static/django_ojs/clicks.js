// One press acts once: of a double click, of a key that is held down, and of a button that is pressed again because the
// server takes its time.

const BUSY = 120000; // so long a form that is sent is not sent again, unless the reader has stopped it: no proxy waits longer

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
  if (event.defaultPrevented) return; // a script of the site has stopped it, to ask the reader or to check a field
  if (performance.now() - sent.get(form)?.at < BUSY) return event.preventDefault();
  sent.set(form, { at: performance.now(), by: event.submitter });
  event.submitter?.setAttribute("aria-busy", "true");
});

function free() {
  for (const form of document.forms) {
    sent.get(form)?.by?.removeAttribute("aria-busy");
    sent.delete(form);
  }
}

window.addEventListener("pageshow", (event) => event.persisted && free()); // the reader has come back to the page
document.addEventListener("keydown", (event) => event.key === "Escape" && free()); // stops what the browser loads
