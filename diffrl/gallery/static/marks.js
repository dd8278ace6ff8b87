// Marks on the rows of a comparison: x marks the current one. This browser keeps them for these columns, and saves a list.
const marks = {
  kept: {}, // by the row's number: its prompt and, for each reward, its values
  words: (row) => row.querySelector(".prompt").textContent,
  // Another gallery at this address may have columns of these names: a mark is of its prompt.
  has: (row) => marks.kept[row.dataset.id]?.prompt === marks.words(row),
  place: () => `diffrl-marks ${rows.list.dataset.columns}`,
  toggle(row) {
    if (!row?.matches("[data-id]")) return;
    const { id } = row.dataset;
    if (marks.has(row)) delete marks.kept[id];
    else marks.kept[id] = { prompt: marks.words(row), rewards: JSON.parse(row.dataset.rewards) };
    try { localStorage.setItem(marks.place(), JSON.stringify(marks.kept)); } catch { /* a page from disk may have no storage */ }
    marks.show();
  },
  show() {
    const count = Object.keys(marks.kept).length, line = document.getElementById("marks");
    rows.list.querySelectorAll(".item").forEach((row) => row.classList.toggle("marked", marks.has(row)));
    line.hidden = count === 0;
    line.querySelector("output").textContent = `${count.toLocaleString("en-US")} marked`;
  },
  // A line for each mark. A text that a spreadsheet would run begins with an apostrophe.
  csv() {
    const labels = JSON.parse(rows.list.dataset.columns), kept = Object.entries(marks.kept).sort(([a], [b]) => a - b);
    const rewards = [...new Set(kept.flatMap(([, one]) => Object.keys(one.rewards)))].filter((name) => !name.includes("/")); // whole ones
    const lines = kept.map(([id, { prompt, rewards: values }]) => [Number(id) + 1, prompt, ...rewards.flatMap((name) => labels.map((_, place) => values[name]?.[place] ?? ""))]);
    const head = ["row", "prompt", ...rewards.flatMap((name) => labels.map((label) => `${name}, ${label}`))];
    const cell = (value) => (typeof value === "number" ? String(value) : `"${value.replace(/^(?=[=+\-@\t\r])/, "'").replaceAll('"', '""')}"`);
    return [head, ...lines].map((line) => `${line.map(cell).join(",")}\r\n`).join("");
  },
  save() {
    const link = Object.assign(document.createElement("a"), { download: "marks.csv", href: URL.createObjectURL(new Blob([marks.csv()], { type: "text/csv" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  },
  clear() {
    marks.kept = {};
    try { localStorage.removeItem(marks.place()); } catch { /* as above */ }
    marks.show();
  },
  start() {
    const line = document.getElementById("marks");
    if (!line || !rows.list) return;
    try { marks.kept = JSON.parse(localStorage.getItem(marks.place())) ?? {}; } catch { marks.kept = {}; }
    line.addEventListener("click", (event) => marks[event.target.dataset.marks]?.());
    marks.show();
  },
};
lightbox.keys.x = () => marks.toggle(lightbox.row);
gallery.keys({ x: () => rows.list && marks.toggle(rows.current()) });
marks.start();
document.addEventListener("main-replaced", marks.start);
