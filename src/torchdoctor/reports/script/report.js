// The page of a report: pictures become live, episodes and findings lead to them, code can be copied.

const curves = make("div", { class: "live", tabIndex: 0, ariaLabel: "Curves of the run" });
const where = make("output", { class: "faint" });
const tip = make("div", { class: "tip", hidden: true });

function button(words, action, label = words) {
  const made = make("button", { type: "button", ariaLabel: label }, words);
  made.addEventListener("click", action);
  return made;
}

function tellView() {
  const whole = view.from === data.first && view.to === data.last;
  const told = whole ? `the whole run, ${spanText(data.first, data.last)}` : spanText(Math.round(view.from), Math.round(view.to));
  if (where.textContent !== told) where.textContent = told;
}

const keys = {
  "+": () => zoomBy(0.6), "=": () => zoomBy(0.6), "-": () => zoomBy(1 / 0.6), 0: () => zoom(data.first, data.last),
  ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
};

function addControls() {
  const bar = make("div", { class: "head" },
    button("Whole run", keys[0]), button("+", keys["+"], "Zoom in"), button("−", keys["-"], "Zoom out"),
    button("←", keys.ArrowLeft, "Earlier"), button("→", keys.ArrowRight, "Later"), where);
  if (data.others.length) {
    const more = make("select", { ariaLabel: "Add another curve" }, make("option", { value: "" }, "Add a curve…"));
    data.others.forEach(({ name }, index) => more.append(make("option", { value: String(index) }, name)));
    more.addEventListener("change", () => {
      if (more.value !== "") addPanel({ title: "", log: null, curves: [data.others[Number(more.value)]] }, curves, true);
      more.value = "";
      redraw();
    });
    bar.append(more);
  }
  const chips = data.episodes.map(({ label, severity, first, last, message }) => {
    const chip = button(`${label} · ${count(first)}`, () => zoomTo(first, last), `Zoom to ${label} (${severity}), ${spanText(first, last)}`);
    chip.className = `chip ${severity}`;
    chip.title = message;
    return chip;
  });
  curves.append(bar, make("div", { class: "chips" }, ...chips));
}

function addCopying() {
  for (const block of root.querySelectorAll("pre")) {
    const code = block.textContent;
    const copy = button("Copy", async () => {
      try {
        await navigator.clipboard.writeText(code);
        copy.textContent = "Copied";
      } catch { // no permission: the text is selected, so that the keyboard copies it
        getSelection().selectAllChildren(block.querySelector("code") || block);
        copy.textContent = "Selected";
      }
    }, "Copy this code");
    copy.className = "copy";
    const holder = make("div", { class: "code" });
    block.replaceWith(holder);
    holder.append(block, copy);
  }
}

function addLinks() {
  for (const item of root.querySelectorAll("[data-first]")) {
    const { first, last } = item.dataset;
    const show = button("show in the curves", () => zoomTo(Number(first), Number(last)), `Show ${spanText(Number(first), Number(last))} in the curves`);
    show.className = "plain";
    item.append(show);
  }
}

function begin() {
  const place = root.querySelector("[data-part=curves]");
  if (place && data.panels.length + data.others.length) {
    curves.setAttribute("role", "group");
    place.prepend(curves);
    addControls();
    for (const panel of data.panels) addPanel(panel, curves, false);
    addLinks();
    curves.addEventListener("keydown", (event) => {
      if (event.target !== curves || !Object.hasOwn(keys, event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
      keys[event.key]();
      event.preventDefault();
    });
  }
  const map = root.querySelector("[data-part=map]");
  if (map) {
    const live = make("div", { class: "live" });
    map.prepend(live);
    addHeatMap(live);
  }
  root.append(tip);
  root.classList.add("scripted");
  addCopying();
  new ResizeObserver(redraw).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
}

begin();
