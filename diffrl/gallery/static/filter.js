// The form of an exported page: filter, order, reward and paging of the rows that are on it, without a server.
const local = {
  form: document.querySelector("form[data-local]"),
  size: document.querySelector(".items.cards") ? 60 : 24,
  same: 1e-6,
  page: 1,
  rows: [],

  // As diffrl/gallery/numbers.py writes them.
  three(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    const digits = size >= 1000 ? 0 : size < 100 ? 3 : 1;
    return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: size >= 1000 });
  },
  signed(value) {
    if (value === null || value === undefined) return "–";
    return (value > 0 ? "+" : value < 0 ? "−" : "±") + local.three(Math.abs(value));
  },
  sign: (change) => (change === null || Math.abs(change) <= local.same ? "" : change > 0 ? "gain" : "loss"),
  read(row) {
    return { row, order: Number(row.dataset.id), rewards: JSON.parse(row.dataset.rewards), prompt: row.querySelector(".prompt").textContent };
  },
  number(name) {
    const input = local.form.elements[name];
    const text = input?.value.trim().replace(",", ".") ?? "";
    const value = Number(text);
    input?.setCustomValidity(Number.isFinite(value) ? "" : "This must be a number.");
    return text === "" || !Number.isFinite(value) ? null : value;
  },
  measure(entry, reward) {
    const values = entry.rewards[reward] ?? [];
    const [first, last] = [values[0] ?? null, values[values.length - 1] ?? null];
    entry.values = values;
    entry.value = last;
    entry.change = values.length < 2 || first === null || last === null ? null : last - first;
  },
  orders: {
    order: (a, b) => a.order - b.order,
    prompt: (a, b) => local.words(a.prompt, b.prompt) || a.order - b.order,
    value: (a, b) => local.down(a.value, b.value) || a.order - b.order,
    gain: (a, b) => local.down(a.change, b.change) || a.order - b.order,
    loss: (a, b) => local.up(a.change, b.change) || a.order - b.order,
  },
  words(a, b) {
    const [one, other] = [a.toLowerCase(), b.toLowerCase()];
    return one < other ? -1 : one > other ? 1 : 0;
  },
  down: (a, b) => (a === null || b === null ? (a === null) - (b === null) : b - a),
  up: (a, b) => (a === null || b === null ? (a === null) - (b === null) : a - b),

  // What is under the pictures, when another reward was chosen.
  write(entry) {
    entry.row.querySelectorAll(".cell .value").forEach((value, place) => { value.textContent = local.three(entry.values[place]); });
    const captions = entry.row.querySelectorAll(".cell figcaption");
    if (captions.length < 2) return;
    const caption = captions[captions.length - 1];
    const chip = caption.querySelector(".chip") ?? caption.appendChild(document.createElement("span"));
    chip.className = `chip ${local.sign(entry.change)}`;
    chip.hidden = entry.change === null;
    chip.textContent = local.signed(entry.change);
    entry.row.querySelector(".swipe")?.remove();
  },
  count(kept) {
    const changes = kept.map((entry) => entry.change).filter((change) => change !== null);
    const mean = changes.length ? changes.reduce((sum, change) => sum + change, 0) / changes.length : null;
    const improved = changes.filter((change) => change > local.same).length;
    const worse = changes.filter((change) => change < -local.same).length;
    const counts = { rows: kept.length, mean: local.signed(mean), improved, unchanged: changes.length - improved - worse, worse };
    for (const place of document.querySelectorAll("#summary [data-count]")) {
      const value = counts[place.dataset.count];
      place.textContent = typeof value === "number" ? value.toLocaleString("en-US") : value;
      if (place.dataset.count === "mean") place.className = local.sign(mean);
    }
  },
  apply() {
    const fields = local.form.elements;
    const reward = fields.reward?.value;
    const [low, high] = [local.number("low"), local.number("high")];
    const text = fields.prompt.value.toLowerCase();
    local.rows.forEach((entry) => local.measure(entry, reward));
    const kept = local.rows.filter((entry) => {
      const value = fields.on?.value === "change" ? entry.change : entry.value;
      const ranged = low === null && high === null;
      return entry.prompt.toLowerCase().includes(text) && (ranged || (value !== null && value >= (low ?? -Infinity) && value <= (high ?? Infinity)));
    });
    kept.sort(local.orders[fields.sort.value]);
    local.kept = kept;
    if (reward !== local.reward) local.rows.forEach(local.write);
    local.reward = reward;
    local.count(kept);
    local.turn(1);
  },
  turn(page) {
    local.page = page;
    const pages = Math.max(1, Math.ceil(local.kept.length / local.size));
    const shown = local.kept.slice((page - 1) * local.size, page * local.size);
    const seen = new Set(shown);
    local.rows.forEach((entry) => { entry.row.hidden = !seen.has(entry); });
    rows.list.append(...shown.map((entry) => entry.row));
    rows.refresh();
    local.pager.hidden = pages < 2;
    local.pager.querySelector("span").textContent = `page ${page} of ${pages}`;
    const [previous, next] = local.pager.querySelectorAll("button");
    previous.disabled = page <= 1;
    next.disabled = page >= pages;
    local.empty.hidden = local.kept.length > 0;
  },
  start() {
    local.rows = rows.shown().map(local.read);
    local.pager = document.createElement("nav");
    local.pager.className = "pager";
    local.pager.setAttribute("aria-label", "Pages of rows");
    for (const [words, by] of [["Previous", -1], ["Next", 1]]) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: words });
      button.addEventListener("click", () => { local.turn(local.page + by); rows.list.scrollIntoView(); });
      local.pager.append(button);
    }
    local.pager.firstChild.after(document.createElement("span"));
    local.empty = Object.assign(document.createElement("p"), { className: "empty", textContent: "Nothing is left: no row has such a prompt and such values." });
    rows.list.after(local.empty, local.pager);
    local.reward = local.form.elements.reward?.value;
    local.form.addEventListener("submit", (event) => { event.preventDefault(); local.apply(); });
    local.form.addEventListener("input", local.apply);
    local.form.querySelector("[data-reset]").addEventListener("click", (event) => {
      event.preventDefault();
      local.form.reset();
      local.apply();
    });
    local.apply();
  },
};
if (local.form && rows.list) local.start();
