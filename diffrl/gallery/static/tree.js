// The tree page: curves between its nodes, walking them, the panel of a node, what is shown and how large. A tree that
// was kept never changes: while the run goes on only the links to its neighbours do, and nobody loses their place.
(() => {
  const figure = document.querySelector(".treefig"), box = document.getElementById("box"), canvas = document.getElementById("canvas");
  const nodes = JSON.parse(document.getElementById("tree-facts").textContent);
  const panel = document.getElementById("panel"), size = document.getElementById("size");
  const item = (id) => document.getElementById(`node-${id}`);
  const shown = (id) => nodes[id].sampled || !figure.classList.contains("sampled-only");
  const pool = figure.classList.contains("pool");
  const path = (id) => (nodes[id].parent === null ? [id] : [...path(nodes[id].parent), id]);
  const siblings = (id) => {
    const all = nodes[nodes[id].parent]?.children.filter((one) => nodes[one].sampled) ?? [];
    return all.length > 1 ? all : [];
  };
  const at = (id) => (item(id).querySelector(".shot, .dot") ?? item(id)).getBoundingClientRect();
  let chosen = null;

  // --- lines: curves in place of the style sheet's elbows
  const lines = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  lines.setAttribute("class", "lines");
  lines.setAttribute("aria-hidden", "true");
  const strength = (id) => (nodes[id].sampled ? Math.abs(Number.parseFloat(item(id).querySelector(".chip-a")?.textContent.replace(/[^\d.]/g, "") || 0)) : -1);
  const edges = nodes.filter((one) => one.parent !== null).sort((a, b) => strength(a.id) - strength(b.id)); // the strongest on top
  for (const css of ["line", "hit"]) {
    for (const { id } of edges) {
      const line = document.createElementNS(lines.namespaceURI, "path");
      line.dataset.node = id;
      line.setAttribute("class", css === "line" ? `line ${item(id).parentElement.className}` : css);
      lines.append(line);
    }
  }
  if (edges.length) {
    canvas.querySelector("ul").before(lines);
    figure.classList.add("joined");
  }
  function join() {
    const origin = canvas.getBoundingClientRect();
    lines.setAttribute("width", canvas.offsetWidth);
    lines.setAttribute("height", canvas.offsetHeight);
    for (const line of lines.children) {
      const { id, parent } = nodes[line.dataset.node];
      line.style.display = shown(id) ? "" : "none";
      if (!shown(id)) continue;
      const from = at(parent), to = at(id), bend = (to.left - from.right) * 0.5;
      const [x, y, left, top] = [from.right - origin.left, from.top + from.height / 2 - origin.top, to.left - origin.left, to.top + to.height / 2 - origin.top];
      line.setAttribute("d", `M${x} ${y}C${x + bend} ${y} ${left - bend} ${top} ${left} ${top}`);
    }
  }

  // --- size
  function scale(value) {
    figure.style.setProperty("--u", value);
    figure.classList.toggle("far", value < 0.43);
    figure.classList.toggle("farther", value < 0.34);
    size.value = value;
    size.defaultValue = size.value; // set, not touched
    spread();
  }
  // Columns move apart where the box is wider than the tree.
  function spread() {
    figure.style.removeProperty("--room");
    const gaps = Math.max(0, ...nodes.filter((one) => shown(one.id)).map((one) => path(one.id).length - 1));
    canvas.style.minWidth = "0"; // as wide as what is in it
    const left = box.clientWidth - canvas.offsetWidth - 2;
    canvas.style.minWidth = "";
    if (!pool && gaps && left > 0) {
      const gap = Number.parseFloat(getComputedStyle(item(edges.find((one) => shown(one.id)).id).parentElement).paddingLeft);
      figure.style.setProperty("--room", `${Math.min(gap + left / gaps, 3.2 * gap + 20)}px`);
    }
    headed();
    join();
  }
  // As many words above the columns as do not lie on each other.
  function headed() {
    const all = ["near", "nearer", "nearest"], heads = [...figure.querySelectorAll(".head")];
    const right = (one) => Math.max(...[...one.children].map((child) => child.getBoundingClientRect().right));
    const left = (one) => Math.min(...[...one.querySelectorAll("b, span")].map((child) => child.getBoundingClientRect().left || Infinity));
    const meet = () => heads.some((one, i) => i && right(heads[i - 1]) > left(one) - 6);
    figure.classList.remove(...all);
    for (const name of all) if (meet()) figure.classList.add(name);
  }
  // The largest size at which all of it is in sight; at `tall` it may be higher than the box, at `wide` wider.
  function fit(tall, wide) {
    const room = Number.parseFloat(getComputedStyle(box).maxHeight) || box.clientHeight; // on phones it grows to that
    const over = (unit) => (unit > tall && canvas.offsetHeight > room) || (unit > wide && canvas.scrollWidth > box.clientWidth);
    let unit = pool ? 1 : 1.4;
    for (scale(unit); over(unit); scale(unit)) unit = Math.max(wide, unit - 0.04);
  }
  const phone = () => box.clientWidth < 640;
  const readable = () => (pool ? [0.7, 0.7] : [0.47, phone() ? 0.47 : 0.3]);

  // --- the panel
  const element = (tag, css = "", ...inside) => gallery.made(tag, css ? { className: css } : {}, ...inside);
  function image(address, alt, css, small) {
    const made = element("img", css);
    if (small) made.dataset.size = 128;
    made.addEventListener("load", () => gallery.crisp(made));
    return Object.assign(made, { src: address, alt });
  }
  const leading = (id, css, ...content) => gallery.made("button", { className: css, type: "button", onclick: () => open(id) }, ...content);
  const thumb = (id) => (nodes[id].image ? [image(nodes[id].image.thumb, "", "", true)] : []);
  // What moves stands still for those who asked their system for that.
  function moving(still, made) {
    return element("picture", "", gallery.made("source", { media: "(prefers-reduced-motion: reduce)", srcset: still }), made);
  }
  function shot(file, alt, caption, css) {
    const media = file && image(file.file, alt, "media"), inside = file?.still ? moving(file.still, media) : media;
    const shown = file ? gallery.made("a", { className: "open", href: file.file }, inside) : element("span", "media none", "no image kept");
    return element("figure", `${css ?? ""} cell`, shown, element("figcaption", "", caption));
  }
  const facts = (list) => element("dl", "", ...list.flatMap(([name, value, note]) => [element("dt", "", name), element("dd", "", value + (note ?? ""))]));
  const row = (css, id, shots) => gallery.made("div", { className: `${css} item`, id: `row-${id}` }, ...shots);
  function strip(node) {
    const made = gallery.made("div", { className: "strip", ariaLabel: "The path from the noise" });
    path(node.id).forEach((id, place) => {
      if (place) made.append(element("span", "", "›"));
      made.append(leading(id, id === node.id ? "here" : "", ...thumb(id), nodes[id].name));
    });
    return made;
  }
  // What a split asked of its prediction: before, aim, after; and the images that pull and push away.
  const AIM = ["The aim is what is predicted here plus", " the covariance of advantage and image below: towards the better images, away from the worse. The update only sets out that way; how far it came is told below."];
  const WAYS = { 1: ["up", "the prediction moves towards it"], 0: ["", "it pulls neither way"], [-1]: ["down", "the prediction moves away from it"] };
  function split(node) {
    const made = element("section", "split"), { split: asked } = node;
    made.append(element("h3", "", asked.trains ? "What this split teaches" : "This split"));
    if (asked.shots.length) made.append(row("pushed", `split-${node.id}`, asked.shots.map((one) => shot(one.image, one.label, one.label))));
    made.append(element("p", "", asked.trains ? AIM.join(asked.eta) : "This split does not train."));
    if (asked.ends.length) {
      const ends = element("div", "ends-below");
      for (const end of asked.ends) {
        const [css, title] = WAYS[end.way], button = leading(end.id, css, ...thumb(end.id), element("b", "", end.weight), nodes[end.id].name);
        button.title = title;
        ends.append(button);
      }
      made.append(element("p", "small soft", `Images below by their weight${asked.more ? `, ${asked.more} between them left out` : ""}`), ends);
    }
    made.append(facts(asked.facts));
    return made;
  }
  // What a step is compared with: the branches of its split beside each other, and what became of each.
  function branches(node) {
    const all = siblings(node.id);
    const shots = all.map((id) => {
      const one = nodes[id], here = id === node.id, branch = shot(nodes[one.best].image, `The best of ${one.name}`, "", here ? "here" : "");
      const button = leading(id, "quiet", one.name);
      if (here) button.setAttribute("aria-current", "true");
      branch.querySelector("figcaption").append(button, ` ${one.became}`);
      return branch;
    });
    return element("section", "", element("h3", "", `What the ${all.length} branches of ${nodes[node.parent].name} became`), row("siblings", `siblings-${node.id}`, shots));
  }
  function images(node) {
    const shots = [];
    if (node.sampled || !node.proxy) shots.push(shot(node.image, node.title, node.what));
    if (node.proxy) shots.push(shot(node.proxy, `${node.title}, proxy`, "as explored, in low precision", node.sampled ? "proxy" : ""));
    if (node.sample.length) shots.push(Object.assign(facts(node.sample), { className: "tells", hidden: true })); // enlarged they stand beside it
    return row("shots", `node-${node.id}`, shots);
  }
  const parts = (node) => element("details", "", element("summary", "", "Parts of the rewards"), facts(node.parts));
  function open(id) {
    const node = nodes[id], inside = panel.contains(document.activeElement);
    chosen = id;
    trace(id);
    unmark();
    item(id).classList.add("chosen");
    item(id).setAttribute("aria-selected", "true");
    const close = gallery.made("button", { className: "quiet", type: "button", ariaLabel: "Close", onclick: shut }, "✕");
    panel.replaceChildren(element("header", "", element("h2", "", node.title), close));
    if (node.split) panel.append(split(node));
    if (!node.split?.shots.length || !node.split.same) panel.append(images(node)); // else its first image is the node's own
    if (node.parent !== null) panel.append(strip(node));
    if (siblings(id).length) panel.append(branches(node));
    if (node.sample.length) panel.append(element("h3", "", "The image"), facts(node.sample));
    if (node.parts.length) panel.append(parts(node));
    if (node.parent !== null || !node.sample.length) panel.append(element("h3", "", node.parent === null ? "The node" : `The step to ${node.name}`), facts(node.step));
    panel.hidden = false;
    panel.scrollTop = 0;
    if (inside) (panel.querySelector(".here") ?? close).focus({ preventScroll: true });
    if (getComputedStyle(panel).position === "fixed") lift(id);
  }
  function unmark() {
    canvas.querySelectorAll(".node.chosen").forEach((one) => { one.classList.remove("chosen"); one.removeAttribute("aria-selected"); });
  }
  // On a phone the panel covers the lower half: bring the node above it.
  function lift(id) {
    box.scrollIntoView({ block: "start" });
    const over = item(id).getBoundingClientRect().bottom - (panel.getBoundingClientRect().top - 24);
    if (over > 0) box.scrollTop += over;
  }
  function shut() {
    panel.hidden = true;
    untrace();
    unmark();
    if (chosen !== null) item(chosen).focus({ preventScroll: true });
    chosen = null;
  }

  // --- the path of a node stands out
  function trace(id) {
    untrace();
    if (pool) return;
    figure.classList.add("traced");
    const on = path(id), below = [id];
    while (below.length) {
      const next = below.pop();
      if (next !== id) on.push(next);
      below.push(...nodes[next].children);
    }
    for (const one of siblings(id)) item(one).classList.add("near"); // what it is compared with stays bright
    for (const one of on) {
      item(one).classList.add("on");
      figure.querySelector(`.line[data-node="${one}"]`)?.classList.add("on");
    }
  }
  function untrace() {
    figure.classList.remove("traced");
    figure.querySelectorAll(".node.on, .line.on, .node.near").forEach((one) => one.classList.remove("on", "near"));
  }
  const back = () => (chosen === null ? untrace() : trace(chosen));

  // --- walking: children to the right, the parent to the left, neighbours of the same column above and below
  const middle = (id) => { const place = item(id).getBoundingClientRect(); return { id, x: place.left, y: place.top + place.height / 2 }; };
  const apart = (here) => (a, b) => Math.abs(a.y - here.y) - Math.abs(b.y - here.y) || (pool ? Math.abs(a.x - here.x) - Math.abs(b.x - here.x) : 0);
  function nearest(id, ahead) {
    const here = middle(id), depth = path(id).length;
    const column = nodes.filter((one) => one.id !== id && shown(one.id) && path(one.id).length === depth).map((one) => middle(one.id));
    return column.filter((one) => ahead(one, here)).sort(apart(here))[0]?.id;
  }
  const beside = (id, down) => nearest(id, (one, here) => (down ? one.y > here.y + 1 : one.y < here.y - 1));
  function along(id, right) {
    if (pool) return nearest(id, (one, here) => Math.abs(one.y - here.y) < 2 && (right ? one.x > here.x + 1 : one.x < here.x - 1));
    return right ? nodes[id].children.find(shown) : nodes[id].parent ?? undefined;
  }
  function go(id) {
    if (id === undefined) return;
    canvas.querySelectorAll('.node[tabindex="0"]').forEach((one) => { one.tabIndex = -1; });
    item(id).tabIndex = 0;
    item(id).focus({ preventScroll: true });
    item(id).scrollIntoView({ block: "nearest", inline: "nearest" });
    if (!panel.hidden) open(id);
  }
  canvas.addEventListener("keydown", (event) => {
    const target = event.target.closest(".node");
    if (!target || event.ctrlKey || event.metaKey || event.altKey) return;
    const id = Number(target.dataset.node);
    const moves = {
      ArrowRight: () => go(along(id, true)), ArrowLeft: () => go(along(id, false)),
      ArrowDown: () => go(beside(id, true)), ArrowUp: () => go(beside(id, false)),
      Home: () => go(nodes.find((one) => one.parent === null && shown(one.id))?.id),
      Enter: () => open(id), " ": () => open(id),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });
  const named = (event) => { const target = event.target.closest("[data-node]"); return target ? Number(target.dataset.node) : null; };
  canvas.addEventListener("click", (event) => {
    const id = named(event);
    if (id === null) return;
    event.preventDefault();
    go(id);
    open(id);
  });
  let over = null; // by motion: what a panel's arrival moves under a pointer at rest was not pointed at
  canvas.addEventListener("pointermove", (event) => { const id = named(event); if (id !== null && id !== over) trace(over = id); });
  canvas.addEventListener("pointerleave", () => { over = null; back(); });

  // --- the story's and the tables' references
  for (const link of document.querySelectorAll("[data-ref]")) {
    const id = Number(link.dataset.ref);
    for (const [event, action] of Object.entries({ pointerenter: () => trace(id), pointerleave: back, focus: () => trace(id), blur: back })) link.addEventListener(event, action);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      if (!shown(id)) toggle();
      box.scrollIntoView({ block: "nearest" });
      go(id);
      open(id);
    });
  }

  // --- what is shown
  const only = document.getElementById("sampled-only"), proxies = document.getElementById("proxies");
  function toggle() {
    const on = figure.classList.toggle("sampled-only");
    only.setAttribute("aria-pressed", String(on));
    if (on && chosen !== null && !nodes[chosen].sampled) shut();
    const first = nodes.find((one) => shown(one.id));
    canvas.querySelectorAll('.node[tabindex="0"]').forEach((one) => { one.tabIndex = -1; });
    if (first) item(first.id).tabIndex = 0;
    fit(...readable());
  }
  only?.addEventListener("click", toggle);
  proxies?.addEventListener("click", () => {
    proxies.setAttribute("aria-pressed", String(!figure.classList.toggle("no-proxies")));
    spread();
  });
  size.addEventListener("input", () => scale(Number(size.value)));
  addEventListener("resize", spread);
  document.getElementById("fit").addEventListener("click", () => fit(0.1, 0.1));
  const follow = (name) => () => document.querySelector(`[data-go="${name}"]`)?.click();
  gallery.keys({ n: follow("next"), p: follow("previous"), f: () => fit(0.1, 0.1), Escape: () => { if (!panel.hidden) shut(); } });
  document.getElementById("tools").hidden = false;

  // --- the run went on: there may be a tree after this one now
  let seen = null;
  async function neighbours(event) {
    const now = event.detail?.state?.trees;
    if (now && now === seen) return;
    const answer = await fetch(location.href, { cache: "no-store" }).catch(() => null);
    if (!answer?.ok) return;
    seen = now;
    const old = document.getElementById("around");
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("around");
    if (!fresh || fresh.outerHTML === old.outerHTML) return;
    const focus = old.contains(document.activeElement) ? document.activeElement.dataset.go : null;
    old.replaceWith(fresh);
    if (focus) fresh.querySelector(`[data-go="${focus}"]`)?.focus({ preventScroll: true });
  }
  document.addEventListener("run-changed", neighbours);
  fit(...readable());
  if (phone() && !pool) box.scrollLeft = box.scrollWidth; // what the story names is on the right
  // Enlarged, a leaf of the panel is followed by the next leaf.
  const page = lightbox.walk;
  lightbox.walk = (row) => {
    const all = nodes.filter((one) => one.sample.length && one.image && shown(one.id)), place = all.findIndex((one) => one.id === chosen);
    if (place < 0 || !panel.contains(row) || row.matches(".siblings")) return page(row);
    return { all, place, row: (leaf) => { open(leaf.id); return panel.querySelector(".shots"); } };
  };
  const wanted = /^#(?:node|steps|images|row-node|row-split|row-siblings)-(\d+)(?:&|$)/.exec(location.hash);
  if (wanted && nodes[Number(wanted[1])]) { go(Number(wanted[1])); open(Number(wanted[1])); }
})();
