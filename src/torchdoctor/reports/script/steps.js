// What everything that is drawn over the steps of a run shares: the view, zooming, and canvases.
// Everything comes from the data in the page; every string of it is put in as text, never as markup.

const root = document.querySelector(".torchdoctor");
const source = document.getElementById("torchdoctor-data");
const data = JSON.parse(source.textContent);
const RIGHT = 12, CURVES_LEFT = 64, BOTTOM = 22, TOP = 8, NEAR = 12, WIDE = 5;
const LOG_SPAN = 30; // from this ratio of highest to lowest on, a curve is first shown on a logarithmic scale
const MISSING = 0, ZERO = 1, STRANGE = 2, FIRST = 3; // cells of a heat map
const view = { from: data.first, to: data.last };
const charts = []; // whatever is drawn over the steps of the view
let hover = null; // the step under the pointer
let picked = null; // while dragging: where it began and where it is, as steps
let waiting = false;

// Small things.

function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("aria")) made.setAttribute(name.replace("aria", "aria-").toLowerCase(), value);
    else made[name] = value;
  }
  made.append(...children); // strings become text
  return made;
}

function number(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return Number(value.toPrecision(3)).toExponential();
  return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
}

const count = (value) => Math.round(value).toLocaleString("en");
const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const spanText = (from, to) => (from === to ? `${data.clock} ${count(from)}` : `${data.clock}s ${count(from)} to ${count(to)}`);

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const chart of charts) chart.draw();
    tellView();
  });
}

function zoom(from, to) {
  const whole = data.last - data.first;
  const length = Math.min(Math.max(to - from, Math.min(8, whole)), whole);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - length / 2, data.first), data.last - length);
  view.to = view.from + length;
  redraw();
}

function zoomBy(factor, at = (view.from + view.to) / 2) {
  zoom(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

const pan = (share) => zoom(view.from + (view.to - view.from) * share, view.to + (view.to - view.from) * share);

function zoomTo(first, last) {
  const room = Math.max((last - first) * 0.35, 60 * finest());
  zoom(first - room, last + room);
  curves.scrollIntoView({ block: "nearest" });
}

function finest() { // the smallest distance between two values that are drawn
  const gaps = data.panels.flatMap(({ curves }) => curves.flatMap(({ coarse: [steps], fine }) => [
    ...fine.map((piece) => piece.every || 1), (steps.at(-1) - steps[0]) / Math.max(steps.length - 1, 1)]));
  return Math.min(...gaps.filter((gap) => gap > 0), data.last - data.first);
}

function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough * 0.999);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index <= high / step + 1e-9; index++) found.push(index * step + 0);
  return found;
}

// A canvas over the steps of the view.

function surface(holder, label, height, left) {
  const canvas = make("canvas", { ariaLabel: label });
  canvas.setAttribute("role", "img");
  canvas.style.height = `${height}px`;
  holder.append(canvas);
  const place = { left, width: 0, height };
  const x = (step) => place.left + ((step - view.from) / (view.to - view.from)) * (place.width - place.left - RIGHT);
  const stepAt = (at) => view.from + ((at - place.left) / (place.width - place.left - RIGHT)) * (view.to - view.from);
  function begin() {
    const ratio = window.devicePixelRatio || 1;
    place.width = canvas.clientWidth;
    canvas.width = Math.round(place.width * ratio);
    canvas.height = Math.round(place.height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    return pen;
  }
  listen(canvas, stepAt);
  return { canvas, place, x, begin };
}

function listen(canvas, stepAt) {
  let start = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = { step: stepAt(event.offsetX), from: view.from, to: view.to, x: event.offsetX, pans: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    hover = stepAt(event.offsetX);
    if (start && start.pans) {
      const moved = ((event.offsetX - start.x) / canvas.clientWidth) * (start.to - start.from);
      zoom(start.from - moved, start.to - moved);
    } else if (start && Math.abs(event.offsetX - start.x) > 4) {
      picked = [start.step, hover];
    }
    redraw();
  });
  canvas.addEventListener("pointerup", () => {
    if (picked) zoom(Math.min(...picked), Math.max(...picked));
    start = picked = null;
    redraw();
  });
  canvas.addEventListener("pointercancel", () => { start = picked = null; redraw(); });
  canvas.addEventListener("pointerleave", () => { hover = null; tip.hidden = true; redraw(); });
  canvas.addEventListener("dblclick", () => zoom(data.first, data.last));
  canvas.addEventListener("wheel", (event) => { // a plain wheel scrolls the page
    if (event.ctrlKey || event.metaKey) zoomBy(event.deltaY > 0 ? 1.25 : 0.8, stepAt(event.offsetX));
    else if (event.shiftKey) pan((event.deltaX || event.deltaY) > 0 ? 0.1 : -0.1);
    else return;
    event.preventDefault();
  }, { passive: false });
}

function drawSteps(pen, place, x) {
  pen.fillStyle = colour("--faint");
  pen.textAlign = "center";
  for (const tick of ticks(view.from, view.to, Math.max(2, (place.width - place.left) / 110))) {
    if (Number.isInteger(tick)) pen.fillText(count(tick), Math.min(x(tick), place.width - 24), place.height - 6);
  }
}

function drawEpisodes(pen, place, x, bottom, shade = true) {
  pen.globalAlpha = 0.12;
  for (const [severity, first, last] of shade ? data.spans : []) {
    pen.fillStyle = colour(`--${severity}`);
    pen.fillRect(x(first), TOP, Math.max(x(last + 1) - x(first), 2), bottom - TOP);
  }
  pen.globalAlpha = 1;
  pen.setLineDash([4, 3]);
  for (const { severity, first } of data.episodes) {
    pen.strokeStyle = colour(`--${severity}`);
    pen.beginPath();
    pen.moveTo(x(first), TOP);
    pen.lineTo(x(first), bottom);
    pen.stroke();
  }
  pen.setLineDash([]);
}

function drawPointer(pen, place, x, bottom) {
  pen.fillStyle = pen.strokeStyle = colour("--faint");
  if (picked) {
    pen.globalAlpha = 0.2;
    pen.fillRect(x(Math.min(...picked)), TOP, Math.abs(x(picked[1]) - x(picked[0])), bottom - TOP);
    pen.globalAlpha = 1;
  } else if (hover !== null) {
    pen.fillRect(Math.round(x(hover)), TOP, 1, bottom - TOP);
  }
}

function clipped(pen, place, bottom, paint) {
  pen.save();
  pen.beginPath();
  pen.rect(place.left, 0, place.width - place.left - RIGHT, bottom);
  pen.clip();
  paint();
  pen.restore();
}

function showTip(event, canvas, rows) {
  tip.replaceChildren(...rows.map(([name, value]) => make("div", {}, make("b", {}, name), ` ${value}`)));
  tip.hidden = false;
  const box = canvas.getBoundingClientRect(), outer = root.getBoundingClientRect();
  const left = box.left - outer.left + event.offsetX, width = tip.offsetWidth;
  tip.style.left = `${Math.max(left + 16 + width > outer.width ? left - width - 16 : left + 16, 4)}px`;
  tip.style.top = `${box.top - outer.top + event.offsetY + 14}px`;
}
