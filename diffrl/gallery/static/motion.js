// Images that move: one button and the key p play and pause them all. They stand still at first for those who asked
// their system for less motion.
const motion = {
  playing: !matchMedia("(prefers-reduced-motion: reduce)").matches,
  get button() { return document.getElementById("play"); },
  some: () => document.querySelector("img.moving, video.media"),
  // A copy of a image in the state that all are in.
  set(root = document) {
    for (const image of root.querySelectorAll("img.moving")) {
      image.parentElement.querySelectorAll("source").forEach((source) => source.remove());
      const wanted = motion.playing ? image.dataset.moving : image.dataset.still;
      if (image.getAttribute("src") !== wanted) image.src = wanted;
    }
  },
  toggle() {
    if (!motion.some()) return;
    motion.playing = !motion.playing;
    motion.touched = true;
    motion.set();
    document.querySelectorAll("video.media").forEach((video) => (motion.playing ? video.play().catch(() => {}) : video.pause()));
    motion.show();
  },
  show() {
    if (!motion.button) return;
    motion.button.onclick = motion.toggle;
    motion.button.hidden = !motion.some();
    motion.button.textContent = motion.playing ? "Pause" : "Play";
  },
};
if (!document.querySelector("img.moving")) motion.playing = false; // videos wait for a click
motion.toggle.inDialog = true;
gallery.keys({ p: motion.toggle });
document.addEventListener("main-replaced", () => {
  if (motion.touched) motion.set();
  motion.show();
});
motion.show();
