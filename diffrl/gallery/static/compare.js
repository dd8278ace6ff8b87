// Rows of samples: one of them is current and moves by keys; Enter enlarges it; s swipes the first column over the last.
const rows = {
  list: null,
  swiping: false,
  shown: () => [...rows.list.querySelectorAll(":scope > .item:not([hidden])")],
  current: () => rows.list.querySelector(':scope > .item[tabindex="0"]'),

  // Only the current row and what is in it can be reached by Tab: a page of rows is one stop, not a hundred.
  mark(row) {
    for (const other of rows.list.children) {
      const here = other === row;
      other.tabIndex = here ? 0 : -1;
      other.querySelectorAll("summary, input[type=range]").forEach((part) => { part.tabIndex = here ? 0 : -1; });
    }
  },
  move(by) {
    const shown = rows.shown();
    const place = shown.indexOf(document.activeElement?.closest(".item"));
    const next = place < 0 ? shown.find((row) => row.tabIndex === 0) ?? shown[0] : shown[place + by];
    if (!next) return;
    rows.mark(next);
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  },
  // After a filter: somebody is current, and what swipes has its slider.
  refresh() {
    const shown = rows.shown();
    if (shown.length && !shown.includes(rows.current())) rows.mark(shown[0]);
    if (rows.swiping) shown.forEach(rows.slider);
  },

  swipe(on = !rows.swiping) {
    rows.swiping = on;
    rows.list.classList.toggle("swiping", on);
    document.getElementById("swipe").setAttribute("aria-pressed", String(on));
    rows.refresh();
    if (document.activeElement?.closest?.(".swipe")) document.activeElement.closest(".item").focus();
  },
  slider(row) {
    const cells = row.querySelectorAll(".cell");
    const [first, last] = [cells[0], cells[cells.length - 1]];
    if (row.querySelector(".swipe")) return;
    const words = [first, last].map((cell) => cell.querySelector(".column")?.textContent ?? "");
    const box = document.createElement("div");
    box.className = "swipe";
    const stack = document.createElement("div");
    stack.className = "stack";
    const [before, after] = [first, last].map((cell) => (cell.querySelector("picture") ?? cell.querySelector(".media")).cloneNode(true));
    const edge = document.createElement("span");
    for (const layer of [before, after]) {
      layer.removeAttribute("controls");
      (layer.matches("picture") ? layer.querySelector("img") : layer).removeAttribute("loading");
    }
    after.classList.add("after");
    edge.className = "edge";
    stack.append(before, after, edge);
    const range = Object.assign(document.createElement("input"), { type: "range", min: 0, max: 100, value: 50 });
    range.setAttribute("aria-label", `Swipe from ${words[1]} to ${words[0]}: ${row.querySelector(".prompt").textContent.slice(0, 120)}`);
    range.tabIndex = row.tabIndex;
    const set = () => box.style.setProperty("--at", `${range.value}%`);
    range.addEventListener("input", set);
    const drag = (event) => {
      if (event.type === "pointermove" && !stack.hasPointerCapture(event.pointerId)) return;
      if (event.type === "pointerdown") stack.setPointerCapture(event.pointerId);
      const { left, width } = stack.getBoundingClientRect();
      range.value = (100 * (event.clientX - left)) / width;
      set();
    };
    stack.addEventListener("pointerdown", drag);
    stack.addEventListener("pointermove", drag);
    const ends = document.createElement("div");
    ends.className = "ends";
    for (const [place, cell] of [first, last].entries()) {
      const end = document.createElement("span");
      const value = document.createElement("b");
      value.textContent = cell.querySelector(".value")?.textContent ?? "";
      end.append(`${words[place]} `, value);
      if (place) end.append(" ", ...[...cell.querySelectorAll(".chip")].map((chip) => chip.cloneNode(true)));
      ends.append(end);
    }
    box.append(stack, range, ends);
    row.querySelector(".cells").after(box);
  },

  start() {
    const lists = [...document.querySelectorAll(".items")];
    const focused = document.activeElement?.closest(".item");
    rows.list = lists.find((list) => list.contains(focused)) ?? lists[0]; // the one that keys walk through
    if (!rows.list) return;
    rows.mark(rows.list.contains(focused) ? focused : rows.shown()[0]);
    for (const list of lists) {
      list.addEventListener("focusin", (event) => {
        rows.list = list;
        const row = event.target.closest(".item");
        if (row && row.tabIndex !== 0) rows.mark(row);
      });
      list.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || !event.target.matches(".item")) return;
        const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
        if (by) rows.move(by);
        else if (event.key === "Enter") lightbox.open(event.target);
        else return;
        event.preventDefault();
      });
    }
    gallery.keys({ j: gallery.walking(() => rows.move(1)), k: gallery.walking(() => rows.move(-1)) });
    const button = document.getElementById("swipe");
    if (!button) return;
    button.hidden = false;
    button.addEventListener("click", () => rows.swipe());
    gallery.keys({ s: () => rows.swipe() });
    if (rows.swiping) rows.swipe(true);
  },
};
rows.start();
document.addEventListener("main-replaced", rows.start);
gallery.keys({
  "/": () => {
    const search = document.querySelector('.compare-form [name="prompt"]');
    search?.focus();
    search?.select();
  },
});

// A form of the server is sent as soon as something in it was chosen or written; what had the focus gets it back.
const asking = {
  field: "diffrl-asked",
  start() {
    const form = document.querySelector(".compare-form:not([data-local])");
    if (!form) return;
    form.querySelector("[data-submit]").hidden = true;
    form.addEventListener("change", (event) => {
      if (document.querySelector("#live:hover")) return; // left for the button that shows the news
      try { sessionStorage.setItem(asking.field, [...form.elements].indexOf(event.target)); } catch { /* not kept */ }
      form.requestSubmit();
    });
  },
  resume() {
    let place = null;
    try {
      place = sessionStorage.getItem(asking.field);
      sessionStorage.removeItem(asking.field);
    } catch { /* not kept */ }
    const form = document.querySelector(".compare-form:not([data-local])");
    const wrong = form?.querySelector("[aria-invalid]");
    if (place !== null) (wrong ?? form?.elements[Number(place)])?.focus({ preventScroll: true });
  },
};
asking.start();
asking.resume();
document.addEventListener("main-replaced", asking.start);
