// What every page has: theme, keys, small images drawn crisp.
const gallery = {
  theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("diffrl-theme", root.dataset.theme); } catch { /* from disk */ }
    document.dispatchEvent(new CustomEvent("theme"));
  },
  // Keys of a page: {"j": () => ..., "/": ...}; not while the user types. A key that is held down acts once, but for
  // actions that walk (`repeats`). An action that gives false leaves the key to the browser.
  bound: {},
  keys(map) { Object.assign(gallery.bound, map); },
  walking: (action) => Object.assign(action, { repeats: true }),
  made(tag, properties, ...inside) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...inside);
    return element;
  },
  // Small images are pixels; a thumbnail that fills the size it was asked for (data-size) is of a larger one.
  crisp(image) {
    const longest = Math.max(image.naturalWidth, image.naturalHeight);
    const whole = !image.dataset.size || image.getAttribute("src") === image.dataset.full;
    if (longest && longest <= 128 && (whole || longest < Number(image.dataset.size))) image.classList.add("crisp");
  },
};
document.getElementById("theme").addEventListener("click", gallery.theme);
// Over an enlarged row too; the list itself is closed by Escape.
const listed = () => { if (!document.getElementById("keys").open) document.getElementById("keys").showModal(); };
listed.inDialog = true;
gallery.keys({ t: gallery.theme, "?": listed });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const action = gallery.bound[event.key];
  if (action && !(document.querySelector("dialog[open]") && !action.inDialog)) {
    if ((event.repeat && !action.repeats) || action(event) !== false) event.preventDefault();
  }
});
document.addEventListener("load", (event) => { if (event.target.matches?.("img.media, img.shot")) gallery.crisp(event.target); }, true);
document.querySelectorAll("img.media, img.shot").forEach((image) => { if (image.complete) gallery.crisp(image); });
// On a phone the tabs scroll: the one that is open is in sight.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
