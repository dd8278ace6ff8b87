// What every page has: theme, keys, small pictures drawn crisp.
const gallery = {
  theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("diffrl-theme", root.dataset.theme); } catch { /* from disk */ }
    document.dispatchEvent(new CustomEvent("theme"));
  },
  // Keys of a page: {"j": () => ..., "/": ...}; not while the user types.
  bound: {},
  keys(map) { Object.assign(gallery.bound, map); },
  crisp(image) {
    if (image.naturalWidth && Math.max(image.naturalWidth, image.naturalHeight) <= 128) image.classList.add("crisp");
  },
};
document.getElementById("theme").addEventListener("click", gallery.theme);
gallery.keys({ t: gallery.theme, "?": () => document.getElementById("keys").showModal() });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const action = gallery.bound[event.key];
  if (action && !(document.querySelector("dialog[open]") && !action.inDialog)) {
    event.preventDefault();
    action(event);
  }
});
document.addEventListener("load", (event) => { if (event.target.matches?.("img.picture")) gallery.crisp(event.target); }, true);
document.querySelectorAll("img.picture").forEach((image) => { if (image.complete) gallery.crisp(image); });
