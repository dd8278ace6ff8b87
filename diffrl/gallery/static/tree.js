// The tree page: walking the tree, the panel of a node, what is shown and how large. A tree that was kept never changes:
// while the run goes on only the links to its neighbours do, and nobody loses their place.
(() => {
  const figure = document.querySelector(".treefig"), box = document.getElementById("box"), canvas = document.getElementById("canvas");
  const nodes = JSON.parse(document.getElementById("tree-nodes").textContent);
  const panel = document.getElementById("panel"), size = document.getElementById("size");
  const item = (id) => document.getElementById(`node-${id}`);
  const shown = (id) => nodes[id].drawn || !figure.classList.contains("drawn-only");
  const pool = nodes.every((one) => one.parent === null);
  let chosen = null;

  // --- size
  function scale(value) {
    figure.style.setProperty("--u", value);
    figure.classList.toggle("far", value < 0.43);
    figure.classList.toggle("farther", value < 0.34);
    size.value = value;
    size.defaultValue = size.value; // set, not touched
    spread();
  }
  // Columns move apart where the box is wider than the tree, and together, as far as their chips allow, where it is
  // narrower; letters that stay readable may stick out of it.
  function spread() {
    figure.style.setProperty("--k", 1);
    figure.style.setProperty("--out", "0px");
    if (pool) return; // it flows
    const { width, tail, fewerWidth, fewerTail } = canvas.dataset, fewer = figure.classList.contains("drawn-only");
    const unit = Number(figure.style.getPropertyValue("--u")), rest = Number(fewer ? fewerTail : tail);
    const columns = Number(fewer ? fewerWidth : width) - rest;
    const over = canvas.scrollWidth - canvas.offsetWidth, out = over > 0 ? over + 6 : 0, room = box.clientWidth - 2 - out;
    figure.style.setProperty("--out", `${out}px`);
    const apart = columns > 0 ? Math.min(Math.max((room / unit - rest) / columns, nearest(unit, fewer)), 2.4) : 1;
    figure.style.setProperty("--k", apart);
    headed(apart < 1);
  }
  // As many words above the columns as do not lie on each other.
  function headed(near) {
    const all = ["near", "nearer", "nearest"], heads = [...figure.querySelectorAll(".head")].filter((one) => one.offsetParent);
    const meet = () => heads.some((one, i) => i && heads[i - 1].getBoundingClientRect().right > one.getBoundingClientRect().left - 6);
    figure.classList.remove(...all);
    figure.classList.toggle(all[0], near);
    for (const name of all) if (meet()) figure.classList.add(name);
  }
  // How near columns may come: a picture and a chip, whose letters do not shrink below some size, stand between two.
  function nearest(unit, fewer) {
    const columns = (fewer ? canvas.dataset.fewerColumns : canvas.dataset.columns).split(",").map((one) => one.split(" ").map(Number));
    const chip = Math.max(62, 54 / unit);
    const least = columns.slice(1).map(([x], place) => (columns[place][1] + chip) / (x - columns[place][0]));
    return Math.min(1, Math.max(...least));
  }
  // A pool flows over the width: as large as its rows have room for.
  function flow(least) {
    let unit = 1;
    for (scale(unit); unit > least + 0.05 && box.scrollHeight > box.clientHeight + 1; scale(unit)) unit -= 0.1;
  }
  function fit(least) {
    if (pool) return flow(least);
    const fewer = figure.classList.contains("drawn-only");
    const width = Number(fewer ? canvas.dataset.fewerWidth : canvas.dataset.width);
    const height = Number(fewer ? canvas.dataset.fewerHeight : canvas.dataset.height);
    const room = Number.parseFloat(getComputedStyle(box).maxHeight) || box.clientHeight; // on phones it grows to that
    const whole = Math.min(box.clientWidth / width, room / height, 1.4);
    scale(Math.max(Math.floor(whole * 1000) / 1000 - 0.002, least));
  }
  const phone = () => box.clientWidth < 640;
  const readable = () => (pool ? 0.7 : phone() ? 0.47 : Math.min(0.47, Math.max(0.3, box.clientWidth / Number(canvas.dataset.width))));

  // --- choosing
  function element(tag, css, text) {
    const made = document.createElement(tag);
    if (css) made.className = css;
    if (text !== undefined) made.textContent = text;
    return made;
  }
  function image(address, alt, css, small) {
    const made = element("img", css);
    if (small) made.dataset.size = 128;
    made.addEventListener("load", () => gallery.crisp(made));
    made.src = address;
    made.alt = alt;
    return made;
  }
  // What moves stands still for those who asked their system for that.
  function moving(still, made) {
    const both = element("picture"), first = element("source");
    first.media = "(prefers-reduced-motion: reduce)";
    first.srcset = still;
    both.append(first, made);
    return both;
  }
  function shot(address, still, alt, caption, css) {
    const made = element("figure", `${css ?? ""} cell`), open = element("a", "open");
    const picture = address ? image(address, alt, "picture") : element("span", "picture none", "no image kept");
    open.href = address;
    if (address) open.append(still ? moving(still, picture) : picture);
    made.append(address ? open : picture, element("figcaption", "", caption));
    return made;
  }
  function facts(list) {
    const made = element("dl");
    for (const [name, value] of list) made.append(element("dt", "", name), element("dd", "", value));
    return made;
  }
  function strip(node) {
    const made = element("div", "strip");
    made.setAttribute("aria-label", "The path from the noise");
    node.path.forEach((step, place) => {
      if (place) made.append(element("span", "", "›"));
      const button = element("button", step.id === node.id ? "here" : "");
      button.type = "button";
      if (nodes[step.id].thumb) button.append(image(nodes[step.id].thumb, "", "", true));
      button.append(step.name);
      button.addEventListener("click", () => open(step.id));
      made.append(button);
    });
    return made;
  }
  // What a split asked of its prediction: before, aim, after; and the pictures that pull and push away.
  function split(node) {
    const made = element("section", "split"), { split: own } = node;
    made.append(element("h3", "", own.trains ? "What this split teaches" : "This split"));
    if (own.shots.length) {
      const shots = element("div", "pushed item");
      shots.id = `row-split-${node.id}`;
      for (const one of own.shots) shots.append(shot(one.picture, one.still, one.label, one.label));
      made.append(shots);
    }
    made.append(element("p", "", own.says));
    if (own.ends.length) {
      const ends = element("div", "ends-below");
      for (const end of own.ends) {
        const button = element("button", end.way > 0 ? "up" : end.way < 0 ? "down" : "");
        button.type = "button";
        button.title = end.way > 0 ? "the prediction is drawn to it" : end.way < 0 ? "the prediction is drawn away from it" : "it pulls neither way";
        if (end.thumb) button.append(image(end.thumb, "", "", true));
        button.append(element("b", "", end.weight), end.name);
        button.addEventListener("click", () => open(end.id));
        ends.append(button);
      }
      made.append(element("p", "small soft", `Images below by their weight${own.more ? `, ${own.more} between them left out` : ""}`), ends);
    }
    made.append(facts(own.facts));
    return made;
  }
  // What a step is compared with: the branches of its split beside each other, and what became of each.
  const siblings = (node) => nodes[node.parent]?.branches ?? [];
  function branches(node) {
    const made = element("section"), shots = element("div", "siblings item");
    shots.id = `row-siblings-${node.id}`;
    for (const one of siblings(node)) {
      const { name } = nodes[one.id], told = shot(one.picture, one.still, `The best of ${name}`, "", one.id === node.id ? "here" : "");
      const button = element("button", "quiet", name);
      button.type = "button";
      if (one.id === node.id) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => open(one.id));
      told.querySelector("figcaption").append(button, ` ${one.says}`);
      shots.append(told);
    }
    made.append(element("h3", "", `What the ${siblings(node).length} branches of ${nodes[node.parent].name} became`), shots);
    return made;
  }
  function open(id) {
    const node = nodes[id], inside = panel.contains(document.activeElement);
    chosen = id;
    trace(id);
    unmark();
    item(id).classList.add("chosen");
    item(id).setAttribute("aria-selected", "true");
    const head = element("header"), close = element("button", "quiet", "✕"), shots = element("div", "shots item");
    shots.id = `row-node-${node.id}`;
    close.type = "button";
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", shut);
    head.append(element("h2", "", node.title), close);
    if (node.drawn || !node.proxy) shots.append(shot(node.picture, node.still, node.title, node.what));
    if (node.proxy) shots.append(shot(node.proxy, node.proxy_still, `${node.title}, proxy`, "as explored, in low precision", node.drawn ? "proxy" : ""));
    if (node.sample.length) shots.append(Object.assign(facts(node.sample), { className: "tells", hidden: true })); // enlarged they stand beside it
    panel.replaceChildren(head);
    if (node.split) panel.append(split(node));
    if (!node.split?.shots.length || !node.split.same) panel.append(shots); // else its first picture is the node's own
    if (node.path.length > 1) panel.append(strip(node));
    if (siblings(node).length) panel.append(branches(node));
    if (node.sample.length) panel.append(element("h3", "", "The image"), facts(node.sample));
    if (node.parts.length) {
      const parts = element("details");
      parts.append(element("summary", "", "Parts of the rewards"), facts(node.parts));
      panel.append(parts);
    }
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
    const on = nodes[id].path.map((step) => step.id), below = [id];
    while (below.length) {
      const next = below.pop();
      if (next !== id) on.push(next);
      below.push(...nodes[next].children);
    }
    for (const one of siblings(nodes[id])) item(one.id).classList.add("near"); // what it is compared with stays bright
    for (const one of on) {
      item(one).classList.add("on");
      figure.querySelectorAll(`.line[data-node="${one}"]`).forEach((line) => line.classList.add("on"));
    }
  }
  function untrace() {
    figure.classList.remove("traced");
    figure.querySelectorAll(".on, .near").forEach((one) => one.classList.remove("on", "near"));
  }
  const back = () => (chosen === null ? untrace() : trace(chosen));

  // --- walking: children to the right, the parent to the left, neighbours of the same column above and below
  const middle = (id) => { const at = item(id).getBoundingClientRect(); return { x: at.left, y: at.top + at.height / 2 }; };
  function beside(id, down) {
    const depth = nodes[id].path.length, here = middle(id);
    const column = nodes.filter((one) => one.path.length === depth && one.id !== id && shown(one.id));
    const rows = column.map((one) => ({ id: one.id, ...middle(one.id) }));
    const ahead = rows.filter((one) => (down ? one.y > here.y + 1 : one.y < here.y - 1));
    ahead.sort((a, b) => Math.abs(a.y - here.y) - Math.abs(b.y - here.y) || (pool ? Math.abs(a.x - here.x) - Math.abs(b.x - here.x) : 0));
    return ahead[0]?.id;
  }
  function along(id, right) {
    const here = middle(id);
    if (pool) {
      const row = nodes.filter((one) => shown(one.id)).map((one) => ({ id: one.id, ...middle(one.id) }));
      const ahead = row.filter((one) => Math.abs(one.y - here.y) < 2 && (right ? one.x > here.x + 1 : one.x < here.x - 1));
      return ahead.sort((a, b) => Math.abs(a.x - here.x) - Math.abs(b.x - here.x))[0]?.id;
    }
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
  canvas.addEventListener("click", (event) => {
    const target = event.target.closest("[data-node]");
    if (!target) return;
    event.preventDefault();
    const id = Number(target.dataset.node);
    go(id);
    open(id);
  });
  canvas.addEventListener("pointerover", (event) => { const target = event.target.closest("[data-node]"); if (target) trace(Number(target.dataset.node)); });
  canvas.addEventListener("pointerleave", back);

  // --- the story's and the tables' references
  for (const link of document.querySelectorAll("[data-ref]")) {
    const id = Number(link.dataset.ref);
    link.addEventListener("pointerenter", () => trace(id));
    link.addEventListener("pointerleave", back);
    link.addEventListener("focus", () => trace(id));
    link.addEventListener("blur", back);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      if (!shown(id)) toggle();
      box.scrollIntoView({ block: "nearest" });
      go(id);
      open(id);
    });
  }

  // --- what is shown
  const only = document.getElementById("drawn-only"), proxies = document.getElementById("proxies");
  function toggle() {
    const on = figure.classList.toggle("drawn-only");
    only.setAttribute("aria-pressed", String(on));
    if (on && chosen !== null && !nodes[chosen].drawn) shut();
    const first = nodes.find((one) => shown(one.id));
    canvas.querySelectorAll('.node[tabindex="0"]').forEach((one) => { one.tabIndex = -1; });
    if (first) item(first.id).tabIndex = 0;
    fit(readable());
  }
  only?.addEventListener("click", toggle);
  proxies?.addEventListener("click", () => {
    const off = figure.classList.toggle("no-proxies");
    proxies.setAttribute("aria-pressed", String(!off));
  });
  size.addEventListener("input", () => scale(Number(size.value)));
  addEventListener("resize", spread);
  document.getElementById("fit").addEventListener("click", () => fit(0.1));
  const follow = (name) => () => document.querySelector(`[data-go="${name}"]`)?.click();
  gallery.keys({ n: follow("next"), p: follow("previous"), f: () => fit(0.1), Escape: () => { if (!panel.hidden) shut(); } });
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
  fit(readable());
  if (phone() && !pool) box.scrollLeft = box.scrollWidth; // what the story names is on the right
  // Enlarged, a leaf of the panel is followed by the next leaf.
  const page = lightbox.walk;
  lightbox.walk = (row) => {
    const all = nodes.filter((one) => one.sample.length && one.picture && shown(one.id)), place = all.findIndex((one) => one.id === chosen);
    if (place < 0 || !panel.contains(row) || row.matches(".siblings")) return page(row);
    return { all, place, row: (leaf) => { open(leaf.id); return panel.querySelector(".shots"); } };
  };
  const wanted = /^#(?:node|details|row-node|row-split|row-siblings)-(\d+)(?:&|$)/.exec(location.hash);
  if (wanted && nodes[Number(wanted[1])]) { go(Number(wanted[1])); open(Number(wanted[1])); }
})();
