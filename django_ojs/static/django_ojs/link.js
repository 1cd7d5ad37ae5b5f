// Posts the token of a link to decide an approval, which is behind the # of the address, and takes it out of the address
// and of the browser's history. It decides nothing.

const form = document.querySelector("form[data-ojs-link]");

function send() {
  const token = location.hash.slice(1);
  if (!token) return;
  history.replaceState(null, "", location.pathname);
  form.querySelector("input[type=text]").value = token;
  form.submit();
}

if (form) {
  addEventListener("hashchange", send); // another link was opened here
  send();
}
