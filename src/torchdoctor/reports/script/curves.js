// Curves: a band from lowest to highest, a line, and the episodes of findings behind them.

// A curve is a band (the buckets of the whole run) and a line: exact values where there are any, else the means. Exact
// values are drawn when buckets are wide on the screen; before that they would look like a noisier stretch of the run.
function prepared(curve) {
  const [steps, means, lows = means, highs = means] = curve.coarse;
  const peaks = new Set(curve.peaks); // where a value stands out, the line reaches to it: the mean would hide it
  const band = steps.map((step, at) => ({
    step, end: endOf(steps, at, curve.gaps),
    low: lows[at], mean: means[at], high: highs[at], exact: curve.coarse.length === 2, peak: peaks.has(at),
  }));
  const pieces = curve.fine.map((piece) => piece.values.map((value, at) => {
    const step = piece.steps ? piece.steps[at] : piece.first + at * piece.every;
    return { step, end: step, low: value, mean: value, high: value, exact: true };
  }));
  for (const entry of band) entry.known = pieces.some((piece) => piece[0].step <= entry.end && entry.step <= piece.at(-1).step);
  const outside = band.filter(({ step }) => !pieces.some((piece) => piece[0].step <= step && step <= piece.at(-1).step));
  const line = [...outside, ...pieces.flat()].sort((a, b) => a.step - b.step);
  const length = (data.last - data.first + 1) / Math.max(band.length, 1);
  const made = { name: curve.name, dots: curve.dots, band, line: pieces.length ? line : band, length, gaps: curve.gaps, shown: true };
  for (const [first] of curve.gaps) { // what comes after a gap is not joined to what came before it
    for (const entries of new Set([made.band, made.line])) {
      const after = entries[firstAfter(entries, first)];
      if (after) after.apart = true;
    }
  }
  return made;
}

// A bucket ends where the next one begins, unless values that were not finite, or none at all, lie between them.
function endOf(steps, at, gaps) {
  const step = steps[at], next = at + 1 < steps.length ? steps[at + 1] : data.last + 1;
  const before = at ? step - steps[at - 1] : next - step, after = at + 2 < steps.length ? steps[at + 2] - next : 0;
  const alone = at + 1 === steps.length || next - step > 4 * Math.max(before, after);
  const gap = gaps.find(([first]) => step < first && first < next);
  return Math.max(Math.min(next - 1, alone ? step + before - 1 : Infinity, gap ? gap[0] - 1 : Infinity), step);
}

function firstAfter(entries, step) { // of entries in order, the first that begins later
  let low = 0, high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle].step <= step) low = middle + 1;
    else high = middle;
  }
  return low;
}

function visible(entries) {
  return entries.slice(Math.max(firstAfter(entries, view.from) - 1, 0), firstAfter(entries, view.to) + 1);
}

function valueAxis(shown, log, height) {
  let low = Infinity, high = -Infinity;
  for (const entry of shown) {
    if (!log || entry.low > 0) low = Math.min(low, entry.low);
    else if (entry.mean > 0) low = Math.min(low, entry.mean);
    high = Math.max(high, entry.high);
  }
  if (!(low <= high) || (log && !(low > 0))) [low, high] = log ? [0.1, 1] : [0, 1];
  if (log) {
    const middles = shown.map((entry) => entry.mean).filter((value) => value > 0).sort((a, b) => a - b);
    low = Math.max(low, (middles[Math.floor(middles.length / 20)] || low) * 1e-3); // a collapse may leave the panel
    [low, high] = [Math.log10(low), Math.log10(high)];
  }
  const rounding = high - low <= 1e-5 * Math.abs(high); // a constant is drawn as one
  const flat = log ? 0.02 : Math.max(Math.abs(high) * (rounding ? 0.2 : 1e-3), 1e-12);
  const room = Math.max((high - low) * 0.06, flat);
  low -= room;
  high += room;
  const at = (value) => TOP + (height - TOP) * (1 - ((log ? Math.log10(value) : value) - low) / (high - low));
  return { at: (value) => (log && value <= 0 ? height : Math.min(Math.max(at(value), TOP), height)), low, high };
}

function addPanel(spec, holder, closes) {
  const lines = spec.curves.map(prepared);
  const all = lines.flatMap((line) => line.band);
  const lowest = Math.min(...all.map((entry) => entry.low)), highest = Math.max(...all.map((entry) => entry.high));
  let log = spec.log === null ? lowest > 0 && highest / lowest > LOG_SPAN : spec.log && highest > 0;
  const box = make("input", { type: "checkbox", checked: log, disabled: highest <= 0 });
  const head = make("div", { class: "head" });
  const body = make("div", { class: "panel" }, head);
  lines.forEach((line, index) => {
    const key = make("button", { type: "button", class: `key k${(index % 4) + 1}`, ariaPressed: "true" }, line.name);
    key.title = "Show or hide this curve";
    key.addEventListener("click", () => {
      line.shown = !line.shown;
      key.setAttribute("aria-pressed", String(line.shown));
      redraw();
    });
    head.append(key);
  });
  head.append(make("label", {}, box, " log scale"));
  holder.append(body);
  const height = spec.title === "Loss" ? 250 : 160;
  const names = lines.map((line) => line.name).join(", ");
  const { canvas, place, x, begin } = surface(body, `Curve of ${names} over the steps`, height, CURVES_LEFT);
  const bottom = height - BOTTOM;
  box.addEventListener("change", () => { log = box.checked; redraw(); });
  canvas.addEventListener("pointermove", (event) => showTip(event, canvas, readings(x)));
  const chart = { lines, draw };
  charts.push(chart);
  if (closes) {
    const close = make("button", { type: "button", class: "plain", ariaLabel: `Remove ${names}` }, "remove");
    close.addEventListener("click", () => { charts.splice(charts.indexOf(chart), 1); body.remove(); });
    head.append(close);
  }

  function draw() {
    const pen = begin();
    const wide = (line) => x(line.length) - x(0) > WIDE;
    const shown = lines.map((line) => (line.shown ? visible(wide(line) ? line.line : line.band) : []));
    // Where exact values are drawn, what their bucket spans is no help: it would be a pale block behind them.
    const bands = lines.map((line) => (line.shown ? visible(line.band).filter((entry) => !entry.known || !wide(line)) : []));
    const zoomed = (view.to - view.from) * 4 < data.last - data.first; // then what a wide bucket spans is of no help
    const axis = valueAxis(zoomed ? shown.flat() : [...shown, ...bands].flat(), log, bottom);
    drawValues(pen, axis);
    clipped(pen, place, bottom, () => {
      drawEpisodes(pen, place, x, bottom);
      lines.forEach((line, index) => drawCurve(pen, line, shown[index], bands[index], axis, index));
      drawPointer(pen, place, x, bottom);
    });
    drawSteps(pen, place, x);
  }

  function drawValues(pen, axis) {
    pen.textAlign = "right";
    const wanted = Math.max(2, height / 45);
    const decades = log && axis.high - axis.low > 1.2;
    const ends = log && !decades ? [10 ** axis.low, 10 ** axis.high] : [axis.low, axis.high];
    const marks = ticks(...ends, wanted);
    let before = "";
    for (const value of decades ? marks.filter(Number.isInteger).map((power) => 10 ** power) : marks) {
      if (number(value) === before) continue;
      before = number(value);
      const y = axis.at(value);
      pen.fillStyle = colour("--line");
      pen.fillRect(place.left, Math.round(y), place.width - place.left - RIGHT, 1);
      pen.fillStyle = colour("--faint");
      pen.fillText(number(value), place.left - 6, y + 4);
    }
  }

  function drawCurve(pen, line, entries, band, axis, index) {
    pen.strokeStyle = pen.fillStyle = colour(`--curve-${(index % 4) + 1}`);
    for (const { step, end, low, high } of band) {
      if (low === high || (log && high <= 0)) continue;
      const top = axis.at(high), width = Math.max(x(end + 1) - x(step), 1);
      pen.globalAlpha = width > 100 ? 0.08 : 0.22; // what a wide bucket spans says little about its steps
      pen.fillRect(x(step), top, width, Math.max(axis.at(low) - top, 1));
    }
    pen.globalAlpha = 1;
    pen.lineWidth = 1.6;
    pen.lineJoin = "round";
    pen.beginPath();
    let column = null; // of the entries in one column of pixels, the lowest and highest are drawn
    const flush = () => {
      for (const value of column ? [column.first, column.low, column.high, column.last] : []) pen.lineTo(column.at, axis.at(value));
    };
    const known = entries.filter((entry) => !log || entry.mean > 0);
    for (const { step, mean, low, high, peak, apart } of known) {
      const at = Math.round(x(step)), [foot, top] = peak ? [low, high] : [mean, mean];
      if (apart) {
        flush();
        column = null;
        pen.moveTo(at - 0.5, axis.at(mean));
      }
      if (column && column.at === at) {
        column.low = Math.min(column.low, foot);
        column.high = Math.max(column.high, top);
        column.last = mean;
      } else {
        flush();
        column = { at, first: mean, low: foot, high: top, last: mean };
      }
    }
    flush();
    pen.stroke();
    if (known.length > 60 && !(line.dots && known.length < 120)) return;
    for (const { step, mean } of known) {
      pen.beginPath();
      pen.arc(x(step), axis.at(mean), 2.6, 0, 7);
      pen.fill();
    }
  }
}

function nearest(entries, step, x) {
  const after = firstAfter(entries, step);
  const [before, next] = [entries[after - 1], entries[after]];
  if (before && before.end >= step) return before;
  const best = [before, next].filter(Boolean).sort((a, b) => Math.abs(a.step - step) - Math.abs(b.step - step))[0];
  return best && (Math.abs(x(best.step) - x(step)) < NEAR || best === before) ? best : null;
}

function readings(x) {
  const rows = [[data.clock, count(Math.max(hover, data.first))]];
  for (const line of charts.flatMap((chart) => chart.lines || []).filter((line) => line.shown)) {
    const gap = line.gaps.find(([first, last]) => first <= Math.round(hover) && Math.round(hover) <= last);
    if (gap) rows.push([line.name, `NaN or infinite, ${spanText(...gap)}`]);
    const entry = gap ? null : nearest(line.line, hover, x);
    if (!entry) continue;
    const range = entry.exact ? "" : ` (${number(entry.low)} to ${number(entry.high)} over ${spanText(entry.step, entry.end)})`;
    const other = entry.exact && Math.abs(entry.step - hover) > 1 ? ` at ${count(entry.step)}` : "";
    rows.push([line.name, number(entry.mean) + range + other]);
  }
  const room = (view.to - view.from) / 150;
  const met = data.episodes.filter(({ first, last }) => first - room <= hover && hover <= last + room);
  met.sort((a, b) => a.last - a.first - (b.last - b.first));
  return [...rows, ...met.slice(0, 3).map(({ label, severity, first, last }) => [label, `${severity}, ${spanText(first, last)}`])];
}
