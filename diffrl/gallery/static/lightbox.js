// A row enlarged: its columns side by side under one zoom, its prompt and all its rewards.
const lightbox = {
  dialog: null,
  row: null,
  view: { scale: 1, x: 0, y: 0 },
  pointers: new Map(),
  rows: () => [...document.querySelectorAll(".items > .item:not([hidden])")],
  part: (name) => lightbox.dialog.querySelector(name),

  open(row) {
    lightbox.row = row;
    lightbox.fill();
    if (lightbox.dialog.open) return;
    lightbox.dialog.showModal();
    lightbox.dialog.focus();
  },
  // The row before or after; from the last of a page the first of the next one, in the exported site without leaving.
  step(by) {
    const rows = lightbox.rows();
    const next = rows[rows.indexOf(lightbox.row) + by];
    const way = next ? null : lightbox.way(by);
    if (next) lightbox.open(next);
    else if (way?.matches("button")) {
      way.click();
      lightbox.open(lightbox.rows().at(by > 0 ? 0 : -1));
    } else if (way && !lightbox.leaving) {
      lightbox.leaving = true; // a key that is held down does not begin again and again
      location.assign(way.href + lightbox.arrivals[by]);
    }
  },
  way: (by) => document.querySelector(`.pager [data-turn="${by}"]:not(:disabled)`),
  // Marks on the address of a page that is come to with a row enlarged.
  arrivals: { 1: "#enlarged-first", [-1]: "#enlarged-last" },
  arrive() {
    const by = Object.keys(lightbox.arrivals).find((one) => lightbox.arrivals[one] === location.hash);
    if (by === undefined) return;
    history.replaceState(history.state, "", location.pathname + location.search); // once, not when it is loaded again
    const row = lightbox.rows().at(by > 0 ? 0 : -1);
    if (row) lightbox.open(row);
  },
  fill() {
    const { row } = lightbox;
    const rows = lightbox.rows();
    const place = rows.indexOf(row);
    lightbox.part(".prompt").textContent = row.querySelector(".prompt").textContent;
    const { before = 0, rows: all = rows.length } = row.parentElement.dataset; // of all pages
    lightbox.part("[data-place]").textContent = `${(Number(before) + place + 1).toLocaleString("en-US")} of ${Number(all).toLocaleString("en-US")}`;
    lightbox.part('[data-do="previous"]').disabled = place === 0 && !lightbox.way(-1);
    lightbox.part('[data-do="next"]').disabled = place === rows.length - 1 && !lightbox.way(1);
    lightbox.part(".lightbox-panes").replaceChildren(...[...row.querySelectorAll(".cell")].map(lightbox.pane));
    const table = row.querySelector(".all table");
    lightbox.part(".lightbox-table").replaceChildren(...(table ? [table.cloneNode(true)] : []));
    lightbox.reset();
  },
  pane(cell) {
    const pane = document.createElement("figure");
    pane.className = "pane";
    const media = cell.querySelector(".picture").cloneNode(true);
    media.removeAttribute("loading");
    if (media.matches("img.moving")) media.src = motion.playing ? media.dataset.moving : media.dataset.still;
    else if (media.matches("img")) media.src = media.dataset.full;
    pane.append(media, cell.querySelector("figcaption").cloneNode(true));
    return pane;
  },

  reset() {
    lightbox.view = { scale: 1, x: 0, y: 0 };
    lightbox.draw();
  },
  draw() {
    const { scale, x, y } = lightbox.view;
    lightbox.dialog.dataset.scale = scale.toFixed(2);
    lightbox.dialog.querySelectorAll(".pane .picture").forEach((media) => {
      media.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
    });
  },
  // By a factor, so that the point (x, y) from the middle of a pane stays where it is.
  zoom(factor, x = 0, y = 0) {
    const { view } = lightbox;
    const scale = Math.min(40, Math.max(1, view.scale * factor));
    if (scale === 1) return lightbox.reset();
    const grown = scale / view.scale;
    lightbox.view = { scale, x: x - (x - view.x) * grown, y: y - (y - view.y) * grown };
    lightbox.draw();
  },
  at(event) {
    const box = event.target.closest(".pane").getBoundingClientRect();
    return [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2];
  },
  // One finger or the mouse moves, two fingers zoom.
  move(event) {
    const last = lightbox.pointers.get(event.pointerId);
    if (!last) return;
    const [x, y] = lightbox.at(event);
    const others = [...lightbox.pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
    if (others.length) {
      const [other] = others;
      const before = Math.hypot(last.x - other.x, last.y - other.y);
      const after = Math.hypot(x - other.x, y - other.y);
      if (before > 0) lightbox.zoom(after / before, (x + other.x) / 2, (y + other.y) / 2);
    } else {
      lightbox.view.x += x - last.x;
      lightbox.view.y += y - last.y;
      lightbox.draw();
    }
    lightbox.pointers.set(event.pointerId, { x, y });
  },
  keys: {
    ArrowLeft: () => lightbox.step(-1),
    ArrowRight: () => lightbox.step(1),
    k: () => lightbox.step(-1),
    j: () => lightbox.step(1),
    "+": () => lightbox.zoom(1.5),
    "=": () => lightbox.zoom(1.5),
    "-": () => lightbox.zoom(1 / 1.5),
    0: () => lightbox.reset(),
  },
  buttons: {
    previous: () => lightbox.step(-1),
    next: () => lightbox.step(1),
    in: () => lightbox.zoom(1.5),
    out: () => lightbox.zoom(1 / 1.5),
    reset: () => lightbox.reset(),
    close: () => lightbox.dialog.close(),
  },

  start() {
    const { pointers } = lightbox;
    const dialog = (lightbox.dialog = document.getElementById("lightbox"));
    if (!dialog) return;
    const panes = lightbox.part(".lightbox-panes");
    dialog.addEventListener("keydown", (event) => {
      const action = lightbox.keys[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
    });
    dialog.addEventListener("click", (event) => {
      const button = event.target.closest("[data-do]");
      if (button) lightbox.buttons[button.dataset.do]();
      else if (event.target === dialog) dialog.close();
    });
    dialog.addEventListener("close", () => {
      panes.replaceChildren();
      lightbox.row?.focus({ preventScroll: false });
    });
    panes.addEventListener("wheel", (event) => {
      if (!event.target.closest(".pane")) return;
      event.preventDefault();
      lightbox.zoom(Math.exp(-event.deltaY / 300), ...lightbox.at(event));
    }, { passive: false });
    panes.addEventListener("dblclick", (event) => {
      if (!event.target.closest(".pane")) return;
      if (lightbox.view.scale > 1) lightbox.reset();
      else lightbox.zoom(3, ...lightbox.at(event));
    });
    panes.addEventListener("pointerdown", (event) => {
      const pane = event.target.closest(".pane");
      if (!pane || event.target.matches("video")) return;
      pane.setPointerCapture(event.pointerId);
      pane.classList.add("dragging");
      const [x, y] = lightbox.at(event);
      pointers.set(event.pointerId, { x, y });
    });
    panes.addEventListener("pointermove", lightbox.move);
    for (const name of ["pointerup", "pointercancel"]) {
      panes.addEventListener(name, (event) => {
        pointers.delete(event.pointerId);
        panes.querySelectorAll(".dragging").forEach((pane) => pane.classList.remove("dragging"));
      });
    }
  },
};
lightbox.start();
lightbox.arrive();
addEventListener("pageshow", () => { lightbox.leaving = false; }); // a page that is come back to may be left again
document.addEventListener("main-replaced", lightbox.start);
