// Asks the server every few seconds whether a run went on, and shows what is new without losing the reader's place.
//
// document gets a "run-changed" event, {detail: {run, version, state}}, for each run that changed. Pages that draw
// their news themselves say data-live="self" on body or main, pages that must stand still say data-live="off". On all
// others <main> is replaced, if nobody is in the middle of something there; else a line at the bottom offers it.
// After main was replaced document gets a "main-replaced" event, so that a page's script can bind its handlers again.
(() => {
  const address = document.currentScript.dataset.state;
  const box = document.getElementById("live");
  const SOON = 2000, LATE = 15000;
  const known = new Map();
  let wait = SOON, timer = 0, asking = false, lost = 0, waiting = "", last = document.getElementById("main").outerHTML;

  const main = () => document.getElementById("main");
  const mode = () => document.body.dataset.live || main().dataset.live || "";

  function say(text, action) {
    box.replaceChildren(text);
    if (action) box.append(" ", gallery.made("button", { type: "button", onclick: action }, "Show"));
    box.hidden = !text;
  }

  function touched(field) {
    if (field.matches("[type=checkbox], [type=radio]")) return field.checked !== field.defaultChecked;
    if (!field.matches("select")) return field.value !== field.defaultValue;
    const chosen = [...field.options].find((option) => option.defaultSelected) ?? field.options[0];
    return field.value !== chosen?.value;
  }

  // Typing, a dialog, a selection, a film, or a place far down that would move: nothing is taken away from there.
  function busy() {
    const selection = getSelection();
    return document.querySelector("dialog[open]") || document.fullscreenElement || scrollY > 1.5 * innerHeight
      || document.activeElement?.matches("main input, main textarea, main select")
      || (String(selection).length > 0 && main().contains(selection.anchorNode))
      || main().querySelector("[aria-pressed=true]") // a way of looking that was switched on
      || [...main().querySelectorAll("video")].some((video) => !video.paused)
      || [...main().querySelectorAll("input, textarea, select")].some(touched);
  }

  // What has the focus, found again in the new page: by what it is, by its words, or else by its place.
  const reachable = (root) => [...root.querySelectorAll("a[href], button, summary, input, select, textarea, [tabindex]")];
  function finder(old) {
    const element = document.activeElement;
    if (element === old || !old.contains(element)) return () => null;
    const marks = ["id", "href", "name", "value", "data-id"].filter((mark) => element.hasAttribute(mark));
    const what = element.localName + marks.map((mark) => `[${mark}="${CSS.escape(element.getAttribute(mark))}"]`).join("");
    const words = element.textContent, place = reachable(old).indexOf(element);
    return (fresh) => {
      const same = marks.length ? [...fresh.querySelectorAll(what)] : [];
      const alike = [...fresh.querySelectorAll(element.localName)].filter((one) => words.trim() && one.textContent === words);
      const all = reachable(fresh);
      return same.find((one) => one.textContent === words) ?? same[0] ?? alike[0] ?? all[Math.min(place, all.length - 1)];
    };
  }

  function replace(fresh) {
    const old = main(), found = finder(old), y = scrollY;
    const open = [...old.querySelectorAll("details")].map((one) => [one.id || one.querySelector("summary")?.textContent, one.open]);
    const moved = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    const images = new Map([...old.querySelectorAll("img")].map((image) => [image.getAttribute("src"), image]));
    fresh.querySelectorAll("img").forEach((image) => { // an image that is there already need not be loaded again
      const same = images.get(image.getAttribute("src"));
      if (!same?.complete) return;
      images.delete(image.getAttribute("src"));
      const css = same.classList.contains("crisp") ? `${image.className} crisp` : image.className;
      image.getAttributeNames().forEach((mark) => mark !== "src" && same.setAttribute(mark, image.getAttribute(mark)));
      same.className = css;
      image.replaceWith(same);
    });
    old.replaceWith(fresh);
    const states = new Map(open);
    fresh.querySelectorAll("details").forEach((one) => {
      const was = states.get(one.id || one.querySelector("summary")?.textContent);
      if (was !== undefined) one.open = was;
    });
    fresh.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = moved[index] ?? 0; });
    found(fresh)?.focus({ preventScroll: true });
    scrollTo({ top: y, behavior: "instant" });
    say("");
    waiting = "";
    document.dispatchEvent(new CustomEvent("main-replaced", { detail: { main: fresh } }));
  }

  // Whether the page is as the server has it now, or offers to be: what has failed is tried again.
  async function renew(text, force) {
    const response = await fetch(location.href, { cache: "no-store" });
    if (!response.ok) return false;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.getElementById("main"), html = fresh.outerHTML;
    if (html === last) return true; // nothing of this page changed
    if (busy() && !force) {
      say((waiting = text), () => renew(text, true).catch(() => {})); // the offer stays
      return true;
    }
    last = html;
    document.title = page.title;
    replace(document.adoptNode(fresh));
    return true;
  }

  // A run that was killed changes no file: only its `running` tells. Of a folder there is none.
  const mark = (state) => `${state.version} ${state.running}`;

  function news(run, state) {
    const parts = [];
    if (known.get(run) === `${state.version} true`) return `${state.title} runs no more.`;
    if (state.done != null) parts.push(`iteration ${state.done}`);
    if (state.evaluation != null) parts.push(`evaluation ${state.evaluation}`);
    return parts.length ? `New: ${parts.join(", ")}.` : `${state.title} has changed.`;
  }

  async function ask() {
    if (asking) return;
    asking = true;
    try {
      const response = await fetch(address, { cache: "no-store" });
      if (!response.ok) throw new Error(response.status);
      const states = await response.json();
      if (lost > 1 && !waiting) say("");
      lost = 0;
      const changed = Object.entries(states).filter(([run, state]) => known.has(run)
        ? known.get(run) !== mark(state)
        : state.age != null && state.age * 1000 < performance.now()); // since this page was asked for
      wait = Math.min(LATE, wait * 1.25);
      if (changed.length && !mode() && !(await renew(news(...changed[0]), false))) return; // not noted: the next time again
      for (const [run, state] of Object.entries(states)) known.set(run, mark(state));
      if (changed.length) wait = SOON;
      for (const [run, state] of changed) {
        document.dispatchEvent(new CustomEvent("run-changed", { detail: { run, version: state.version, state } }));
      }
    } catch {
      wait = LATE;
      if (++lost === 2) say("The gallery no longer answers. Was it ended?");
    } finally {
      asking = false;
      clearTimeout(timer);
      timer = setTimeout(ask, document.hidden ? LATE : lost === 1 ? SOON : wait);
    }
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) { wait = SOON; ask(); } });
  ask();
})();
