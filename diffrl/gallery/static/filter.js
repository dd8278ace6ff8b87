// The form of an exported page: filter, order, reward and paging of the rows that are on it, without a server.
const local = {
  form: document.querySelector("form[data-local]"),
  size: Number(document.querySelector(".items[data-size]")?.dataset.size),
  page: 1,
  rows: [],
  like: null, // places of the rows of one point of the drawing, while only these are shown

  read(row) {
    const prompt = row.querySelector(".prompt");
    const text = prompt.dataset.none === undefined ? prompt.textContent : ""; // not the words that stand for none
    return { row, order: Number(row.dataset.id), rewards: JSON.parse(row.dataset.rewards), prompt: local.folded(text) };
  },
  // What Python's casefold() makes equal; of a sigma at the end of a word, and ß, too.
  folded: (text) => Array.from(text, (one) => (one === "ı" ? one : one.toUpperCase().toLowerCase())).join(""),
  // Places of the compared column and of the one it is compared with; with fewer than three there is no choice.
  paired(fields) {
    if (!fields.of) return local.unasked;
    if (fields.of.selectedIndex === fields.against.selectedIndex) fields.against.selectedIndex = fields.of.selectedIndex ? 0 : 1;
    return [fields.of.selectedIndex, fields.against.selectedIndex];
  },
  measure(entry, reward) {
    const values = entry.rewards[reward] ?? [], [value, other] = local.pair.map((place) => values[place] ?? null);
    Object.assign(entry, { values, value, change: values.length < 2 ? null : numbers.change(value, other) });
  },
  orders: {
    order: (a, b) => a.order - b.order,
    prompt: (a, b) => (a.prompt > b.prompt) - (a.prompt < b.prompt) || a.order - b.order,
    value: (a, b) => local.down(a.value, b.value) || a.order - b.order,
    gain: (a, b) => (local.lower ? local.up : local.down)(a.change, b.change) || a.order - b.order,
    loss: (a, b) => (local.lower ? local.down : local.up)(a.change, b.change) || a.order - b.order,
  },
  down: (a, b) => (a === null || b === null ? (a === null) - (b === null) : b - a),
  up: (a, b) => (a === null || b === null ? (a === null) - (b === null) : a - b),

  // What is under the images, when another reward was chosen.
  write(entry) {
    entry.row.querySelectorAll(".cell .value").forEach((value, place) => { value.textContent = numbers.three(entry.values[place]); });
    const captions = entry.row.querySelectorAll(".cell figcaption");
    if (captions.length < 2) return;
    captions.forEach((caption) => caption.querySelector(".chip")?.remove());
    const about = { className: `chip ${numbers.sign(entry.change, local.lower)}`, title: `change of ${local.name}`, hidden: entry.change === null };
    const value = captions[local.pair[0]].querySelector(".value"), chip = gallery.made("span", about, numbers.signed(entry.change));
    if (value) value.after(chip); else captions[local.pair[0]].append(chip);
  },
  // Without the rounding of every step (Neumaier's sum), as Python's fsum.
  sum(values) {
    let sum = 0, lost = 0;
    for (const value of values) {
      const next = sum + value;
      lost += Math.abs(sum) >= Math.abs(value) ? sum - next + value : value - next + sum;
      sum = next;
    }
    return sum + lost;
  },
  count(kept, filtered) {
    const saved = document.querySelectorAll("#summary [data-count], #summary [data-part]");
    const chips = document.querySelectorAll("#summary .chip");
    local.saved ??= Array.from(saved, (place) => [place.textContent, place.className]);
    local.judged ??= chips[0] && !chips[0].hidden;
    if (!filtered) { // the server counted all rows, also those that are not on this page
      saved.forEach((place, number) => { [place.textContent, place.className] = local.saved[number]; });
      chips.forEach((chip) => { chip.hidden = !local.judged; });
      return;
    }
    const part = document.querySelector("#summary [data-part]");
    if (part) part.textContent = `of the ${local.rows.length.toLocaleString("en-US")} rows on this page`;
    const changes = kept.map((entry) => entry.change).filter((change) => change !== null);
    const mean = changes.length ? local.sum(changes) / changes.length : null;
    const judged = changes.map((change) => numbers.sign(change, local.lower));
    const [improved, worse] = ["gain", "loss"].map((word) => judged.filter((one) => one === word).length);
    const judgements = { improved, unchanged: changes.length - improved - worse, worse };
    if (!changes.length) Object.keys(judgements).forEach((word) => { judgements[word] = "–"; });
    chips.forEach((chip) => { chip.hidden = !changes.length; });
    const [to, from] = local.pair.map((place) => local.form.elements.of?.options[place].textContent);
    const counts = { rows: kept.length, reward: local.name, mean: numbers.signed(mean), to, from, ...judgements };
    for (const place of document.querySelectorAll("#summary [data-count]")) {
      const value = counts[place.dataset.count];
      place.textContent = typeof value === "number" ? value.toLocaleString("en-US") : value;
    }
  },
  apply() {
    const fields = local.form.elements;
    const chosen = fields.reward?.selectedOptions[0];
    const reward = chosen?.value;
    [local.name, local.lower] = [chosen?.textContent, chosen?.dataset.lower !== undefined];
    const words = local.folded(fields.prompt.value).split(/\s+/).filter(Boolean), shown = fields.show?.value ?? "";
    local.pair = local.paired(fields);
    local.rows.forEach((entry) => local.measure(entry, reward));
    const kept = local.rows.filter((entry) => {
      const judged = { gain: "better", loss: "worse", "": "same" }[numbers.sign(entry.change, local.lower)];
      if (shown && (entry.change === null || judged !== shown)) return false;
      if (local.like && !local.like.has(entry.order)) return false;
      return words.every((word) => entry.prompt.includes(word));
    });
    kept.sort(local.orders[fields.sort.value]);
    local.kept = kept;
    Object.assign(rows.list.dataset, { reward: reward ?? "", pair: local.pair.join(" ") }); // lightbox.js asks for them
    const pair = local.pair.join(), other = pair !== local.unasked.join() || reward !== local.first;
    if (other) delete rows.list.dataset.flip;
    document.querySelectorAll("[data-scatter]").forEach((drawing) => { drawing.hidden = drawing.dataset.scatter !== reward; });
    if (reward !== local.reward || pair !== local.written) local.rows.forEach(local.write);
    [local.reward, local.written] = [reward, pair];
    local.count(kept, local.like !== null || words.length > 0 || shown !== "" || other);
    local.turn(1);
  },
  reset() {
    local.form.reset();
    local.like = null;
  },
  // The page with a row; if it was filtered out, all rows come back.
  reveal(row) {
    const place = () => local.kept.findIndex((entry) => entry.row === row);
    if (place() < 0) {
      local.reset();
      local.apply();
    }
    local.turn(Math.floor(place() / local.size) + 1);
  },
  turn(page) {
    local.page = page;
    const pages = Math.max(1, Math.ceil(local.kept.length / local.size));
    const shown = local.kept.slice((page - 1) * local.size, page * local.size);
    const seen = new Set(shown);
    [rows.list.dataset.before, rows.list.dataset.rows] = [(page - 1) * local.size, local.kept.length];
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
    const [previous, next] = [["Previous", -1], ["Next", 1]].map(([words, by]) => {
      const button = gallery.made("button", { type: "button" }, words);
      button.dataset.turn = by;
      button.addEventListener("click", () => { local.turn(local.page + by); rows.list.scrollIntoView(); });
      return button;
    });
    local.pager = gallery.made("nav", { className: "pager", ariaLabel: "Pages of rows" }, previous, document.createElement("span"), next);
    local.empty = gallery.made("p", { className: "empty" }, "Nothing is left: no row has such a prompt, or such a change.");
    rows.list.after(local.empty, local.pager);
    const width = rows.list.querySelector(".item")?.querySelectorAll(".cell").length ?? 1;
    local.unasked = [width - 1, 0];
    local.written = local.unasked.join();
    document.querySelector(".verdict")?.addEventListener("click", (event) => {
      const link = event.target.closest("[data-show], [data-like]");
      if (!link) return;
      event.preventDefault();
      local.reset();
      for (const name of ["of", "against", "show"]) if (link.dataset[name] && local.form.elements[name]) local.form.elements[name].value = link.dataset[name];
      if (link.dataset.like) {
        local.like = new Set(link.dataset.like.split(" ").map(Number));
        local.form.elements.reward.value = link.closest("[data-scatter]").dataset.scatter;
      }
      local.apply();
      rows.list.scrollIntoView();
    });
    document.addEventListener("row-wanted", (event) => local.reveal(event.detail));
    local.first = local.reward = document.querySelector("[name=reward] option[selected]")?.value ?? local.form.elements.reward?.value;
    local.form.addEventListener("submit", (event) => { event.preventDefault(); local.apply(); });
    local.form.addEventListener("input", local.apply);
    local.form.querySelector("[data-reset]").addEventListener("click", (event) => {
      event.preventDefault();
      local.reset();
      local.apply();
    });
    local.apply();
  },
};
if (local.form && rows.list) local.start();
