// The images of an enlarged row: all of its columns side by side; or two of them on one another, parted by an edge
// (swipe), one at a time (flip), or what differs between them (difference), amplified.
const stage = {
  MODES: ["side", "swipe", "flip", "difference"],
  TIMES: [1, 2, 4, 8, 16],
  mode: "side",
  times: 1,
  flipped: false,
  BLINK: 600, // milliseconds that each of two is shown
  blinking: 0,
  edge: 50,
  panes: () => lightbox.part(".lightbox-panes"),

  ask(mode, times) {
    stage.mode = stage.MODES.includes(mode) ? mode : "side";
    stage.times = stage.TIMES.includes(times) ? times : 1;
    stage.flipped = false;
  },
  toggle(mode) {
    if (lightbox.part(`[data-mode="${mode}"]`).disabled) return;
    stage.ask(stage.mode === mode ? "side" : mode, stage.times);
    lightbox.draw();
    lightbox.write();
  },
  amplify() {
    if (!stage.panes().querySelector("[data-shown=difference]")) return;
    stage.times = stage.TIMES[(stage.TIMES.indexOf(stage.times) + 1) % stage.TIMES.length];
    stage.settle();
    lightbox.write();
  },
  flip() {
    stage.steady();
    stage.turn();
  },
  turn() {
    if (!stage.panes().querySelector("[data-shown=flip]")) return;
    stage.flipped = !stage.flipped;
    stage.settle();
  },
  // Turns over by itself: what moves between two images is what differs.
  blink() {
    if (stage.blinking) return stage.steady();
    if (stage.mode !== "flip") stage.toggle("flip");
    if (!stage.panes().querySelector("[data-shown=flip]")) return;
    stage.blinking = setInterval(stage.turn, stage.BLINK);
    stage.settle();
  },
  steady() {
    clearInterval(stage.blinking);
    stage.blinking = 0;
    lightbox.part('[data-do="blink"]').setAttribute("aria-pressed", "false");
  },
  swipe(percent) {
    stage.edge = Math.min(100, Math.max(0, percent));
    stage.settle();
  },

  // `ends`: the two that can lie on one another, null if there are none.
  draw(shots, ends) {
    const both = ends?.every(({ media }) => media.matches("img, video, picture")) ?? false;
    const mode = both ? stage.mode : "side";
    lightbox.dialog.querySelectorAll("[data-mode]").forEach((button) => {
      button.disabled = !both && button.dataset.mode !== "side";
      button.setAttribute("aria-pressed", button.dataset.mode === mode);
    });
    lightbox.part('[data-do="amplify"]').hidden = mode !== "difference";
    lightbox.part('[data-do="blink"]').hidden = mode !== "flip";
    if (mode !== "flip") stage.steady();
    lightbox.part(".lightbox-edge").hidden = mode !== "swipe";
    stage.panes().replaceChildren(...(mode === "side" ? shots.map((shot, place) => stage.pane(shot, place, shots.length)) : [stage.stack(ends, mode)]));
    stage.panes().querySelectorAll("img").forEach((image) => {
      image.decoding = "sync"; // an image that was there before does not flicker
      if (image.complete) gallery.crisp(image);
    });
    stage.together([...stage.panes().querySelectorAll("video")]);
    stage.settle();
    zoomed.draw();
  },
  pane({ media, caption }, place, columns) {
    const { src } = media.matches("img, video") ? media : media.querySelector("img") ?? {};
    if (src) caption.append(gallery.made("a", { className: "small", href: src, download: "" }, "save"));
    if (columns > 2) { // which two lie on one another, and whose numbers stand beside
      const button = gallery.made("button", { type: "button", className: "small", ariaPressed: lightbox.pair().includes(place) }, "compare");
      button.dataset.pick = place;
      caption.append(button);
    }
    return gallery.made("figure", { className: "pane" }, media, caption);
  },
  stack(ends, mode) {
    ends.forEach(({ media }) => media.removeAttribute("controls"));
    const layers = ends.map(({ media }, place) => gallery.made("div", { className: place ? "layer after" : "layer" }, media));
    const words = ends.map(({ caption }) => gallery.made("span", {}, ...caption.childNodes));
    const pane = gallery.made("figure", { className: "pane stacked" },
      gallery.made("div", { className: "layers" }, ...layers),
      gallery.made("span", { className: "edge" }),
      gallery.made("figcaption", { className: "ends" }, ...words));
    pane.dataset.shown = mode;
    return pane;
  },
  // Whatever changes while the images stay: the edge, which of two is shown, how far differences are amplified.
  settle() {
    const pane = stage.panes().querySelector(".stacked");
    lightbox.part('[data-do="amplify"] span').textContent = `×${stage.times}`;
    lightbox.part('[data-do="blink"]').setAttribute("aria-pressed", stage.blinking !== 0);
    lightbox.part(".lightbox-edge input").value = stage.edge;
    lightbox.part(".lightbox-edge input").defaultValue = lightbox.part(".lightbox-edge input").value; // set, not touched
    if (!pane) return;
    pane.style.setProperty("--at", `${stage.edge}%`);
    pane.style.setProperty("--times", stage.times);
    pane.classList.toggle("flipped", stage.flipped);
    if (pane.dataset.shown === "flip" && !stage.blinking) lightbox.part("[data-message]").textContent = pane.querySelectorAll(".ends > span")[Number(stage.flipped)].textContent;
  },
  // Films of one row run, stop and jump together.
  together(videos) {
    for (const one of videos) {
      const others = videos.filter((other) => other !== one);
      one.addEventListener("play", () => others.forEach((other) => other.play().catch(() => {})));
      one.addEventListener("pause", () => others.forEach((other) => other.pause()));
      one.addEventListener("seeked", () => others.forEach((other) => {
        if (Math.abs(other.currentTime - one.currentTime) > 0.1) other.currentTime = one.currentTime;
      }));
    }
  },
  clear() {
    stage.steady();
    stage.panes().replaceChildren();
    lightbox.dialog.querySelectorAll("[data-mode]").forEach((button) => button.setAttribute("aria-pressed", "false"));
    lightbox.part("[data-message]").textContent = "";
  },
  start() {
    lightbox.part(".lightbox-edge input").addEventListener("input", (event) => stage.swipe(Number(event.target.value)));
  },
};
