// Before anything is drawn, so that nobody who chose dark sees a white flash. The application writes the same key.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // No storage: the system's choice holds.
}

// A part of the application that is lost on its way (the network changed, the API was just restarted) leaves an empty
// page for ever: browsers do not ask again. Once the page is complete, failures are reported where they occur.
const TRIES = 5;
const WITHIN_MS = 60_000;
let isLost = false;

// What others put into the page, as proxies and add-ons do, may fail: nothing here waits for it.
function isOwn(address) {
  const { origin, pathname } = new URL(address, location.href);
  return origin === location.origin && pathname.startsWith("/assets/");
}

function loadAgain() {
  let before = [];
  try {
    before = JSON.parse(sessionStorage.getItem("lost") ?? "[]").filter((time) => Date.now() - time < WITHIN_MS);
    sessionStorage.setItem("lost", JSON.stringify([...before, Date.now()]));
  } catch {
    before = Array(TRIES); // without storage nobody would count
  }
  if (before.length < TRIES) setTimeout(() => location.reload(), 250 * 2 ** before.length);
  else if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", tell);
  else tell();
}

function tell() {
  const said = document.createElement("p");
  said.setAttribute("role", "alert");
  said.textContent =
    "A part of this page could not be loaded. Check the connection to the platform, then load the page again.";
  document.getElementById("root").replaceChildren(said);
}

window.addEventListener(
  "error",
  ({ target }) => {
    if (isLost || document.readyState === "complete") return;
    const isPart =
      target instanceof HTMLScriptElement || (target instanceof HTMLLinkElement && target.rel === "stylesheet");
    if (isPart && isOwn(target.src || target.href)) {
      isLost = true;
      loadAgain();
    }
  },
  true,
);
