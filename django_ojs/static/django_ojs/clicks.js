// The second click of a double click presses no button: the first one has sent its form, or has changed the page.

document.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest("button, input[type=submit]");
    if (event.detail > 1 && button?.form?.method === "post") event.preventDefault();
  },
  true,
);
