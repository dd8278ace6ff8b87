// The points of a drawing are one stop for Tab; arrow keys go from point to point, to the nearest one in their direction.
const points = {
  ways: { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] },
  of: (drawing) => [...drawing.querySelectorAll("a[href]")],
  place: (point) => ["cx", "cy"].map((name) => Number(point.querySelector("circle").getAttribute(name))),
  mark(drawing, here) {
    for (const point of points.of(drawing)) point.setAttribute("tabindex", point === here ? 0 : -1);
  },
  // Ahead counts once, aside thrice: the next point along a row rather than one that is near but beside it.
  next(drawing, from, [right, down]) {
    const [x, y] = points.place(from);
    const far = points.of(drawing).filter((point) => point !== from).map((point) => {
      const [dx, dy] = [points.place(point)[0] - x, points.place(point)[1] - y];
      const [ahead, aside] = right ? [dx * right, Math.abs(dy)] : [dy * down, Math.abs(dx)];
      return [ahead > 0 ? ahead + 3 * aside : Infinity, point];
    });
    const [least, point] = far.reduce((best, one) => (one[0] < best[0] ? one : best), [Infinity, null]);
    return least < Infinity ? point : null;
  },
  start() {
    for (const drawing of document.querySelectorAll(".scatter")) {
      points.mark(drawing, points.of(drawing)[0]);
      drawing.addEventListener("keydown", (event) => {
        const way = points.ways[event.key], from = event.target.closest("a[href]");
        if (!way || !from || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        const point = points.next(drawing, from, way);
        if (!point) return;
        points.mark(drawing, point);
        point.focus();
      });
    }
  },
};
points.start();
document.addEventListener("main-replaced", points.start);
