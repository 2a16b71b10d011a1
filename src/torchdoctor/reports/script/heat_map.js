// Heat maps: tensors or modules by row, steps by column, the same view as the curves.

function addHeatMap(holder) {
  if (!data.maps.length) return;
  const choice = make("select", { ariaLabel: "What the heat map shows" });
  data.maps.forEach(({ title }, index) => choice.append(make("option", { value: String(index) }, title)));
  const scale = make("span", { class: "faint" });
  const head = make("div", { class: "head" }, choice, scale);
  const body = make("div", { class: "panel" }, head);
  holder.append(body);
  let map, image, rowHeight, base;
  const { canvas, place, x, begin } = surface(body, "Heat map over the steps", 300, 0);
  charts.push({ draw });
  choice.addEventListener("change", () => { choose(); redraw(); });
  canvas.addEventListener("pointermove", (event) => showTip(event, canvas, cellText(event.offsetY)));
  choose();

  function choose() {
    map = data.maps[Number(choice.value) || 0];
    const cells = Uint8Array.from(atob(map.cells), (letter) => letter.charCodeAt(0));
    map.at = (row, column) => cells[row * map.steps.length + column];
    image = make("canvas", { width: map.steps.length, height: map.names.length });
    const pen = image.getContext("2d");
    cells.forEach((cell, at) => {
      if (cell === MISSING) return;
      pen.fillStyle = data.palette[cell];
      pen.fillRect(at % map.steps.length, Math.floor(at / map.steps.length), 1, 1);
    });
    rowHeight = Math.min(Math.max(420 / map.names.length, 2), 22);
    base = TOP + rowHeight * map.names.length;
    place.height = base + BOTTOM;
    canvas.style.height = `${place.height}px`;
    canvas.setAttribute("aria-label", `Heat map of the ${map.title} of ${map.names.length} rows over the steps`);
    scale.textContent = `dark = ${number(map.low)} · bright = ${number(map.high)} · black = zero · red = not finite`;
  }

  const columnEnd = (column) => (column + 1 < map.steps.length ? map.steps[column + 1] : data.last + 1);

  function draw() {
    place.left = Math.min(200, canvas.clientWidth * 0.3);
    const pen = begin();
    pen.imageSmoothingEnabled = false;
    clipped(pen, place, base, () => {
      map.steps.forEach((step, column) => {
        const from = x(step), width = x(columnEnd(column)) - from;
        if (from + width < 0 || from > place.width) return;
        pen.drawImage(image, column, 0, 1, map.names.length, from, TOP, width + 0.5, base - TOP);
      });
      drawEpisodes(pen, place, x, base, false);
      drawPointer(pen, place, x, base);
    });
    drawNames(pen);
    drawSteps(pen, place, x);
  }

  function drawNames(pen) {
    pen.textAlign = "right";
    const every = Math.ceil(14 / rowHeight);
    const kept = [];
    const rows = [...map.marked, ...map.names.keys()];
    for (const row of rows) {
      if (kept.some((other) => Math.abs(other - row) < every)) continue;
      kept.push(row);
      const named = map.marked.includes(row);
      pen.fillStyle = colour(named ? "--critical" : "--faint");
      let name = map.names[row], most = (place.left - 12) / 6.2;
      if (name.length > most) name = `…${name.slice(-most)}`;
      pen.fillText((named ? "▸ " : "") + name, place.left - 6, TOP + (row + 0.5) * rowHeight + 4);
    }
  }

  function cellText(y) {
    const row = Math.min(Math.max(Math.floor((y - TOP) / rowHeight), 0), map.names.length - 1);
    let column = map.steps.findIndex((step) => step > hover);
    column = (column < 0 ? map.steps.length : column) - 1;
    if (column < 0) return [[data.clock, count(hover)]];
    const cell = map.at(row, column), share = (cell - FIRST) / (255 - FIRST);
    const value = map.log ? map.low * (map.high / map.low) ** share : map.high * share;
    const told = { [MISSING]: "not measured", [ZERO]: "zero", [STRANGE]: "not finite" }[cell] || `about ${number(value)}`;
    return [[map.names[row], ""], [map.title, told], ["", spanText(map.steps[column], Math.max(columnEnd(column) - 1, map.steps[column]))]];
  }
}
