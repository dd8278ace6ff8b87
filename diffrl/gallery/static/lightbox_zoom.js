// How large the images of an enlarged row are, all under one zoom, and what mouse and fingers do to them.
const zoomed = {
  view: { scale: 1, x: 0, y: 0 },
  pointers: new Map(),
  NEAR: 40, // pixels from the edge of a swipe where it is taken hold of
  FAR: 60, // pixels that a finger goes to the next row

  reset() {
    zoomed.view = { scale: 1, x: 0, y: 0 };
    zoomed.draw();
  },
  draw() {
    const { scale, x, y } = zoomed.view;
    lightbox.dialog.dataset.scale = scale.toFixed(2);
    lightbox.dialog.querySelectorAll(".pane .media").forEach((media) => {
      media.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
    });
  },
  // By a factor, so that the point (x, y) from the middle of a pane stays where it is.
  zoom(factor, x = 0, y = 0) {
    const { view } = zoomed;
    const scale = Math.min(40, Math.max(1, view.scale * factor));
    if (scale === 1) return zoomed.reset();
    const grown = scale / view.scale;
    zoomed.view = { scale, x: x - (x - view.x) * grown, y: y - (y - view.y) * grown };
    zoomed.draw();
  },
  at(event) {
    const box = event.target.closest(".pane").getBoundingClientRect();
    return [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2];
  },
  swipe(event) {
    const box = event.target.closest(".pane").getBoundingClientRect();
    stage.swipe((100 * (event.clientX - box.left)) / box.width);
  },

  down(event) {
    const pane = event.target.closest(".pane");
    if (!pane || event.target.matches("video, a, button")) return;
    pane.setPointerCapture(event.pointerId);
    pane.classList.add("dragging");
    const [x, y] = zoomed.at(event), box = pane.getBoundingClientRect();
    const near = Math.abs(event.clientX - box.left - (stage.edge / 100) * box.width) < zoomed.NEAR;
    const edge = pane.dataset.shown === "swipe" && (near || zoomed.view.scale === 1);
    const walks = !edge && event.pointerType === "touch" && zoomed.view.scale === 1;
    zoomed.pointers.set(event.pointerId, { x, y, from: [x, y], edge, walks });
    if (edge) zoomed.swipe(event);
  },
  // One finger or the mouse moves, two fingers zoom; the edge of a swipe follows; a finger on a whole image goes on.
  move(event) {
    const last = zoomed.pointers.get(event.pointerId);
    if (!last) return;
    const [x, y] = zoomed.at(event);
    const others = [...zoomed.pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
    if (others.length) {
      const [other] = others;
      const before = Math.hypot(last.x - other.x, last.y - other.y), after = Math.hypot(x - other.x, y - other.y);
      if (before > 0) zoomed.zoom(after / before, (x + other.x) / 2, (y + other.y) / 2);
      [last.walks, other.walks] = [false, false];
    } else if (last.edge) zoomed.swipe(event);
    else if (!last.walks) {
      zoomed.view.x += x - last.x;
      zoomed.view.y += y - last.y;
      zoomed.draw();
    }
    Object.assign(last, { x, y });
  },
  up(event) {
    const last = zoomed.pointers.get(event.pointerId);
    zoomed.pointers.delete(event.pointerId);
    stage.panes().querySelectorAll(".dragging").forEach((pane) => pane.classList.remove("dragging"));
    if (!last || event.type === "pointercancel") return;
    const [dx, dy] = [last.x - last.from[0], last.y - last.from[1]];
    if (Math.hypot(dx, dy) < 5) stage.flip();
    else if (last.walks && Math.abs(dx) > zoomed.FAR && Math.abs(dx) > 2 * Math.abs(dy)) lightbox.step(dx < 0 ? 1 : -1);
  },

  start() {
    const panes = stage.panes();
    panes.addEventListener("wheel", (event) => {
      if (!event.target.closest(".pane")) return;
      event.preventDefault();
      zoomed.zoom(Math.exp(-event.deltaY / 300), ...zoomed.at(event));
    }, { passive: false });
    panes.addEventListener("dblclick", (event) => {
      if (!event.target.closest(".pane:not([data-shown=flip])")) return;
      if (zoomed.view.scale > 1) zoomed.reset();
      else zoomed.zoom(3, ...zoomed.at(event));
    });
    panes.addEventListener("pointerdown", zoomed.down);
    panes.addEventListener("pointermove", zoomed.move);
    for (const name of ["pointerup", "pointercancel"]) panes.addEventListener(name, zoomed.up);
  },
};
