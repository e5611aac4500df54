// The explorer of hidden units: one for each run on the page, from the data beside it.

const MEASURES = {
  information: { name: "information", unit: "nats", hint: "KL of its incoming weights to the first prior" },
  information_gain: { name: "information gain", unit: "nats", hint: "KL of its incoming weights to those before the task" },
  signal_to_noise: { name: "signal-to-noise", unit: "", hint: "largest |μ|/σ of its outgoing weights" },
  removal_effect: { name: "removal effect", unit: "", hint: "how far predictions move without it (total variation)" },
};
const SORTS = {
  first_active: "first activation",
  number: "number",
  information: "information",
  signal_to_noise: "signal-to-noise",
  removal_effect: "removal effect",
};
const MOST_ROWS_ABOVE = 12;
const LONGEST_NAME = 11;
const FEW_UNITS = 60;

// Colours: from blue by the colour of the paper to orange for what has a sign, so that nothing glares in the dark;
// viridis for what has none. Weights from colour images are shown in the colours of the image, and GREYS are the
// shades of each channel: dark is negative, bright positive.

const DARK = window.matchMedia("(prefers-color-scheme: dark)");
const ON_LIGHT = ramp(["#1a4e8a", "#5b9bd0", "#f7f7f7", "#f0a04b", "#a84300"]);
const ON_DARK = ramp(["#a9d2f8", "#4a88c0", "#1d242c", "#bd6a20", "#ffc48a"]);
const diverging = () => (DARK.matches ? ON_DARK : ON_LIGHT);
const sequential = () => (DARK.matches ? SEQUENTIAL_ON_DARK : SEQUENTIAL_ON_LIGHT);
const SEQUENTIAL_ON_LIGHT = ramp(["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"]);
const SEQUENTIAL_ON_DARK = ramp(["#1c0b2e", "#33285f", "#2c4b74", "#235f6c", "#1d7a68", "#3a9059", "#74a03a", "#b3a92f"]);
const GREYS = ramp(["#000000", "#808080", "#ffffff"]);

function ramp(stops) {
  const parts = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (parts.length - 1);
    const low = Math.min(Math.floor(place), parts.length - 2);
    return parts[low].map((from, channel) => Math.round(from + (place - low) * (parts[low + 1][channel] - from)));
  });
}

/** Colour of a value between `low` and `high`; beyond them, that of the nearer. */
function colourOf(colours, value, low, high) {
  return colours[levelOf(value, low, high)];
}

/** A value as a level from 0, at `low`, to 255, at `high`. */
function levelOf(value, low, high) {
  const share = high > low ? (value - low) / (high - low) : 0.5;
  return Math.round(255 * Math.min(1, Math.max(0, share)));
}

// Numbers

const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

function short(value) {
  if (value === null) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

const clipped = (text) => (text.length > LONGEST_NAME ? `${text.slice(0, LONGEST_NAME - 1)}…` : text);

// The page's elements

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const element = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const drawing = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Images that were packed to a byte for each weight

async function inflate(text) {
  const letters = atob(text);
  const squeezed = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) squeezed[at] = letters.charCodeAt(at);
  const stream = new Blob([squeezed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers for each task and unit: `of(task, unit)` gives an image's, channel by channel, each row by row. */
async function unpack(packed, units, decode) {
  const bytes = await inflate(packed.bytes);
  const table = Float32Array.from({ length: 256 }, (_, level) => decode(level));
  const { columns, channels, size } = packed;
  return {
    of(task, unit) {
      const start = (task * units + unit) * size;
      const values = new Float32Array(size);
      for (let at = 0; at < size; at++) values[at] = table[bytes[start + at]];
      return { values, columns, channels };
    },
  };
}

const unpackMeans = (packed, units) => unpack(packed, units, (level) => ((level - 128) / 127) * packed.scale);
const unpackVariances = (packed, units) =>
  unpack(packed, units, (level) =>
    level === 0 ? 0 : Math.exp(packed.low + ((level - 1) / 254) * (packed.high - packed.low)),
  );

async function unpackLayer(layer) {
  const units = layer.first_active.length;
  const mean = await unpackMeans(layer.mean, units);
  const pattern = layer.pattern && (await unpackMeans(layer.pattern, units));
  return {
    ...layer,
    units,
    mean,
    variance: await unpackVariances(layer.variance, units),
    deep: Boolean(pattern),
    inColour: (layer.pattern ?? layer.mean).channels === 3,
    image: pattern ?? mean,
    mostImage: (layer.pattern ?? layer.mean).scale,
    mostMean: layer.mean.scale,
  };
}

function paint(canvas, { values, columns, channels }, colours, low, high) {
  const size = values.length / channels;
  const rows = Math.ceil(size / columns);
  canvas.width = columns;
  canvas.height = rows;
  const picture = new ImageData(columns, rows);
  for (let at = 0; at < size; at++) {
    const colour = channels === 3 ? null : colourOf(colours, values[at], low, high);
    for (let channel = 0; channel < 3; channel++) {
      picture.data[4 * at + channel] = colour ? colour[channel] : levelOf(values[channel * size + at], low, high);
    }
    picture.data[4 * at + 3] = 255;
  }
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

function painted(label, image, colours, low, high) {
  const canvas = element("canvas", { role: "img", "aria-label": label });
  paint(canvas, image, colours, low, high);
  return canvas;
}

/** An image with its title, its colours and their range. */
function imageFigure(title, image, colours, low, high) {
  const steps = { values: Float32Array.from({ length: 256 }, (_, level) => level), columns: 256, channels: 1 };
  const range = `${short(low)} to ${short(high)}`;
  const inColour = image.channels === 3;
  const bar = painted(`colours from ${range}`, steps, inColour ? GREYS : colours, 0, 255);
  return element(
    "figure",
    {},
    element("figcaption", {}, inColour ? `${title}, grey is 0` : title),
    painted(`${title}, ${range}`, image, colours, low, high),
    element("div", { class: "scale" }, short(low), bar, short(high)),
  );
}

// Charts

/** A measure after each task; filled points where the unit was active, hollow ones where it was pruned. */
function history(measure, values, active, now) {
  const [width, height, left, bottom] = [190, 84, 6, 16];
  const top = Math.max(...values.map((value) => value ?? 0)) || 1;
  const x = (task) => left + ((width - 2 * left) * (task + 0.5)) / values.length;
  const y = (value) => 8 + (height - 8 - bottom - 2) * (1 - (value ?? 0) / top);
  const points = values.map((value, task) => `${x(task)},${y(value)}`).join(" ");
  const labels = values.map((_, task) =>
    drawing("text", { x: x(task), y: height - 2, "text-anchor": "middle" }, String(task + 1)),
  );
  const dots = values.map((value, task) =>
    drawing("circle", { cx: x(task), cy: y(value), r: 3.5, class: active[task] ? "was-active" : "was-pruned" }),
  );
  const { name, unit, hint } = MEASURES[measure];
  const told = values.map((value, task) => `task ${task + 1}: ${short(value)}`).join(", ");
  return element(
    "figure",
    { class: "small", title: hint },
    element("figcaption", {}, name, element("b", { "data-measure": measure }, `${short(values[now])} ${unit}`.trim())),
    drawing(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}, ${hint}. ${told}` },
      drawing("line", { class: "rule", x1: left, x2: width - left, y1: y(0), y2: y(0) }),
      drawing("line", { class: "now", x1: x(now), x2: x(now), y1: 0, y2: y(0) }),
      drawing("polyline", { class: "past", points }),
      ...dots,
      ...labels,
    ),
  );
}

/** Weights as Gaussians, one below the other. The narrowest are cut off at the top: they would hide the others. */
function ridges(groups, reach) {
  const [width, label, value, row, head] = [400, 66, 112, 25, 24];
  const [from, to] = [label + 6, width - value - 6];
  const x = (weight) => from + ((to - from) * (weight + reach)) / (2 * reach);
  const widest = reach / 15; // of the standard deviations that reach the top
  const parts = [];
  let base = 0;
  for (const { title, rows } of groups) {
    base += head;
    parts.push(drawing("text", { x: 0, y: base - 5, class: "group" }, title));
    for (const { name, mean, sd } of rows) {
      base += row;
      const spread = Math.max(sd, reach / 1000);
      const height = (row - 3) * Math.min(8, widest / spread);
      const points = Array.from({ length: 65 }, (_, at) => {
        const z = -4 + at / 8;
        const up = Math.min(row - 3, height * Math.exp(-0.5 * z * z));
        return `${x(Math.max(-reach, Math.min(reach, mean + z * spread))).toFixed(1)},${(base - up).toFixed(1)}`;
      });
      parts.push(
        drawing("line", { class: "rule", x1: from, x2: to, y1: base, y2: base }),
        drawing("path", { d: `M${points.join("L")}` }),
        drawing("text", { x: label, y: base - 4, "text-anchor": "end" }, clipped(name)),
        drawing("text", { x: width, y: base - 4, "text-anchor": "end" }, `${short(mean)} ± ${short(sd)}`),
      );
    }
  }
  const ticks = [-reach, 0, reach].map((weight) =>
    drawing("text", { x: x(weight), y: base + 16, "text-anchor": "middle" }, short(weight)),
  );
  const zero = drawing("line", { class: "now", x1: x(0), x2: x(0), y1: head, y2: base });
  const told = groups.flatMap(({ title, rows }) =>
    rows.map(({ name, mean, sd }) => `${title} ${name}: ${short(mean)} ± ${short(sd)}`),
  );
  return drawing(
    "svg",
    { viewBox: `0 0 ${width} ${base + 20}`, class: "ridge", role: "img", "aria-label": told.join(", ") },
    zero,
    ...parts,
    ...ticks,
  );
}

// The explorer

class Explorer {
  constructor(root, data, layers) {
    Object.assign(this, { root, data, layers });
    this.number = 0;
    DARK.addEventListener("change", () => this.arrange());
    this.task = data.tasks.length - 1;
    this.chosen = null;
    this.focused = 0;
    this.build();
    this.enter(0);
  }

  get layer() {
    return this.layers[this.number];
  }

  taskTitle(task) {
    return `task ${task + 1}: ${this.data.tasks[task]}`;
  }

  build() {
    const choice = (name, text, options) => {
      const select = element("select", { name }, ...options.map(([value, shown]) => element("option", { value }, shown)));
      select.addEventListener("change", () => (name === "layer" ? this.enter(Number(select.value)) : this.arrange()));
      return [select, element("label", {}, text, select)];
    };
    const layers = this.layers.map((layer, number) => [number, `${number + 1} (${layer.units} units)`]);
    const last = this.data.tasks.length;
    const [layer, layerLabel] = choice("layer", "Layer", layers);
    const [filter, filterLabel] = choice("filter", "Show", []);
    const [sort, sortLabel] = choice("sort", "Sort by", Object.entries(SORTS));
    const [contrast, contrastLabel] = choice("contrast", "Contrast", [
      ["common", "the same for all"],
      ["own", "each unit's own"],
    ]);
    this.slider = element("input", { type: "range", min: 1, max: last, value: last, step: 1, name: "task", "aria-label": "After task" });
    this.after = element("span");
    this.slider.addEventListener("input", () => this.moveTo(Number(this.slider.value) - 1));
    Object.assign(this, { filter, sort, contrast });
    this.status = element("p", { class: "status", role: "status", "aria-live": "polite" });
    this.grid = element("div", { class: "units", role: "listbox", "aria-label": "Units" });
    this.legend = element("p", { class: "soft" });
    this.detail = element("aside", { class: "detail", "aria-label": "Selected unit" });
    this.grid.addEventListener("keydown", (event) => this.steer(event));
    this.root.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    this.root.replaceChildren(
      element(
        "div",
        { class: "controls" },
        element("label", { class: "slider" }, this.after, this.slider),
        ...(this.layers.length > 1 ? [layerLabel] : []),
        filterLabel,
        sortLabel,
        contrastLabel,
      ),
      this.status,
      element("div", { class: "split" }, element("div", {}, this.grid, this.legend), this.detail),
    );
  }

  /** Show another layer. */
  enter(number) {
    this.number = number;
    // A page should show something at once: the unit that predictions rely on most.
    const effects = this.layer.removal_effect[this.task];
    this.chosen = this.focused = effects.indexOf(Math.max(...effects.map((effect) => effect ?? 0)));
    if (this.chosen < 0) this.chosen = this.focused = 0;
    this.offerFilters();
    this.cells = Array.from({ length: this.layer.units }, (_, unit) => this.makeCell(unit));
    this.grid.setAttribute("aria-label", `Units of layer ${number + 1}`);
    this.grid.style.setProperty("--tile", this.layer.units <= FEW_UNITS ? "84px" : "58px");
    this.legend.textContent =
      (this.layer.deep
        ? "Each image: the input pattern that excites the unit, on the task that first activated it. "
        : "Each image: the means of a unit's incoming weights. ") +
      (this.layer.inColour
        ? "Grey is 0; a brighter colour channel is positive, a darker one negative. "
        : "Orange is positive, blue negative. ") +
      "Below it, the unit's number and the task that first activated it; × and faded: pruned.";
    this.arrange();
  }

  offerFilters() {
    const kept = this.filter.value;
    const counts = this.data.tasks.map((_, task) => this.layer.first_active.filter((t) => t === task + 1).length);
    const options = [
      ["all", "all"],
      ["active", "active"],
      ["pruned", "pruned"],
      ...counts.map((count, task) => [task + 1, `first activated by ${this.taskTitle(task)} (${count})`]),
    ];
    this.filter.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
    this.filter.value = kept || "all";
  }

  makeCell(unit) {
    const cell = element(
      "div",
      { class: "unit", role: "option", tabindex: -1, "data-unit": unit + 1 },
      element("canvas", { "aria-hidden": "true" }),
      element("span", { "aria-hidden": "true" }, String(unit + 1)),
      element("span", { class: "mark", "aria-hidden": "true" }),
    );
    cell.addEventListener("click", () => this.choose(unit));
    return cell;
  }

  moveTo(task) {
    this.task = task;
    this.slider.value = task + 1;
    this.arrange();
  }

  /** The units that the filter lets through, in order. */
  shown() {
    const { active, first_active: first } = this.layer;
    const passes = {
      all: () => true,
      active: (unit) => active[this.task][unit],
      pruned: (unit) => !active[this.task][unit],
    };
    const passing = passes[this.filter.value] ?? ((unit) => first[unit] === Number(this.filter.value));
    const order = {
      number: () => 0,
      first_active: (unit) => first[unit] || Infinity,
    };
    const rank = order[this.sort.value] ?? ((unit) => -this.layer[this.sort.value][this.task][unit]);
    const units = this.cells.map((_, unit) => unit).filter(passing);
    return units.sort((a, b) => (rank(a) === rank(b) ? a - b : rank(a) < rank(b) ? -1 : 1));
  }

  /** Redraw all that depends on the layer, the task, the filter, the order and the contrast. */
  arrange() {
    const after = `after ${this.taskTitle(this.task)}`;
    this.after.textContent = after;
    this.slider.setAttribute("aria-valuetext", after);
    const units = this.shown();
    units.forEach((unit) => this.drawCell(unit));
    const nothing = element("p", { class: "empty" }, "No unit matches. Choose another filter above.");
    this.grid.replaceChildren(...(units.length ? units.map((unit) => this.cells[unit]) : [nothing]));
    if (!units.includes(this.focused)) this.focused = units[0] ?? 0;
    this.markCells();
    const active = this.layer.active[this.task].filter(Boolean).length;
    this.status.textContent =
      `${units.length} of ${this.layer.units} units shown. ` +
      `After task ${this.task + 1}, ${active} are active and ${this.layer.units - active} pruned.`;
    this.drawDetail();
  }

  drawCell(unit) {
    const cell = this.cells[unit];
    const { image, mostImage, active, first_active: first, information } = this.layer;
    const shown = image.of(this.task, unit);
    const most = this.contrast.value === "own" ? largest(shown.values) : mostImage;
    paint(cell.querySelector("canvas"), shown, diverging(), -most, most);
    const isActive = active[this.task][unit];
    cell.classList.toggle("pruned", !isActive);
    cell.querySelector(".mark").textContent = isActive ? first[unit] : "×";
    const state = isActive ? `active, first activated by task ${first[unit]}` : "pruned";
    cell.setAttribute("aria-label", `unit ${unit + 1}, ${state}, information ${short(information[this.task][unit])} nats`);
  }

  /** One cell can be reached with Tab; the chosen one is marked. */
  markCells() {
    this.cells.forEach((cell, unit) => {
      cell.tabIndex = unit === this.focused ? 0 : -1;
      cell.setAttribute("aria-selected", String(unit === this.chosen));
    });
  }

  steer(event) {
    const cells = [...this.grid.querySelectorAll(".unit")];
    const at = cells.indexOf(this.cells[this.focused]);
    const inRow = cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -inRow, ArrowDown: inRow, Home: -at, End: cells.length - 1 - at };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose(this.focused);
    } else if (event.key in steps) {
      event.preventDefault();
      const next = cells[at + steps[event.key]];
      if (!next) return;
      this.focused = this.cells.indexOf(next);
      this.markCells();
      next.focus();
    }
  }

  choose(unit) {
    this.chosen = this.focused = unit;
    this.markCells();
    this.cells[unit].focus({ preventScroll: true });
    this.drawDetail();
    const { top, bottom } = this.detail.getBoundingClientRect();
    if (top > window.innerHeight - 200 || bottom < 200) this.detail.scrollIntoView({ block: "start" });
  }

  close() {
    if (this.chosen === null) return;
    const cell = this.cells[this.chosen];
    this.chosen = null;
    this.markCells();
    this.drawDetail();
    if (cell.isConnected) cell.focus();
  }

  // The chosen unit

  drawDetail() {
    const unit = this.chosen;
    if (unit === null) {
      const text = "Select a unit to see its weights: click it, or move with the arrow keys and press Enter.";
      this.detail.replaceChildren(element("p", {}, text));
      return;
    }
    const { active, first_active: first } = this.layer;
    const isActive = active[this.task][unit];
    const close = element("button", { type: "button", "aria-label": "Close unit" }, "Close");
    close.addEventListener("click", () => this.close());
    this.detail.replaceChildren(
      element(
        "header",
        {},
        element("h4", {}, `Unit ${unit + 1}`, element("span", { class: "badge" }, isActive ? "active" : "pruned")),
        close,
      ),
      element(
        "p",
        { class: "since" },
        first[unit] ? `First activated by ${this.taskTitle(first[unit] - 1)}.` : "Never activated.",
        ` Shown after ${this.taskTitle(this.task)}.`,
      ),
      this.images(unit),
      element("h5", {}, this.outgoingTitle()),
      element("p", { class: "soft" }, "Mean ± standard deviation. Narrow curves are cut off at the top."),
      element("div", { class: "tall", tabindex: 0, role: "group", "aria-label": "Outgoing weights" }, this.outgoing(unit)),
      element("h5", {}, "Over the tasks (● active, ○ pruned)"),
      this.histories(unit),
      element("h5", {}, this.layer.deep ? "What excites it, after each task" : "Incoming means, after each task"),
      this.strip(unit),
    );
  }

  images(unit) {
    const { image, mean, variance, deep, inColour } = this.layer;
    const variances = variance.of(this.task, unit);
    const signed = (title, shown) => {
      const most = largest(shown.values) || 1;
      return imageFigure(title, shown, diverging(), -most, most);
    };
    const source = deep ? ` from layer ${this.number}, a cell for each unit` : "";
    const averaged = inColour ? ", mean over colours" : "";
    return element(
      "div",
      { class: "images" },
      ...(deep ? [signed("Input that excites it", image.of(this.task, unit))] : []),
      signed(`Incoming means${source}`, mean.of(this.task, unit)),
      imageFigure(`Incoming variances${source || averaged}`, variances, sequential(), 0, largest(variances.values) || 1),
    );
  }

  histories(unit) {
    const active = this.layer.active.map((row) => row[unit]);
    const one = (measure) => history(measure, this.layer[measure].map((row) => row[unit]), active, this.task);
    return element("div", { class: "curves" }, ...Object.keys(MEASURES).map(one));
  }

  strip(unit) {
    const { image } = this.layer;
    const images = this.data.tasks.map((_, task) => image.of(task, unit));
    const most = Math.max(...images.map(({ values }) => largest(values))) || 1;
    return element(
      "div",
      { class: "strip" },
      ...images.map((shown, task) =>
        element(
          "figure",
          task === this.task ? { class: "current" } : {},
          painted(`after ${this.taskTitle(task)}`, shown, diverging(), -most, most),
          element("figcaption", {}, `task ${task + 1}`),
        ),
      ),
    );
  }

  get above() {
    return this.layers[this.number + 1];
  }

  outgoingTitle() {
    if (!this.above) return "Outgoing weights, to each class";
    const title = `Outgoing weights to layer ${this.number + 2}`;
    if (this.above.units <= MOST_ROWS_ABOVE) return `${title}, largest |μ|/σ first`;
    return `${title}: the ${MOST_ROWS_ABOVE} of ${this.above.units} with the largest |μ|/σ`;
  }

  outgoing(unit) {
    const groups = this.above ? this.weightsAbove(unit) : this.weightsToHeads(unit);
    const reach = (rows) => Math.max(...rows.map(({ mean, sd }) => Math.abs(mean) + 3 * sd));
    const own = reach(groups.flatMap(({ rows }) => rows));
    // Weights that are certain to be nothing should look like that, so the axis is never much shorter than others'.
    return ridges(groups, Math.max(own, this.widestReach() / 3) || 1);
  }

  weightsToHeads(unit) {
    const { heads, mean, sd } = this.data.output[this.task];
    return heads.map((head, at) => {
      const tasks = this.data.tasks.map((_, task) => task).filter((task) => this.data.heads[task] === head);
      const title = tasks.length === 1 ? this.taskTitle(tasks[0]) : "one head for all tasks";
      const rows = mean[at][unit].map((m, c) => ({ name: this.data.classes[head][c], mean: m, sd: sd[at][unit][c] }));
      return { title, rows };
    });
  }

  weightsAbove(unit) {
    const rows = Array.from({ length: this.above.units }, (_, target) => ({
      name: `unit ${target + 1}`,
      mean: this.above.mean.of(this.task, target).values[unit],
      sd: Math.sqrt(this.above.variance.of(this.task, target).values[unit]),
    }));
    const sureness = ({ mean, sd }) => (sd ? Math.abs(mean) / sd : 0);
    rows.sort((a, b) => sureness(b) - sureness(a));
    return [{ title: `layer ${this.number + 2}`, rows: rows.slice(0, MOST_ROWS_ABOVE) }];
  }

  /** The largest mean among all outgoing weights of the layer. */
  widestReach() {
    if (this.above) return this.above.mostMean;
    return Math.max(...this.data.output[this.task].mean.flat(2).map(Math.abs));
  }
}

async function start() {
  for (const root of document.querySelectorAll(".explorer")) {
    const data = JSON.parse(document.getElementById(root.dataset.units).textContent);
    const layers = await Promise.all(data.layers.map(unpackLayer));
    new Explorer(root, data, layers);
    root.dataset.ready = "yes";
    performance.mark("units drawn");
  }
}

await start();
