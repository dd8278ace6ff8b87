// Rows of samples: one of them is current and moves by keys; Enter enlarges it.
const rows = {
  list: null,
  shown: () => [...rows.list.querySelectorAll(":scope > .item:not([hidden])")],
  current: () => rows.list.querySelector(':scope > .item[tabindex="0"]'),

  // Only the current row and what is in it can be reached by Tab: a page of rows is one stop, not a hundred.
  mark(row) {
    for (const other of rows.list.children) {
      const here = other === row;
      other.tabIndex = here ? 0 : -1;
      other.querySelectorAll("summary").forEach((part) => { part.tabIndex = here ? 0 : -1; });
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
  // After a filter: somebody is current.
  refresh() {
    const shown = rows.shown();
    if (shown.length && !shown.includes(rows.current())) rows.mark(shown[0]);
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
    if (place !== null) form?.elements[Number(place)]?.focus({ preventScroll: true });
  },
};
asking.start();
asking.resume();
document.addEventListener("main-replaced", asking.start);
