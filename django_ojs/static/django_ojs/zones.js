// Shows instants in the viewer's time zone, which only the browser knows. Without this script they are in the site's.
//
// Scripts that the page has behind this one call `ojsLocal`. None imports another: Django's ManifestStaticFilesStorage
// rewrites no import, and a proxy would serve an old file under the old name.

const two = (number) => String(number).padStart(2, "0");

globalThis.ojsLocal = (instant) => {
  const date = [instant.getFullYear(), two(instant.getMonth() + 1), two(instant.getDate())].join("-");
  const time = [instant.getHours(), instant.getMinutes(), instant.getSeconds()].map(two).join(":");
  return `${date} ${time}`;
};

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone) {
  for (const element of document.querySelectorAll("[data-ojs-here]")) {
    element.textContent = ojsLocal(new Date(element.dateTime));
  }
  for (const element of document.querySelectorAll("[data-ojs-zone]")) element.textContent = zone;
}
