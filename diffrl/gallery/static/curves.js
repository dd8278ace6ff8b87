// Draws the panels: one cursor and one zoom for all of them, lines that can be switched off, redrawn when the run goes on.
(() => {
  const DASHES = [[], [9, 4], [2, 3], [11, 4, 2, 4]], HEIGHT = 210, NEAR = 45;
  const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat(); // no iteration 2.5
  const axis = document.getElementById("axis"), choice = document.getElementById("choice"), reset = document.getElementById("reset");
  const smooth = document.getElementById("smooth"), log = document.getElementById("log");
  const exported = !document.getElementById("show");
  const charts = new Map();
  const state = { zoom: null, off: {} }; // off: by panel, labels of lines that were switched off
  let data = null;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const round = (value) => {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size >= 1e6 || (size && size < 1e-3)) return value.toExponential(2).replace("-", "−");
    return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 6 : 4 }).replace("-", "−");
  };
  const tick = (value) => {
    if (value == null) return "";
    const size = Math.abs(value);
    if (size >= 1e6) return (value / 1e6).toLocaleString("en") + "M";
    return size && size < 1e-3 ? value.toExponential(1).replace(".0e", "e") : value.toLocaleString("en", { maximumSignificantDigits: 5 });
  };
  const lineOff = (panel, line) => (state.off[panel.id] || new Set()).has(line.label);
  const runOff = (line) => { // exported pages have all runs on them: their boxes only switch lines off
    const boxes = exported ? choice.querySelectorAll("[name=run][type=checkbox]") : [];
    return boxes.length > line.run && !boxes[line.run].checked;
  };

  // The mean of so many points around each, of fewer at the ends; gaps stay gaps.
  function smoothed(ys, width) {
    const half = (width - 1) / 2;
    return ys.map((y, i) => {
      if (y == null) return y;
      const near = ys.slice(Math.max(0, i - half), i + half + 1).filter((one) => one != null);
      return near.reduce((sum, one) => sum + one, 0) / near.length;
    });
  }
  // A single evaluation is a mean already, and there are few.
  const width = (panel) => (panel.marks ? 1 : Number(smooth.value));

  // A line on the chosen axis: [xs, ys, a band's edges, and of a smoothed line its points]; those without a place on
  // the axis are left out.
  function table(line, panel) {
    const places = data.axes[axis.value][line.run], rows = [];
    line.at.forEach((row, i) => {
      if (places[row] == null) return;
      const y = line.y[i], half = line.band ? line.band[i] : null;
      rows.push(line.band ? [places[row], y, y == null || half == null ? y : y - half, y == null || half == null ? y : y + half] : [places[row], y]);
    });
    if (rows.some((row, i) => i && row[0] < rows[i - 1][0])) rows.sort((a, b) => a[0] - b[0]);
    const columns = Array.from({ length: line.band ? 4 : 2 }, (_, column) => rows.map((row) => row[column]));
    if (width(panel) === 1) return columns;
    const [xs, ys, ...edges] = columns;
    return [xs, smoothed(ys, width(panel)), ...edges, ys];
  }

  // The value of a line nearest to the cursor; none if its nearest point is far away.
  function nearest(u, index, closest, x) {
    const xs = u.data[0], ys = u.data[index];
    let left = closest, right = closest;
    while (left >= 0 && ys[left] == null) left--;
    while (right < ys.length && ys[right] == null) right++;
    if (left < 0 && right >= ys.length) return null;
    const found = left < 0 ? right : right >= ys.length ? left : x - xs[left] <= xs[right] - x ? left : right;
    return Math.abs(u.valToPos(xs[found], "x") - u.valToPos(x, "x")) <= NEAR ? found : null;
  }

  // A legend says where each line ends as long as nothing is pointed at.
  const resting = (u) => u.cursor.idx == null;
  const said = (u, value, index) => round(resting(u) ? u.data[index].findLast((y) => y != null) : value);

  function yRange(u, low, high) {
    if (low == null) return [0, 1];
    const pad = high > low ? (high - low) * 0.07 : Math.abs(high) * 0.1 || 1;
    return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
  }
  const logRange = (u, low, high) => (low == null ? [0.1, 1] : [low / 1.2, high * 1.2]);
  const xRange = (u, low, high) => (low == null ? [0, 1] : low === high ? [low - 1, high + 1] : [low, high]);

  function zoom(range) {
    state.zoom = range;
    reset.hidden = !range;
    for (const u of charts.values()) {
      const xs = u.data[0];
      const [low, high] = range || [xs[0], xs[xs.length - 1]];
      if (xs.length) u.setScale("x", { min: low, max: high });
    }
  }

  // Where a run went on with other inputs; with its evaluations, which is the best and which the newest healthy one.
  function marked(u, lines, panel) {
    const { ctx, bbox } = u, dots = devicePixelRatio, runs = new Set(lines.filter((line) => !runOff(line)).map((line) => line.run));
    ctx.save();
    ctx.setLineDash([5 * dots, 4 * dots]);
    ctx.font = `${11 * dots}px system-ui, sans-serif`;
    const moments = [...runs].flatMap((run) => [
      ...data.changes[run].map((row) => [run, row, "other inputs", "--loss"]),
      ...(panel.marks && runs.size === 1 ? data.marks[run].map(([row, words]) => [run, row, words, "--soft"]) : []),
    ]);
    for (const [run, row, words, ink] of moments) {
      const x = data.axes[axis.value][run][row];
      if (x == null || x < u.scales.x.min || x > u.scales.x.max) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(ink);
      const left = Math.round(u.valToPos(x, "x", true));
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
      const atEnd = left > bbox.left + bbox.width - 80 * dots;
      ctx.textAlign = atEnd ? "right" : "left";
      ctx.fillText(words, left + (atEnd ? -4 : 4) * dots, bbox.top + 11 * dots);
    }
    ctx.restore();
  }

  function options(panel, lines, wide, logarithmic) {
    const soft = colour("--soft"), grid = { stroke: colour("--line"), width: 1 };
    const series = [{ label: data.words[axis.value], value: (u, v) => (resting(u) ? "last" : round(v)) }], bands = [];
    lines.forEach((line) => {
      const stroke = colour(`--series-${line.colour % 8}`), show = !lineOff(panel, line) && !runOff(line);
      const points = panel.marks ? { show: true, size: 7, fill: stroke } : { size: 4, fill: stroke };
      series.push({ label: line.label, stroke, width: 1.75, dash: DASHES[line.dash % DASHES.length], points, show, value: said, panelLine: true });
      if (line.band) {
        const edge = { class: "band", label: "", stroke: "transparent", width: 0, points: { show: false }, show };
        bands.push({ series: [series.length + 1, series.length], fill: stroke + "26" });
        series.push({ ...edge }, { ...edge });
      }
      if (width(panel) > 1) series.push({ class: "band", label: "", stroke: stroke + "55", width: 1, points: { show: false }, show });
    });
    return {
      width: wide, height: HEIGHT, series, bands,
      scales: { x: { time: false, range: xRange }, y: logarithmic ? { distr: 3, log: 10, range: logRange } : { range: yRange } },
      axes: [
        { stroke: soft, grid, ticks: grid, size: 32, values: (u, all) => all.map(tick), ...(axis.value === "seconds" ? {} : { incrs: WHOLE }) },
        { stroke: soft, grid, ticks: grid, size: 62, values: (u, all) => all.map(tick), label: panel.unit || undefined, labelSize: 18, labelFont: "12px system-ui, sans-serif" },
      ],
      focus: { alpha: 0.25 }, // the line under the pointer, or under it in the legend
      cursor: {
        y: false, focus: { prox: 12 }, drag: { x: true, y: false, setScale: false }, dataIdx: (u, s, closest, x) => (s ? nearest(u, s, closest, x) : closest),
        points: { size: 7 }, sync: { key: "curves", setSeries: false, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        bind: { dblclick: () => () => { zoom(null); return null; } },
      },
      legend: { markers: { width: 3, dash: (u, s) => (series[s].dash?.length ? "dashed" : "solid"), stroke: (u, s) => series[s].stroke } },
      hooks: {
        draw: [(u) => marked(u, lines, panel)],
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          zoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
        setSeries: [(u, index, what) => {
          if (what.show == null || !index || !u.series[index].panelLine) return;
          const off = (state.off[panel.id] ||= new Set());
          if (what.show) off.delete(u.series[index].label); else off.add(u.series[index].label);
          for (let i = index + 1; u.series[i]?.class === "band"; i++) u.setSeries(i, { show: what.show });
          labelled(u);
        }],
      },
    };
  }

  // What the arrow keys have reached, for those who hear the page.
  function say(u, at) {
    const x = u.data[0][at], parts = [`${u.series[0].label} ${round(x)}`];
    u.series.forEach((one, i) => {
      if (!one.panelLine || !one.show) return;
      const found = nearest(u, i, at, x);
      if (found !== null) parts.push(`${one.label} ${round(u.data[i][found])}`);
    });
    document.getElementById("said").textContent = parts.join(", ");
  }

  // The legend is made of buttons, for the keyboard too.
  function labelled(u) {
    u.root.querySelectorAll(".u-legend .u-series").forEach((row, i) => {
      const head = row.querySelector("th");
      if (!i || !u.series[i]?.panelLine) return;
      head.tabIndex = 0;
      head.setAttribute("role", "button");
      head.setAttribute("aria-pressed", String(u.series[i].show));
      head.onkeydown = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); head.click(); } };
    });
  }

  function drawOne(figure) {
    const panel = data.panels.find((one) => one.id === figure.dataset.panel), box = figure.querySelector(".chart");
    charts.get(panel.id)?.destroy();
    box.replaceChildren();
    const lines = panel.lines.map((line) => [line, table(line, panel)]).filter(([, found]) => found[0].length);
    const positive = panel.lines.every((line) => line.y.every((y) => y == null || y > 0));
    const logarithmic = log.checked && positive;
    figure.toggleAttribute("data-linear", log.checked && !positive);
    if (logarithmic) lines.forEach(([, found]) => found.forEach((ys, i) => { if (i) found[i] = ys.map((y) => (y > 0 ? y : null)); }));
    if (!lines.length) {
      charts.delete(panel.id);
      box.textContent = "Nothing was counted on this axis.";
      return;
    }
    const u = new uPlot(options(panel, lines.map(([line]) => line), box.clientWidth, logarithmic), uPlot.join(lines.map(([, found]) => found)), box);
    charts.set(panel.id, u);
    u.ctx.canvas.setAttribute("role", "img");
    u.ctx.canvas.setAttribute("aria-label", panel.title);
    if (state.zoom) u.setScale("x", { min: state.zoom[0], max: state.zoom[1] });
    labelled(u);
    box.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || event.target !== box) return;
      event.preventDefault();
      const at = Math.max(0, Math.min(u.data[0].length - 1, (u.cursor.idx ?? (step > 0 ? -1 : u.data[0].length)) + step));
      u.setCursor({ left: u.valToPos(u.data[0][at], "x"), top: 10 }, true, true);
      say(u, at);
    };
  }

  function draw() {
    document.querySelectorAll("#panels .panel").forEach((figure) => { if (figure.offsetParent) drawOne(figure); });
  }

  function prepare() {
    data = JSON.parse(document.getElementById("curves-data").textContent);
    document.querySelectorAll(".fold").forEach((fold) => fold.addEventListener("toggle", () => {
      if (fold.open) fold.querySelectorAll(".panel").forEach((figure) => { if (!charts.has(figure.dataset.panel)) drawOne(figure); });
    }));
    const resize = new ResizeObserver((entries) => entries.forEach(({ target }) => {
      const u = charts.get(target.closest(".panel").dataset.panel);
      if (u && target.clientWidth && Math.abs(u.width - target.clientWidth) > 1) u.setSize({ width: target.clientWidth, height: HEIGHT });
    }));
    document.querySelectorAll("#panels .chart").forEach((box) => resize.observe(box));
    draw();
  }

  // How it is drawn, and in the address too.
  function changed() {
    document.querySelectorAll(".chart").forEach((box) => { if (!box.offsetParent) charts.delete(box.closest(".panel").dataset.panel); });
    draw();
    if (exported) return;
    const address = new URL(location.href);
    address.searchParams.set("x", axis.value);
    for (const [name, value] of [["smooth", smooth.value === "1" ? "" : smooth.value], ["log", log.checked ? "1" : ""]]) {
      if (value) address.searchParams.set(name, value); else address.searchParams.delete(name);
    }
    history.replaceState(null, "", address);
  }

  function changeAxis() {
    zoom(null);
    changed();
  }

  // The run went on: the same page again, with zoom, switched-off lines and open folds as they are.
  let asking = false, again = false;
  async function refresh() {
    if (asking) { again = true; return; }
    asking = true;
    let failed = false;
    try {
      const answer = await fetch(location.href);
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("panels");
      const panels = document.getElementById("panels");
      if (!fresh) return;
      const key = (one) => one.dataset.fold || one.closest(".panel")?.dataset.panel;
      const open = new Set([...panels.querySelectorAll("details[open]")].map(key)), top = scrollY;
      const focus = document.activeElement?.classList.contains("chart") ? key(document.activeElement) : null;
      charts.forEach((u) => u.destroy());
      charts.clear();
      panels.replaceChildren(...fresh.childNodes);
      panels.querySelectorAll("details").forEach((one) => { one.open = open.has(key(one)); });
      prepare();
      if (focus) panels.querySelector(`[data-panel="${CSS.escape(focus)}"] .chart`)?.focus({ preventScroll: true });
      scrollTo({ top, behavior: "instant" });
    } catch { // what is drawn stays until an answer comes
      failed = true;
    } finally {
      asking = false;
      if (failed) setTimeout(refresh, 5000);
      else if (again) { again = false; refresh(); }
    }
  }

  choice.addEventListener("change", (event) => {
    if (event.target === axis) changeAxis();
    else if (event.target === smooth || event.target === log) changed();
    else if (exported) draw();
    else choice.requestSubmit();
  });
  document.getElementById("show")?.setAttribute("hidden", "");
  reset.addEventListener("click", () => zoom(null));
  gallery.keys({ z: () => zoom(null), x: () => { axis.selectedIndex = (axis.selectedIndex + 1) % axis.length; changeAxis(); } });
  gallery.keys({ l: () => { log.checked = !log.checked; changed(); } });
  const asked = new URLSearchParams(location.search), shown = asked.getAll("run");
  if ([...smooth.options].some((one) => one.value === asked.get("smooth"))) smooth.value = asked.get("smooth");
  log.checked = asked.get("log") === "1";
  document.querySelectorAll(".drawn").forEach((one) => { one.hidden = false; });
  const phone = matchMedia("(max-width: 640px)").matches; // where rewards come first, and a page has an end
  if (phone) document.querySelectorAll(".further").forEach((one) => { one.open = false; });
  document.addEventListener("run-changed", (event) => { if (!shown.length || !event.detail?.run || shown.includes(event.detail.run)) refresh(); });
  document.addEventListener("theme", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  prepare();
})();
