"use strict";
// The live page: a stream of plain data comes in, text and canvases go out. Every string is inserted as text.

const SEVERITIES = ["info", "warning", "critical"];
const HEALTHS = ["healthy", "watch", "sick", "critical"];
const LEFT = 58, RIGHT = 10, TOP = 8, BOTTOM = 20;
const LOG_SPAN = 30;

const runs = new Map();      // id → summary, with the time at which it arrived
let order = [];
let chosen = "";
let detail = null;
let source = null;
let hover = null;            // the step under the pointer
let told = "";               // the words that are shown now, so that unchanged ones are not replaced

const at = (id) => document.getElementById(id);

function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

const oneOf = (known, word) => (known.includes(word) ? word : known[0]);

function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (!hours) return `${minutes} min`;
  return days ? `${days} d ${hours % 24} h` : `${hours} h ${minutes % 60} min`;
}

function short(value) {
  if (value && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e5)) return Number(value.toPrecision(3)).toExponential();
  return Math.abs(value) < 1000 ? String(Number(value.toPrecision(3))) : value.toFixed(0);
}

const whole = (value) => value.toLocaleString("en");

function progress(run) {
  if (run.state === "unreadable") return "cannot be read";
  if (run.state === "waiting") return "waiting, no step yet";
  const parts = [`${run.clock} ${whole(run.step)}` + (run.total ? ` of ${whole(run.total)}` : "")];
  const silence = run.silence + (performance.now() - run.came) / 1000;
  if (run.state === "reading") parts.push("still reading earlier steps");
  else if (run.state === "ended") parts.push("ended");
  else if (run.state === "gone") parts.push("its log is gone");
  else if (silence > run.patience) parts.push(`no new ${run.clock} for ${duration(silence)}`);
  else {
    if (run.pace) parts.push(run.pace);
    if (run.left !== null) parts.push(`${duration(run.left)} left`);
  }
  return parts.join(", ");
}

// The stream

function connect() {
  if (source) source.close();
  source = new EventSource(`/events?run=${encodeURIComponent(chosen)}`);
  source.onopen = () => status("connected", false);
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = () => {
    status("lost connection to torchdoctor watch, trying again. Is it still running?", true);
    if (source.readyState !== EventSource.CLOSED) return;
    explain();
    setTimeout(() => document.hidden || connect(), 5000);
  };
}

// A restarted watch has another token, and refuses the old cookie.
async function explain() {
  try {
    const answer = await fetch("/", { method: "HEAD", cache: "no-store" });
    if (answer.status === 403) status("torchdoctor watch was restarted: open the new address that it printed", true);
  } catch {
    // no server: the status says so already
  }
}

function status(words, lost) {
  at("link").textContent = words;
  at("link").className = lost ? "lost" : "";
}

function take(message) {
  for (const run of message.runs) runs.set(run.id, { ...run, came: performance.now() });
  order = message.order;
  for (const id of runs.keys()) if (!order.includes(id)) runs.delete(id);
  if (message.run) {
    detail = message.run;
    chosen = detail.id;
  }
  show();
}

// The words

function show() {
  showRuns();
  const run = runs.get(chosen);
  if (!run) return;
  showHead(run);
  if (!detail || detail.id !== chosen) return;
  const words = JSON.stringify([chosen, detail.problems, detail.notes]);
  if (words !== told) {
    told = words;
    at("problems").replaceChildren(...detail.problems.map(problemCard));
    at("notes").hidden = !detail.notes.length;
    at("notes").querySelector("ul").replaceChildren(...detail.notes.map((text) => make("li", "faint", text)));
  }
  showPanels();
}

function showRuns() {
  const list = at("runs");
  list.hidden = order.length < 2;
  if (list.hidden) return;
  order.forEach((id, place) => {
    const run = runs.get(id);
    let row = [...list.children].find((item) => item.dataset.id === id);
    if (!row) {
      row = make("button", "row");
      row.type = "button";
      row.dataset.id = id;
      row.append(make("span", "name"), make("canvas"), make("span", "faint"));
      row.children[0].append(make("bdi"));
      row.addEventListener("click", () => choose(id));
    }
    if (list.children[place] !== row) list.insertBefore(row, list.children[place] || null);
    row.className = `row ${run.step < 0 ? "quiet" : oneOf(HEALTHS, run.health)}`;
    row.setAttribute("aria-current", String(id === chosen));
    row.title = run.name;
    row.children[0].firstChild.textContent = run.name;
    row.children[2].textContent = run.step < 0 ? progress(run) : `${run.word}, ${progress(run)}`;
    sparkline(row.children[1], run.spark);
  });
  while (list.children.length > order.length) list.lastChild.remove();
}

function choose(id) {
  if (id === chosen) return;
  chosen = id;
  detail = null;
  told = "";
  at("panels").replaceChildren();
  at("problems").replaceChildren();
  connect();
  show();
}

function showHead(run) {
  const health = run.step < 0 ? "quiet" : oneOf(HEALTHS, run.health);
  at("head").className = `card ${health}`;
  at("where").textContent = `${run.name} · ${progress(run)}`;
  const verdict = run.step < 0 ? "Waiting for the first step" : run.verdict;
  if (at("verdict").textContent !== verdict) {
    at("verdict").replaceChildren();
    if (run.step >= 0 && verdict.startsWith(run.word)) {
      at("verdict").append(make("span", "badge", run.word), verdict.slice(run.word.length));
    } else at("verdict").append(verdict);
  }
  at("advice").textContent = detail && detail.id === run.id ? detail.advice : "";
  at("trouble").hidden = !run.problem;
  at("trouble").textContent = run.problem;
  at("bar").hidden = !run.total;
  if (run.total) at("done").style.width = `${Math.min((100 * (run.step + 1)) / run.total, 100)}%`;
  document.title = run.step < 0 ? `${run.name} · Training Doctor` : `${run.word} · ${run.name}`;
}

function problemCard(problem) {
  const card = make("article", `card ${oneOf(SEVERITIES, problem.severity)}`);
  card.append(make("h2", "", `${problem.title}: ${problem.severity}, ${problem.steps}`));
  for (const symptom of problem.symptoms) {
    const part = make("div", `symptom ${oneOf(SEVERITIES, symptom.severity)}`);
    const title = make("p");
    title.append(make("span", "tag", symptom.severity), " ", make("strong", "", symptom.label), ` · ${symptom.when}`);
    part.append(title);
    if (symptom.message) part.append(make("p", "", symptom.message));
    if (symptom.where) part.append(make("p", "faint", `Where: ${symptom.where}`));
    card.append(part);
  }
  if (problem.more) card.append(make("p", "faint", `and ${problem.more} earlier`));
  if (problem.cause) {
    const causes = problem.causes.map((item) => `${item.cause} (${item.percent})`);
    const why = make("p");
    why.append(make("strong", "", `Why: ${causes[0]}`), causes.length > 1 ? `; or ${causes.slice(1).join(", ")}` : "");
    card.append(why);
    if (problem.meaning) card.append(make("p", "", problem.meaning));
    const evidence = make("ul");
    evidence.append(...problem.evidence.map((text) => make("li", "faint", text)));
    card.append(evidence);
  }
  if (problem.fix) card.append(make("p", "faint", "What to change:"), make("pre", "", problem.fix));
  return card;
}

// The curves

function showPanels() {
  const place = at("panels");
  const names = detail.panels.map((panel) => panel.title).join();
  if (place.dataset.names !== names || place.children.length !== detail.panels.length) {
    place.dataset.names = names;
    place.replaceChildren(...detail.panels.map(panelBox));
  }
  drawAll();
}

function panelBox(panel) {
  const box = make("div", panel.title === "loss" ? "panel" : "panel small");
  const canvas = make("canvas");
  canvas.setAttribute("role", "img");
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    hover = Math.min(Math.max((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT), 0), 1);
    drawAll();
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", () => { hover = null; drawAll(); });
  box.append(make("div", "legend"), canvas);
  return box;
}

function drawAll() {
  if (!detail) return;
  const buckets = detail.panels.flatMap((panel) => panel.curves.flatMap((curve) => [curve.buckets[0], curve.buckets.at(-1)]));
  const first = Math.min(...buckets.map((item) => item[0]));
  const run = runs.get(chosen);
  const last = Math.max(first + 1, run ? run.step : 0, ...buckets.map((item) => item[0]));
  detail.panels.forEach((panel, place) => draw(at("panels").children[place], panel, first, last));
}

const clock = () => runs.get(chosen)?.clock ?? "step";

const inGap = (curve, step) => curve.gaps.some(([first, last]) => first <= step && step <= last);

function unbroken(curve) { // the points between non-finite stretches, which no line may cross
  const pieces = [[]];
  let left = curve.gaps;
  curve.buckets.forEach((item, at) => {
    if (left.length && item[0] >= left[0][0]) {
      left = left.filter(([first]) => first > item[0]);
      pieces.push([]);
    }
    pieces.at(-1).push([item, at]);
  });
  return pieces;
}

function legend(box, panel, step) {
  const parts = panel.curves.map((curve, place) => {
    let value = curve.latest;
    if (step !== null) {
      const bucket = curve.buckets.findLast((item) => item[0] <= step) || curve.buckets[0];
      if (inGap(curve, Math.round(step))) value = "NaN or infinite";
      else value = bucket[1] < bucket[3] ? `${short(bucket[2])} (${short(bucket[1])} to ${short(bucket[3])})` : short(bucket[2]);
    }
    return make("span", `key c${place % 4}`, `${curve.name} ${value}`);
  });
  if (step !== null) parts.push(make("span", "faint", `${clock()} ${whole(Math.round(step))}`));
  else if (panel.scale) parts.push(make("span", "faint", panel.scale));
  box.replaceChildren(...parts);
}

function scaleOf(panel) {
  const all = panel.curves.flatMap((curve) => curve.buckets);
  let low = Infinity, high = -Infinity, least = Infinity;
  for (const [, down, , up] of all) {
    low = Math.min(low, down);
    high = Math.max(high, up);
    if (down > 0) least = Math.min(least, down);
    else if (up > 0) least = Math.min(least, up);
  }
  const log = least < Infinity && (panel.log ?? (low > 0 && high / low > LOG_SPAN));
  if (log) {
    const from = Math.log10(least), to = Math.max(Math.log10(high), from + 0.1), room = (to - from) * 0.06;
    return { log, place: (value) => (Math.log10(Math.max(value, least)) - from + room) / (to - from + 2 * room), low: least, high };
  }
  const rounding = high - low <= 1e-5 * Math.abs(high); // rounding noise is drawn as a constant
  const room = Math.max((high - low) * 0.08, Math.abs(high) * (rounding ? 0.2 : 1e-3), 1e-12);
  const base = low >= 0 && low < 0.4 * high ? 0 : low - room;
  return { log, place: (value) => (value - base) / (high + room - base), low: base, high: high + room };
}

function ticks(scale, count) {
  if (scale.log) {
    const from = Math.ceil(Math.log10(scale.low)), to = Math.floor(Math.log10(scale.high));
    const every = Math.max(1, Math.ceil((to - from + 1) / count)), found = [];
    for (let power = from; power <= to; power += every) found.push(10 ** power);
    return found.length > 1 ? found : [scale.low, scale.high];
  }
  const rough = (scale.high - scale.low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((size) => size * power >= rough * 0.999) * power, found = [];
  for (let value = Math.ceil(scale.low / step) * step; value <= scale.high && found.length < 20; value += step) found.push(value);
  return found;
}

function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width, height, getComputedStyle(document.documentElement)];
}

function draw(box, panel, first, last) {
  const canvas = box.lastChild;
  const [pen, width, height, style] = prepared(canvas);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const scale = scaleOf(panel), bottom = height - BOTTOM;
  const x = (step) => LEFT + ((step - first) / (last - first)) * (width - LEFT - RIGHT);
  const y = (value) => bottom - Math.min(Math.max(scale.place(value), 0), 1) * (bottom - TOP);
  panel.scale = scale.log ? "log scale" : "";
  let free = 0;
  pen.font = "11px system-ui, sans-serif";
  for (const mark of detail.marks) {
    const severity = oneOf(SEVERITIES, mark.severity);
    pen.fillStyle = pen.strokeStyle = colour(severity);
    pen.globalAlpha = 0.1;
    pen.fillRect(x(mark.first), TOP, Math.max(x(mark.last) - x(mark.first), 3), bottom - TOP);
    pen.globalAlpha = 0.8;
    pen.setLineDash([4, 3]);
    line(pen, [[x(mark.first), TOP], [x(mark.first), bottom]]);
    pen.setLineDash([]);
    if (panel.title === "loss" && x(mark.first) > free) {
      pen.fillText(mark.code, Math.min(x(mark.first) + 3, width - 34), TOP + 9);
      free = x(mark.first) + 38;
    }
  }
  pen.globalAlpha = 1;
  pen.fillStyle = colour("faint");
  pen.strokeStyle = colour("line");
  pen.textAlign = "right";
  let before = "";
  for (const tick of ticks(scale, Math.max(2, Math.floor(bottom / 40)))) {
    if (short(tick) === before) continue;
    before = short(tick);
    line(pen, [[LEFT, y(tick)], [width - RIGHT, y(tick)]]);
    pen.fillText(short(tick), LEFT - 6, y(tick) + 4);
  }
  pen.fillText(whole(last), width - RIGHT, height - 5);
  pen.textAlign = "left";
  pen.fillText(`${clock()} ${whole(first)}`, LEFT, height - 5);
  panel.curves.forEach((curve, place) => {
    const points = curve.buckets;
    pen.fillStyle = pen.strokeStyle = colour(`curve-${(place % 4) + 1}`);
    pen.globalAlpha = 0.2;
    const pieces = unbroken(curve);
    for (const piece of pieces) {
      pen.beginPath();
      piece.forEach(([item]) => pen.lineTo(x(item[0]), y(item[3])));
      for (const [item] of [...piece].reverse()) pen.lineTo(x(item[0]), y(item[1]));
      pen.fill();
    }
    pen.globalAlpha = 1;
    pen.lineWidth = 1.6;
    const peaks = new Set(curve.peaks); // at an outlier the line reaches to it, because the mean would hide it
    for (const piece of pieces) {
      line(pen, piece.flatMap(([[step, low, mean, high], at]) => (peaks.has(at) ? [mean, low, high, mean] : [mean]).map((value) => [x(step), y(value)])));
    }
    if ((curve.dots && points.length < 80) || points.length === 1) {
      for (const item of points) {
        pen.beginPath();
        pen.arc(x(item[0]), y(item[2]), 2.6, 0, 7);
        pen.fill();
      }
    }
    pen.lineWidth = 1;
  });
  const step = hover === null ? null : first + hover * (last - first);
  if (step !== null) {
    pen.strokeStyle = colour("faint");
    line(pen, [[x(step), TOP], [x(step), bottom]]);
  }
  legend(box.firstChild, panel, step);
  canvas.setAttribute("aria-label", panel.curves.map((curve) => `${curve.name}, last ${curve.latest}`).join("; "));
}

function line(pen, points) {
  pen.beginPath();
  for (const [x, y] of points) pen.lineTo(x, y);
  pen.stroke();
}

function sparkline(canvas, values) {
  const [pen, width, height, style] = prepared(canvas);
  if (values.length < 2) return;
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  pen.strokeStyle = style.getPropertyValue("--curve-1").trim();
  pen.lineWidth = 1.4;
  line(pen, values.map((value, place) => [2 + (place * (width - 4)) / (values.length - 1), height - 3 - ((value - low) / span) * (height - 6)]));
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) source.close();
  else connect();
});
window.addEventListener("resize", show);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
setInterval(() => { if (!document.hidden) { showRuns(); if (runs.has(chosen)) showHead(runs.get(chosen)); } }, 5000);
connect();
