// Votes without loading the page anew: keys, the next pair's page in place of this one's, videos that run side by side.
(() => {
  const here = (id) => document.getElementById(id);
  const form = here("ballot"), sides = here("sides"), problem = here("problem"), play = here("play");
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let busy = false;

  // An element of a fetched page loads nothing: one of this page does.
  function loading(element, mark) {
    const made = document.createElement(element.tagName);
    for (const { name, value } of element.attributes) made.setAttribute(name, value);
    if (mark) made.src += mark;
    if (made.tagName === "VIDEO") made.muted = true;
    return made;
  }

  async function ready(image) {
    if (image.tagName === "IMG") await image.decode().catch(() => {}); // what cannot be read is shown as it is
    else if (image.readyState < 3 && !image.error) {
      await new Promise((done) => ["canplay", "error"].forEach((one) => image.addEventListener(one, done, { once: true })));
    }
  }

  // Both are there before either is shown: films start together, and none is given away by coming first.
  async function show(page, mark = "") {
    const images = [...page.querySelectorAll("#sides .media")].map((image) => loading(image, mark));
    await Promise.race([Promise.all(images.map(ready)), new Promise((done) => setTimeout(done, 10000))]);
    sides.querySelectorAll(".frame").forEach((frame, index) => {
      frame.replaceChildren(images[index]);
      if (images[index].tagName === "IMG" && images[index].complete) gallery.crisp(images[index]);
    });
    if (page !== document) update(page);
    start();
  }

  function update(page) {
    for (const id of ["prompt", "place"]) here(id).textContent = page.getElementById(id).textContent;
    here("edited").replaceChildren(...document.importNode(page.getElementById("edited"), true).childNodes);
    here("edited").hidden = page.getElementById("edited").hidden;
    here("prompt").scrollTop = 0;
    here("far").value = page.getElementById("far").value;
    here("undo").disabled = page.getElementById("undo").disabled;
    here("next").replaceChildren(...[...page.getElementById("next").children].map((image) => loading(image)));
    here("said").textContent = `Pair ${here("place").textContent}: ${here("prompt").textContent}`;
    form.elements.pair.value = page.querySelector("[name=pair]").value;
  }

  const videos = () => [...sides.querySelectorAll("video")];
  function start() {
    const all = videos();
    play.hidden = all.length === 0;
    all.forEach((video) => { video.currentTime = 0; });
    if (all.length && !calm) run(true);
    if (all.length === 2) all[0].ontimeupdate = () => { // the right one follows the left
      const apart = Math.abs(all[0].currentTime - all[1].currentTime);
      if (apart > 0.15 && apart < all[1].duration - 0.3) all[1].currentTime = all[0].currentTime;
    };
  }
  function run(on) {
    videos().forEach((video) => (on ? video.play().catch(() => {}) : video.pause()));
    play.textContent = on ? "Pause" : "Play";
  }
  const toggle = () => { if (videos().length) run(videos().every((video) => video.paused)); };
  play.addEventListener("click", toggle);

  async function answer(choice) {
    if (busy || (choice === "undo" && here("undo").disabled)) return;
    busy = true;
    problem.hidden = true;
    const button = form.querySelector(`.choices [value="${choice}"]`);
    button?.classList.add("picked");
    const body = new URLSearchParams(new FormData(form));
    body.set("choice", choice);
    try {
      const response = await fetch(form.action, { method: "POST", body });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (!response.ok) throw new Error(page.querySelector("[role=alert] p").textContent);
      if (!page.getElementById("ballot")) {
        location.assign(response.url);
        return; // stays busy: the page is left
      }
      await show(page);
    } catch (error) {
      problem.textContent = error.name === "TypeError"
        ? "The gallery does not answer. The vote was not taken; try again when it runs."
        : error.message;
      problem.hidden = false;
    }
    button?.classList.remove("picked");
    busy = false;
  }

  form.addEventListener("submit", (event) => {
    if (!event.submitter?.value) return;
    event.preventDefault();
    if (event.submitter === document.activeElement && event.submitter.matches(":not(:focus-visible)")) event.submitter.blur();
    answer(event.submitter.value);
  });
  // No vote lies on a key that scrolls the page, and none is given by who scrolls a long prompt.
  const give = (choice) => (event) => (event.target.closest("#prompt") ? false : void answer(choice));
  gallery.keys({
    ArrowLeft: give("left"),
    ArrowRight: give("right"),
    e: give("equal"),
    s: give("skip"),
    u: give("undo"),
    p: toggle,
    z: () => lightbox.open(form),
  });
  here("enlarge").hidden = false;
  form.addEventListener("keydown", (event) => { // a button that is held down by Enter is pressed once
    if (event.repeat && event.target.closest("button")) event.preventDefault();
  });
  if ("animated" in form.dataset) show(document, "?together"); // each began when it came: once more, together
  else start();
})();
