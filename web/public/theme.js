// Before anything is drawn, so that nobody who chose dark sees a white flash. The application writes the same key.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // No storage: the system's choice holds.
}
