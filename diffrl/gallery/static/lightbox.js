// A row enlarged: which one, the address that opens this very view again, keys and buttons. Its images are drawn by
// lightbox_stage.js and moved by lightbox_zoom.js; evaluations.js goes through the evaluations of its run.
//
// A row is an .item with .cell figures (each a .media and a figcaption), a .prompt and its numbers; .open in it
// enlarges it. A row whose id begins with "row-" has an address: #row-12&mode=flip&at=eval-40&times=4.
const lightbox = {
  // Names of rewards go on in the next line after "_" and "/", not within a word.
  breakable(cell) {
    const pieces = cell.textContent.split(/(?<=[_/])/);
    cell.replaceChildren(...pieces.flatMap((piece) => [piece, document.createElement("wbr")]));
  },
  dialog: null,
  row: null,
  picked: null, // places of the two columns that were chosen by their buttons, while the dialog is open
  rows: () => [...document.querySelectorAll(".item:not([hidden])")],
  part: (name) => lightbox.dialog.querySelector(name),

  // --- rows
  // What the arrow keys go through: `all`, the place in it, and how a member becomes a row. The tree page has its own.
  walk(row) {
    const all = lightbox.rows();
    return { all, place: all.indexOf(row), row: (member) => member };
  },
  open(row) {
    if (lightbox.returning) lightbox.next = row; // the address of the last one is still being left
    else {
      evaluations.at = null; // as the page shows it
      lightbox.show(row, row.id.startsWith("row-"));
    }
  },
  show(row, pushes) {
    if (row.hidden) document.dispatchEvent(new CustomEvent("row-wanted", { detail: row }));
    lightbox.row = row;
    evaluations.forget();
    zoomed.reset();
    lightbox.fill();
    if (!lightbox.dialog.open) {
      if (pushes) history.pushState({ enlarged: true }, "", lightbox.address());
      lightbox.dialog.showModal();
      lightbox.dialog.focus();
    }
    lightbox.write();
    evaluations.begin();
  },
  // The row before or after; from the last of a page the first of the next one, in the exported site without leaving.
  step(by) {
    const walk = lightbox.walk(lightbox.row), next = walk.all[walk.place + by];
    const way = next === undefined ? lightbox.way(by) : null;
    if (next !== undefined) lightbox.show(walk.row(next));
    else if (way?.matches("button")) {
      way.click();
      lightbox.show(lightbox.rows().at(by > 0 ? 0 : -1));
    } else if (way && !lightbox.leaving) {
      lightbox.leaving = true; // a key that is held down does not begin again and again
      location.assign(`${way.href}#${lightbox.arrivals[by]}${lightbox.view()}`);
    }
  },
  way: (by) => document.querySelector(`.pager [data-turn="${by}"]:not(:disabled)`),

  // --- the address
  arrivals: { 1: "enlarged-first", [-1]: "enlarged-last" },
  view() {
    const { mode, times } = stage, { at } = evaluations;
    const asked = Object.entries({ mode: mode === "side" ? null : mode, times: times === 1 ? null : times, at });
    return asked.filter(([, value]) => value !== null).map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join("");
  },
  address: () => `#${lightbox.row.id}${lightbox.view()}`,
  plain: () => location.pathname + location.search,
  write() {
    if (lightbox.row.id.startsWith("row-")) history.replaceState(history.state, "", lightbox.address());
  },
  // What the address names is opened, and what it does not name is closed.
  arrive() {
    if (!lightbox.dialog) return;
    const [id, ...rest] = location.hash.slice(1).split("&"), asked = new URLSearchParams(rest.join("&"));
    const by = Object.keys(lightbox.arrivals).find((one) => lightbox.arrivals[one] === id);
    const row = by === undefined ? document.getElementById(id) : lightbox.rows().at(by > 0 ? 0 : -1);
    if (by === undefined && !id.startsWith("row-")) {
      if (lightbox.dialog.open) lightbox.dialog.close();
    } else if (row?.matches(".item")) {
      stage.ask(asked.get("mode"), Number(asked.get("times")));
      evaluations.at = asked.get("at");
      lightbox.show(row);
    } else lightbox.miss();
  },
  miss() {
    const words = "The address names a sample that is not on this page: other filters, another page, or the run went on. Look for it by its prompt.";
    document.querySelector("h1").after(gallery.made("p", { className: "alarm note" }, words));
    history.replaceState(history.state, "", lightbox.plain());
  },
  // Whoever closes it goes back to where it was opened; whoever went back has closed it.
  closed() {
    evaluations.stop();
    stage.clear();
    lightbox.picked = null;
    const { row } = lightbox;
    (row.matches("[tabindex]") ? row : row.querySelector(".open"))?.focus();
    if (!location.hash.startsWith("#row-")) return;
    if (history.state?.enlarged) {
      lightbox.returning = true;
      history.back();
    } else history.replaceState(history.state, "", lightbox.plain());
  },
  returned() {
    lightbox.returning = false;
    const { next } = lightbox;
    lightbox.next = null;
    if (next) lightbox.open(next);
    else requestAnimationFrame(() => lightbox.row.scrollIntoView({ block: "nearest" })); // after the browser has scrolled
  },

  // --- what is said of it
  fill() {
    const { row } = lightbox, walk = lightbox.walk(row);
    const prompt = row.querySelector(".prompt") ?? document.querySelector("h1");
    lightbox.part(".prompt").textContent = prompt.textContent;
    const { before = 0, rows: all = walk.all.length } = row.closest(".items")?.dataset ?? {}; // of all pages
    lightbox.part("[data-place]").textContent = `${(Number(before) + walk.place + 1).toLocaleString("en-US")} of ${Number(all).toLocaleString("en-US")}`;
    lightbox.part('[data-do="previous"]').disabled = walk.place <= 0 && !lightbox.way(-1);
    lightbox.part('[data-do="next"]').disabled = walk.place >= walk.all.length - 1 && !lightbox.way(1);
    lightbox.draw();
  },
  draw() {
    const shots = lightbox.shots();
    stage.draw(shots, lightbox.ends(shots));
    const table = evaluations.table() ?? lightbox.row.querySelector(".all table, .tells")?.cloneNode(true);
    if (table) table.hidden = false;
    if (lightbox.picked && table?.matches(":has([data-reward])")) lightbox.narrow(table);
    table?.querySelectorAll("th:first-child").forEach(lightbox.breakable);
    lightbox.part(".lightbox-table").replaceChildren(...(table ? [table] : []));
    lightbox.part(".lightbox-notes").replaceChildren(...shots.flatMap(({ label, notes }) => notes.map((note) => lightbox.note(label, note, shots.length))));
  },
  // A table of all columns becomes one of the two that were chosen.
  narrow(table) {
    const values = JSON.parse(lightbox.row.dataset.rewards), [of, against] = lightbox.picked;
    for (const line of table.rows) {
      const columns = [...line.cells].slice(1, -1);
      columns.forEach((cell, place) => { cell.hidden = place !== of && place !== against; });
      const scores = values[line.dataset.reward];
      if (!scores) continue;
      const change = numbers.change(scores[of], scores[against]), css = numbers.sign(change, line.dataset.lower !== undefined);
      Object.assign([...line.cells].at(-1), { textContent: numbers.signed(change), className: `number ${css}` });
    }
  },
  note(label, words, columns) {
    const names = columns > 1 ? [gallery.made("b", {}, `${label}: `)] : [];
    return gallery.made("p", { dir: "auto" }, ...names, words);
  },
  // The columns of the row, one of them perhaps at another evaluation than the page shows.
  shots() {
    return lightbox.cells().map((cell, place) => (place === lightbox.pair()[0] ? evaluations.shot() : null) ?? lightbox.shot(cell));
  },
  shot(cell) {
    const shown = cell.querySelector(".media");
    const media = (shown.matches(".moving") ? shown : shown.closest("picture") ?? shown).cloneNode(true);
    media.removeAttribute("loading");
    if (media.matches("img.moving")) media.src = motion.playing ? media.dataset.moving : media.dataset.still;
    else if (media.dataset.full) media.src = media.dataset.full;
    const caption = cell.querySelector("figcaption")?.cloneNode(true) ?? gallery.made("figcaption", {}, cell.dataset.label ?? "");
    caption.classList.remove("visually-hidden");
    const reason = caption.querySelector(".reason");
    reason?.remove();
    const notes = [reason?.title, cell.querySelector(".failed")?.textContent].filter(Boolean);
    const label = caption.querySelector(".column")?.textContent ?? caption.textContent;
    return { media, caption, label, notes };
  },
  cells: () => [...lightbox.row.querySelectorAll(".cell")],
  // Places of the compared column and of the one it is compared with.
  pair() {
    const last = lightbox.cells().length - 1, { flip, pair } = lightbox.row.closest(".items")?.dataset ?? {};
    return lightbox.picked ?? (flip ?? pair)?.split(" ").map(Number) ?? [last, 0];
  },
  // The one that is pressed stands against the one that was compared before.
  pick(place) {
    const [of, against] = lightbox.pair();
    lightbox.picked = place === of ? [against, of] : [place, of];
    evaluations.forget();
    lightbox.draw();
    evaluations.begin();
  },
  async copy(button) {
    const words = button.textContent;
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
    } catch { button.textContent = "Copy the address"; } // without https, or not allowed
    setTimeout(() => { button.textContent = words; }, 1500);
  },
  // The two that lie on one another: of one column its first evaluation and itself; null if there are no two.
  ends(shots) {
    if (shots.length < 2) {
      const first = evaluations.first();
      return first && shots.length ? [first, shots[0]] : null;
    }
    const [of, against] = lightbox.pair();
    return [shots[against], shots[of]];
  },

  // --- keys and buttons
  keys: {
    ArrowLeft: () => lightbox.step(-1),
    ArrowRight: () => lightbox.step(1),
    k: () => lightbox.step(-1),
    j: () => lightbox.step(1),
    s: () => stage.toggle("swipe"),
    f: () => stage.toggle("flip"),
    d: () => stage.toggle("difference"),
    a: () => stage.amplify(),
    b: () => stage.blink(),
    " ": () => stage.flip(),
    ",": () => evaluations.step(-1),
    ".": () => evaluations.step(1),
    e: () => evaluations.play(),
    "+": () => zoomed.zoom(1.5),
    "=": () => zoomed.zoom(1.5),
    "-": () => zoomed.zoom(1 / 1.5),
    0: () => zoomed.reset(),
  },
  buttons: {
    previous: () => lightbox.step(-1),
    next: () => lightbox.step(1),
    amplify: () => stage.amplify(),
    blink: () => stage.blink(),
    play: () => evaluations.play(),
    in: () => zoomed.zoom(1.5),
    out: () => zoomed.zoom(1 / 1.5),
    reset: () => zoomed.reset(),
    copy: (button) => lightbox.copy(button),
    keys: () => gallery.bound["?"](),
    close: () => lightbox.dialog.close(),
  },
  press(event) {
    const action = lightbox.keys[event.key];
    if (!action || !lightbox.dialog?.open || document.getElementById("keys").open || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input") && event.key.startsWith("Arrow")) return; // they move that slider
    if (event.target.matches("button, a, .prompt") && event.key === " ") return; // it presses the button, it scrolls
    event.preventDefault();
    if (!(event.repeat && event.key === "x")) action(); // a mark that is held down is one
  },

  start() {
    const dialog = (lightbox.dialog = document.getElementById("lightbox"));
    if (!dialog) return;
    dialog.addEventListener("click", (event) => {
      const button = event.target.closest("[data-do], [data-mode], [data-pick]");
      if (button?.dataset.mode) stage.toggle(button.dataset.mode);
      else if (button?.dataset.pick) lightbox.pick(Number(button.dataset.pick));
      else if (button) lightbox.buttons[button.dataset.do](button);
      if (button && event.detail && dialog.open) dialog.focus(); // by the mouse: the space bar is free again
    });
    dialog.addEventListener("close", lightbox.closed);
    stage.start();
    zoomed.start();
    evaluations.start();
  },
};
lightbox.start();
document.addEventListener("main-replaced", lightbox.start);
document.addEventListener("DOMContentLoaded", lightbox.arrive); // when the page's other scripts have begun
addEventListener("popstate", () => (lightbox.returning ? lightbox.returned() : lightbox.arrive()));
addEventListener("pageshow", () => { lightbox.leaving = false; }); // a page that is come back to may be left again
document.addEventListener("keydown", lightbox.press); // also where a browser that goes to the address takes the focus away
addEventListener("load", () => { if (lightbox.dialog?.open) lightbox.dialog.focus(); });
// What enlarges a row, and what leads to a row that is on this page.
document.addEventListener("click", (event) => {
  if (!lightbox.dialog || event.ctrlKey || event.metaKey || event.shiftKey || event.defaultPrevented) return;
  const link = event.target.closest('.open, [href*="#row-"]'), { hash } = link ?? {};
  const named = link?.closest("svg") ? link.getAttribute("href").split("#")[1] : hash?.slice(1);
  const row = link?.closest(".item") ?? document.getElementById(named);
  if (!row?.matches(".item")) return;
  event.preventDefault();
  lightbox.open(row);
});
