// Before the first paint: the theme that was chosen last, or the system's.
(() => {
  let kept = null;
  try { kept = localStorage.getItem("diffrl-theme"); } catch { /* a page from disk may have no storage */ }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
