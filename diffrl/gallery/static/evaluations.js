// One sample through the evaluations of its run, by a slider: the same prompt and noise, the compared column alone.
// The samples of some prompts come with one answer, when the first of them is enlarged.
const evaluations = {
  known: new Map(), // answers by their address
  data: null,
  sample: null,
  own: -1, // the place of what the page shows
  at: null, // key of the evaluation that is shown instead
  timer: 0,
  bar: () => lightbox.part(".lightbox-walk"),

  // From disk nothing can be fetched, but a script can be run.
  load(address) {
    if (!evaluations.known.has(address)) evaluations.known.set(address, /\.js$/.test(address) ? evaluations.run(address) : evaluations.fetch(address));
    return evaluations.known.get(address);
  },
  async fetch(address) {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(answer.status);
    return answer.json();
  },
  run: (address) => new Promise((done, failed) => {
    const script = Object.assign(document.createElement("script"), { src: address, onerror: failed });
    script.onload = () => done(gallery.evaluations);
    document.head.append(script);
  }),
  forget() {
    Object.assign(evaluations, { data: null, sample: null, own: -1 });
    evaluations.show();
  },
  async begin() {
    const { row } = lightbox, cell = lightbox.cells()[lightbox.pair()[0]];
    if (!cell?.dataset.evaluations) return;
    let data = null;
    try {
      data = await evaluations.load(cell.dataset.evaluations);
    } catch {
      evaluations.known.delete(cell.dataset.evaluations); // the next time again
    }
    if (lightbox.row !== row || !lightbox.dialog.open) return;
    const id = Number(cell.dataset.sample), sample = data?.samples.find((one) => one.ids.includes(id));
    if (sample) Object.assign(evaluations, { data, sample, own: sample.ids.indexOf(id) });
    evaluations.show(data ? "" : "The evaluations of this sample cannot be read. Load the page again."); // without one it was drawn once only
    lightbox.draw();
    evaluations.ahead();
  },
  // Places of the evaluations that have the sample, and of the one that is shown.
  places: () => evaluations.sample.at.flatMap((one, place) => (one ? [place] : [])),
  place() {
    const asked = evaluations.data ? evaluations.data.keys.indexOf(evaluations.at) : -1;
    return evaluations.sample?.at[asked] ? asked : evaluations.own;
  },
  moved: () => evaluations.sample !== null && evaluations.place() !== evaluations.own,

  go(place) {
    evaluations.at = place === evaluations.own ? null : evaluations.data.keys[place];
    evaluations.show();
    lightbox.draw();
    lightbox.write();
    evaluations.ahead();
  },
  step(by) {
    if (!evaluations.sample) return;
    const places = evaluations.places(), next = places[places.indexOf(evaluations.place()) + by];
    if (next !== undefined) evaluations.go(next);
  },
  play() {
    const runs = evaluations.timer !== 0;
    evaluations.stop();
    if (runs || !evaluations.sample) return;
    const places = evaluations.places();
    if (evaluations.place() === places.at(-1)) evaluations.go(places[0]);
    evaluations.timer = setInterval(() => {
      evaluations.step(1);
      if (evaluations.place() === places.at(-1)) evaluations.stop();
    }, 700);
    lightbox.part('[data-do="play"]').textContent = "Stop";
  },
  stop() {
    clearInterval(evaluations.timer);
    evaluations.timer = 0;
    lightbox.part('[data-do="play"]').textContent = "Play";
  },
  // The images before and after are fetched before they are asked for.
  ahead() {
    if (!evaluations.sample) return;
    const place = evaluations.place(), near = [place - 1, place + 1, place + 2].map((one) => evaluations.sample.at[one]);
    evaluations.fetched = near.filter((one) => one?.src && !one.video).map(({ src }) => Object.assign(new Image(), { src }));
  },

  show(problem = "") {
    const bar = evaluations.bar(), range = bar.querySelector("input"), places = evaluations.sample ? evaluations.places() : [];
    bar.hidden = places.length < 2 && !problem;
    for (const part of bar.querySelectorAll("button, input")) part.hidden = places.length < 2;
    bar.querySelector("output").textContent = problem || (evaluations.sample ? evaluations.words(places) : "");
    if (!evaluations.sample) return;
    range.max = places.length - 1;
    range.value = places.indexOf(evaluations.place());
    range.defaultValue = range.value; // set, not touched
    range.setAttribute("aria-valuetext", evaluations.data.labels[evaluations.place()]);
  },
  words(places) {
    const { data } = evaluations, left = data.of - data.keys.length;
    const shown = `${data.labels[evaluations.place()]}, ${places.indexOf(evaluations.place()) + 1} of ${places.length}`;
    return left > 0 ? `${shown} (${left} between are left out)` : shown;
  },

  // --- what stands in the place of the cell
  reward: () => lightbox.row.closest(".items")?.dataset.reward,
  value: (one, name) => one.values[evaluations.data.rewards.findIndex(([known]) => known === name)],
  lower: (name) => evaluations.data.rewards.find(([known]) => known === name)?.[2] ?? false,
  stored: (name, column) => JSON.parse(lightbox.row.dataset.rewards)[name]?.[column],
  label(place) {
    const { data, own } = evaluations, column = lightbox.cells()[lightbox.pair()[0]].querySelector(".column").textContent;
    return column.replace(data.labels[own], data.labels[place]);
  },
  shot: () => (evaluations.moved() ? evaluations.made(evaluations.place(), true) : null),
  // Of one column: what lies under it. Its first evaluation, unless that is what is shown.
  first() {
    if (!evaluations.sample) return null;
    const [first] = evaluations.places();
    return first === evaluations.place() ? null : evaluations.made(first, false);
  },
  made(place, changed) {
    const one = evaluations.sample.at[place], name = evaluations.reward(), label = evaluations.label(place);
    const caption = gallery.made("figcaption", {});
    const tell = (css, words) => caption.append(gallery.made("span", { className: css }, words), " ");
    tell("column", label);
    if (name) tell("value numbers", numbers.three(evaluations.value(one, name)));
    const other = changed && lightbox.cells().length > 1 ? evaluations.stored(name, lightbox.pair()[1]) : null;
    const change = numbers.change(evaluations.value(one, name), other);
    if (change !== null) tell(`chip ${numbers.sign(change, evaluations.lower(name))}`, numbers.signed(change));
    const notes = [one.reason, one.error && `not scored: ${one.error}`].filter(Boolean);
    return { media: evaluations.media(one, `${label}: ${lightbox.part(".prompt").textContent.slice(0, 160)}`), caption, label, notes };
  },
  media(one, alt) {
    if (!one.src) return gallery.made("span", { className: "media none" }, "no image kept");
    if (one.video) return gallery.made("video", { className: "media", src: one.src, muted: true, loop: true, playsInline: true, controls: true, preload: "metadata", ariaLabel: alt });
    const made = gallery.made("img", { className: one.still ? "media moving" : "media", alt });
    Object.assign(made.dataset, { full: one.src, ...(one.still ? { moving: one.src, still: one.still } : {}) });
    made.src = one.still && !motion.playing ? one.still : one.src;
    return made;
  },
  // Every reward at another evaluation than the row's own table shows.
  table() {
    if (!evaluations.moved()) return null;
    const one = evaluations.sample.at[evaluations.place()], [of, against] = lightbox.pair(), cells = lightbox.cells();
    const table = gallery.made("table", { className: "small" });
    const line = (tag, words, css = "") => gallery.made(tag, { className: css }, words);
    const labels = cells.map((cell, place) => (place === of ? evaluations.label(evaluations.place()) : cell.querySelector(".column").textContent));
    const heads = ["reward", ...labels, ...(cells.length > 1 ? ["change"] : [])];
    table.insertRow().append(...heads.map((words, place) => line("th", words, place ? "number" : "")));
    const lines = new Map(); // equal parts of several rewards in one, as diffrl/gallery/rows.py folds them
    evaluations.data.rewards.forEach(([name, words, lower], index) => {
      if (typeof one.values[index] !== "number") return;
      const values = cells.map((_, place) => (place === of ? one.values[index] : evaluations.stored(name, place)));
      const part = name.split("/").slice(1).join("/"), key = part ? JSON.stringify([part, lower, values]) : name;
      if (lines.has(key)) lines.get(key).words += ` = ${words}`;
      else lines.set(key, { words, values, lower });
    });
    for (const { words, values, lower } of lines.values()) {
      const row = table.insertRow(), change = numbers.change(values[of], values[against]);
      row.append(line("th", words), ...values.map((value) => line("td", numbers.three(value), "number")));
      if (cells.length > 1) row.append(line("td", numbers.signed(change), `number ${numbers.sign(change, lower)}`));
    }
    return table;
  },

  start() {
    evaluations.known.clear(); // the run may have gone on
    evaluations.bar().querySelector("input").addEventListener("input", (event) => {
      evaluations.stop();
      evaluations.go(evaluations.places()[event.target.value]);
    });
  },
};
