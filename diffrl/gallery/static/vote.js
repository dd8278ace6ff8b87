// Votes without loading the page anew: keys, the next pair fetched ahead, videos that run side by side.
(() => {
  const form = document.getElementById("ballot");
  const sides = document.getElementById("sides");
  const problem = document.getElementById("problem");
  const play = document.getElementById("play");
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let data = JSON.parse(document.getElementById("data").textContent);
  let busy = false;
  const ahead = new Map(); // elements by address, fetched before they are shown

  function element(side, name) {
    const made = document.createElement(side.video ? "video" : "img");
    if (side.video) Object.assign(made, { muted: true, loop: true, playsInline: true, preload: "auto" });
    made.className = "picture";
    made.src = side.src;
    if (side.video) made.setAttribute("aria-label", `${name} video`);
    else made.alt = `${name} image`;
    return made;
  }

  function fetchAhead() {
    ahead.clear();
    if (!data.next) return;
    for (const name of ["left", "right"]) {
      ahead.set(data.next[name].src, element(data.next[name], name === "left" ? "Left" : "Right"));
    }
  }

  // Both are there before either is shown: films start together, and none is given away by coming first.
  async function ready(made) {
    if (made instanceof HTMLVideoElement) {
      if (made.readyState < 3 && !made.error) {
        await new Promise((done) => ["canplay", "error"].forEach((one) => made.addEventListener(one, done, { once: true })));
      }
    } else {
      await made.decode().catch(() => {}); // what cannot be read is shown as it is
    }
  }

  async function show() {
    const made = ["left", "right"].map((name) => {
      const side = data.pair[name];
      return ahead.get(side.src) ?? element(side, name === "left" ? "Left" : "Right");
    });
    await Promise.race([Promise.all(made.map(ready)), new Promise((done) => setTimeout(done, 10000))]);
    sides.querySelectorAll(".frame").forEach((frame, index) => {
      frame.replaceChildren(made[index]);
      if (made[index].tagName === "IMG" && made[index].complete) gallery.crisp(made[index]);
    });
    document.getElementById("prompt").textContent = data.pair.prompt || "(no prompt)";
    document.getElementById("prompt").scrollTop = 0;
    const edited = document.getElementById("edited");
    edited.hidden = !data.pair.source;
    if (data.pair.source) edited.querySelector("img").src = data.pair.source;
    document.getElementById("place").textContent = `${data.place} of ${data.total}`;
    document.getElementById("far").value = data.place - 1;
    document.getElementById("undo").disabled = data.votes === 0;
    document.getElementById("said").textContent = `Pair ${data.place} of ${data.total}: ${data.pair.prompt}`;
    form.elements.pair.value = data.pair.name;
    start();
    fetchAhead();
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
    if (busy || (choice === "undo" && data.votes === 0)) return;
    busy = true;
    problem.hidden = true;
    const button = form.querySelector(`.choices [value="${choice}"]`);
    button?.classList.add("picked");
    const body = new URLSearchParams(["session", "key", "pair"].map((name) => [name, form.elements[name].value]));
    body.set("choice", choice);
    try {
      const response = await fetch(form.action, { method: "POST", body, headers: { Accept: "application/json" } });
      const said = await response.json();
      if (!response.ok) throw new Error(said.error);
      data = said;
      if (data.results) {
        location.assign(data.results);
        return; // stays busy: the page is left
      }
      await show();
    } catch (error) {
      problem.textContent = error instanceof TypeError
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
  document.getElementById("enlarge").hidden = false;
  form.addEventListener("keydown", (event) => { // a button that is held down by Enter is pressed once
    if (event.repeat && event.target.closest("button")) event.preventDefault();
  });
  if (data.animated) { // of the first pair each began when it came: once more, together
    for (const name of ["left", "right"]) data.pair[name].src += "?together";
    show();
  } else {
    start();
    fetchAhead();
  }
})();
