// The table of runs: order and search, which the address keeps, arms that unfold, and how many runs are ticked.
const runTable = {
  read: (name) => new URLSearchParams(location.search).get(name) ?? "",
  keep(name, value) {
    const address = new URL(location.href);
    if (value) address.searchParams.set(name, value);
    else address.searchParams.delete(name);
    history.replaceState(null, "", address);
  },
  cell: (body, column) => body.rows[0].cells[column],
  // By the number of a cell where it has one, else by its words; what is not known comes last.
  order(column, falling) {
    const bodies = [...runTable.table.tBodies];
    const value = (body) => {
      const cell = runTable.cell(body, column), number = cell.dataset.value;
      return number === undefined || cell.localName === "th" ? cell.textContent.trim().toLowerCase() : number === "" ? null : Number.isNaN(Number(number)) ? number : Number(number);
    };
    bodies.sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === null || right === null) return (left === null) - (right === null);
      const sign = left < right ? -1 : left > right ? 1 : 0;
      return falling ? -sign : sign;
    });
    runTable.table.append(...bodies);
    const sorted = falling ? "descending" : "ascending";
    runTable.table.tHead.querySelectorAll("th").forEach((head, index) => { head.ariaSort = index === column ? sorted : null; });
  },
  search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    for (const body of runTable.table.tBodies) {
      const content = `${body.textContent} ${[...body.querySelectorAll("[title]")].map((one) => one.title).join(" ")}`.toLowerCase();
      body.hidden = !words.every((word) => content.includes(word));
    }
  },
  unfold(button, open) {
    button.setAttribute("aria-expanded", open);
    button.firstChild.data = open ? "▾ " : "▸ ";
    button.closest("tbody").querySelectorAll(".seed").forEach((row) => { row.hidden = !open; });
  },
  count() {
    const boxes = [...runTable.table.querySelectorAll("[name=run]")];
    const ticked = boxes.filter((box) => box.checked).length, words = document.getElementById("ticked");
    if (words) words.textContent = ticked ? `${ticked} ticked` : "ticked runs, or all";
    for (const all of runTable.table.querySelectorAll("[data-all]")) {
      const seeds = [...all.closest("tbody").querySelectorAll("[name=run]")], on = seeds.filter((box) => box.checked).length;
      all.checked = on === seeds.length;
      all.indeterminate = on > 0 && on < seeds.length;
    }
  },
  start() {
    runTable.table = document.getElementById("runs");
    if (!runTable.table) return;
    runTable.table.tHead.querySelectorAll("th").forEach((head, column) => {
      const button = gallery.made("button", { type: "button", className: "sort" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const falling = head.ariaSort ? head.ariaSort === "ascending" : head.classList.contains("number");
        runTable.keep("sort", `${falling ? "-" : ""}${button.textContent}`);
        runTable.order(column, falling);
      });
      const sort = runTable.read("sort");
      if (sort.replace(/^-/, "") === button.textContent) runTable.order(column, sort.startsWith("-"));
    });
    runTable.table.querySelectorAll(".unfold").forEach((button) => {
      button.hidden = false;
      runTable.unfold(button, false);
      button.addEventListener("click", () => runTable.unfold(button, button.getAttribute("aria-expanded") !== "true"));
    });
    runTable.table.addEventListener("change", (event) => {
      if (event.target.matches("[data-all]")) {
        event.target.closest("tbody").querySelectorAll("[name=run]").forEach((box) => { box.checked = event.target.checked; });
      }
      runTable.count();
    });
    runTable.table.querySelectorAll("[data-all]").forEach((box) => { box.hidden = false; });
    runTable.count();
    const search = document.getElementById("search");
    search.hidden = false;
    search.defaultValue = runTable.read("search");
    runTable.search(search.value);
    search.addEventListener("input", () => {
      runTable.keep("search", search.value);
      runTable.search(search.value);
    });
  },
};
runTable.start();
document.addEventListener("main-replaced", runTable.start);
