// Shows instants in the viewer's time zone, which only the browser knows. Without this script they are in the site's.

const two = (number) => String(number).padStart(2, "0");

export function local(instant) {
  const date = [instant.getFullYear(), two(instant.getMonth() + 1), two(instant.getDate())].join("-");
  const time = [instant.getHours(), instant.getMinutes(), instant.getSeconds()].map(two).join(":");
  return `${date} ${time}`;
}

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone) {
  for (const element of document.querySelectorAll("[data-ojs-here]")) {
    element.textContent = local(new Date(element.dateTime));
  }
  for (const element of document.querySelectorAll("[data-ojs-zone]")) element.textContent = zone;
}
