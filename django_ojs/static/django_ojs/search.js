// Completes the last word of a search with the filters that the page suggests: without this script the browser offers
// them for the first word only, because it completes the whole text.

const input = document.querySelector("#searchbar[list]");

if (input?.list) {
  const words = [...input.list.options].map((option) => option.value);
  let shown = "";
  input.addEventListener("input", () => {
    const before = input.value.slice(0, input.value.lastIndexOf(" ") + 1);
    if (before === shown) return;
    shown = before;
    input.list.replaceChildren(...words.map((word) => Object.assign(document.createElement("option"), { value: before + word })));
  });
}
