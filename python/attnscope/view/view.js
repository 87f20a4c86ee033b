// SPDX-License-Identifier: MIT
"use strict";
// Every text reaches the page through textContent or fillText: a token that looks like markup stays text.
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const state = { metric: 0, checkpoint: data.checkpoints.length - 1, text: 0, input: 0, layer: null, head: null, map: null, query: null };

// --- small tools
const STOPS = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56]];
function color(share) {  // cividis
  const place = Math.min(1, Math.max(0, share)) * (STOPS.length - 1), low = Math.min(STOPS.length - 2, Math.floor(place));
  const mix = STOPS[low].map((c, i) => Math.round(c + (STOPS[low + 1][i] - c) * (place - low)));
  return `rgb(${mix.join(",")})`;
}
function shown(value) {
  if (value === null || Number.isNaN(value)) return "none";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}
function endLabels(low, high) {  // the ends of a scale, with the digits that tell them apart
  const [a, b] = [shown(low), shown(high)];
  return a === b && low !== high ? [low.toPrecision(7), high.toPrecision(7)] : [a, b];
}
function svg(parent, tag, attributes = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return parent.appendChild(node);
}
function element(parent, tag, text = null, className = "") {
  const node = document.createElement(tag);
  if (text !== null) node.textContent = text;
  if (className) node.className = className;
  return parent.appendChild(node);
}
const emptied = (id) => {
  at(id).replaceChildren();
  return at(id);
};
const short = (text) => (text.length > 10 ? text.slice(0, 9) + "…" : text);
// places in a picture or a spectrogram, without the words that all of them share
const compact = (token) => token.replace(/^(patch|image) \(/, "(").replace(" s, band ", " s·");
const visible = (token) => (token.trim() || token.replace(/ /g, "␣") || "∅").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
const isolated = (text) => `\u2068${text}\u2069`;  // what is written from right to left must not turn the numbers beside it
const numeric = (value) => (value === null ? null : Number(value));  // JSON has no infinity, which is a word there
// every kind of input of the first text, then of the next
const placeOfInput = () => state.text * data.inputs.length + state.input;
const cells = (metric) => data.values[state.checkpoint][placeOfInput()][metric].map((row) => row.map(numeric));
// a number for all layers, or one for each
const uniformOf = (metric) => {
  const value = data.uniform[placeOfInput()][metric];
  return numeric(Array.isArray(value) ? value[data.layers.indexOf(state.layer)] : value);
};
const valueOf = (metric, layer, head) => cells(metric)[data.layers.indexOf(layer)][data.heads.indexOf(head)];
const known = (metric) => cells(metric).flat().filter((v) => v !== null);
// places of tokens, and numbers that all heads share, have no order
const isRanked = (metric) => !["position", "constant"].includes(metric.kind);
// an answer's queries: those from its first token to one past its last
const isAnswer = (map, place) => !!map.answer && place >= map.answer[0] && place < map.answer[1];
const nameOf = (map) => `${map.layer} ${map.head}`;
const isHere = (map) => map.checkpoint === state.checkpoint && map.input === placeOfInput();
const largest = (values) => values.reduce((most, v) => (v > most ? v : most), 0);  // NaN is none
const ink = (name) => getComputedStyle(document.body).getPropertyValue(name);

// --- the layer × head map
function drawHeads() {
  const grid = cells(state.metric), metric = data.metrics[state.metric];
  const finite = known(state.metric).filter(Number.isFinite), low = Math.min(...finite), high = Math.max(...finite);
  const share = (v) => (high > low ? (v - low) / (high - low) : 0.5);
  at("meaning").textContent = metric.meaning || metric.label;
  const side = Math.max(6, Math.min(40, 360 / data.heads.length)), left = 34, top = 6;
  const width = left + side * data.heads.length + 6, height = top + side * data.layers.length + 34;
  const picture = svg(emptied("heads"), "svg", { viewBox: `0 0 ${width} ${height}`, style: `max-width:${Math.round(width * 1.15)}px` });
  const kept = new Set((data.is_of_texts ? data.maps.filter(isHere) : data.maps).map(nameOf)), all = kept.size === data.layers.length * data.heads.length;
  data.layers.forEach((layer, row) => data.heads.forEach((head, column) => {
    const value = grid[row][column], x = left + side * column, y = top + side * row;
    const box = svg(picture, "rect", {
      x, y, width: side, height: side, "data-layer": layer, "data-head": head, "data-value": value === null ? "" : value,
      role: "button", tabindex: 0, "aria-pressed": layer === state.layer && head === state.head,
      "aria-label": `layer ${layer} head ${head}: ${shown(value)}`,
    });
    if (value === null) box.classList.add("nothing"); else box.style.fill = color(share(value));
    svg(box, "title", {}, `L${layer}H${head}  ${metric.label} ${shown(value)}`);
    box.addEventListener("click", () => choose(layer, head));
    box.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(layer, head); } });
    if (!all && kept.has(nameOf({ layer, head }))) svg(picture, "circle", { class: "kept", cx: x + side / 2, cy: y + side / 2, r: Math.max(1.5, side / 8) });
  }));
  svg(picture, "rect", { class: "chosen", x: left + side * data.heads.indexOf(state.head), y: top + side * data.layers.indexOf(state.layer), width: side, height: side });
  const every = Math.ceil(14 / side);
  data.layers.forEach((layer, row) => { if (row % every === 0) svg(picture, "text", { x: left - 5, y: top + side * (row + 0.5) + 4, "text-anchor": "end" }, layer); });
  data.heads.forEach((head, column) => { if (column % every === 0) svg(picture, "text", { x: left + side * (column + 0.5), y: height - 20, "text-anchor": "middle" }, head); });
  svg(picture, "text", { x: left + side * data.heads.length / 2, y: height - 5, "text-anchor": "middle" }, "head");
  svg(picture, "text", { x: 10, y: top + side * data.layers.length / 2, "text-anchor": "middle", transform: `rotate(-90 10 ${top + side * data.layers.length / 2})` }, "layer");
  drawScale(metric, low, high, finite.length);
}

function drawScale(metric, low, high, count) {
  const holder = emptied("scale");
  const whole = Math.max(200, Math.min(440, holder.clientWidth || 440));  // letters keep their size in a narrow cell
  const picture = svg(holder, "svg", { viewBox: `0 0 ${whole} 52`, style: "max-width:440px" });
  if (!count) { svg(picture, "text", { x: 34, y: 20 }, "no finite value here"); return; }
  const left = 34, width = whole - 70, uniform = uniformOf(state.metric), [a, b] = endLabels(low, high);
  for (let i = 0; i < 66; i++) svg(picture, "rect", { x: left + i * width / 66, y: 6, width: width / 66 + 0.5, height: 11, "shape-rendering": "crispEdges", fill: color(high > low ? i / 65 : 0.5) });
  svg(picture, "text", { x: left, y: 30 }, a);
  svg(picture, "text", { x: left + width, y: 30, "text-anchor": "end" }, b);
  svg(picture, "text", { x: left + width / 2, y: 30, "text-anchor": "middle" }, metric.label);
  if (uniform === null) return;
  const inside = uniform >= low && uniform <= high && high > low, x = left + width * (inside ? (uniform - low) / (high - low) : 0);
  if (inside) svg(picture, "path", { d: `M${x} 2V21`, class: "axis" });
  svg(picture, "text", { x: left, y: 47 }, `uniform attention: ${shown(uniform)}${inside ? " (mark)" : ""}`);
}

function drawNumbers() {
  const table = element(emptied("numbers"), "table"), head = element(element(table, "thead"), "tr");
  for (const [text, kind] of [[`L${state.layer}H${state.head}`, ""], ["value", "n"], ["uniform", "n"], ["rank", "n"]]) element(head, "th", text, kind);
  const body = element(table, "tbody");
  data.metrics.forEach((metric, index) => {
    if (metric.group !== "heads" && index !== state.metric) return;
    const value = valueOf(index, state.layer, state.head), all = known(index), uniform = uniformOf(index);
    const row = element(body, "tr", null, index === state.metric ? "here" : "");
    element(row, "td", metric.label).title = metric.meaning;
    element(row, "td", shown(value), "n");
    element(row, "td", uniform === null ? "" : shown(uniform), "n");
    element(row, "td", value !== null && isRanked(metric) ? `${1 + all.filter((v) => v > value).length} of ${all.length}` : "", "n");
  });
}

// --- every matrix as a small picture, made when they are asked for
const SMALL = 44;
function drawThumbnails() {
  const holder = emptied("thumbnails"), first = new Map(data.maps.filter(isHere).reverse().map((map) => [nameOf(map), map]));
  at("of-thumbnails").hidden = first.size < 2;
  if (first.size < 2 || !at("of-thumbnails").open) return;
  holder.style.gridTemplateColumns = `repeat(${data.heads.length}, minmax(0, ${SMALL + 4}px))`;
  for (const layer of data.layers) for (const head of data.heads) {
    const canvas = element(holder, "canvas"), map = first.get(nameOf({ layer, head }));
    canvas.width = canvas.height = SMALL;
    canvas.title = `L${layer}H${head}`;
    if (!map) continue;
    canvas.classList.toggle("chosen", layer === state.layer && head === state.head);
    canvas.addEventListener("click", () => choose(layer, head));
    const { matrix, n, rows } = decoded(map), context = canvas.getContext("2d"), top = largest(matrix), share = shareOf(top);
    const count = Math.min(SMALL, Math.max(n, rows)), step = Math.max(n, rows) / count, side = SMALL / count;
    for (let a = 0; a < count; a++) for (let b = 0; b < count; b++) {
      let most = -1;  // the largest entry of each tile, so that a single bright cell is not lost
      for (let i = Math.floor(a * step); i < Math.min(rows, Math.ceil((a + 1) * step)); i++) for (let j = Math.floor(b * step); j < Math.min(n, Math.ceil((b + 1) * step)); j++) if (!(map.causal && j > i) && matrix[i * n + j] > most) most = matrix[i * n + j];
      if (most < 0) continue;
      context.fillStyle = color(top > 0 ? share(most) : 0);
      context.fillRect(b * side, a * side, side + 0.2, side + 0.2);
    }
  }
}

// --- one matrix
function decoded(map) {
  if (map.matrix) return map;
  const bytes = Uint8Array.from(atob(map.entries), (letter) => letter.charCodeAt(0)), flat = new Float32Array(bytes.buffer), n = map.n;
  map.rows = map.queries ? map.queries.length : n;  // cross attention has queries of another text
  map.matrix = new Float32Array(map.rows * n);
  if (map.causal) for (let i = 0, k = 0; i < n; i++) for (let j = 0; j <= i; j++) map.matrix[i * n + j] = flat[k++];
  else map.matrix.set(flat);
  map.pairs = [];
  if (!map.queries) for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) map.pairs.push([i, j, Math.max(map.matrix[i * n + j], map.matrix[j * n + i])]);
  return map;
}

function choose(layer, head) {
  Object.assign(state, { layer, head, query: null });
  const own = data.maps.filter((map) => map.layer === layer && map.head === head && (!data.is_of_texts || map.input === placeOfInput()));
  state.map = own.length ? decoded(own.find(isHere) || own[0]) : null;
  const menu = at("map");
  menu.replaceChildren();
  own.forEach((map, index) => {
    const words = [data.checkpoints[map.checkpoint], data.inputs[map.input % data.inputs.length], map.sample === undefined ? "" : `sample ${map.sample}`];
    const option = element(menu, "option", words.filter((word) => word).map(isolated).join(", ") || "the sentence");
    option.value = index;
    option.selected = map === state.map;
  });
  menu.onchange = () => { state.map = decoded(own[Number(menu.value)]); state.query = null; drawMap(); };
  at("of-map").hidden = !own.length || (own.length === 1 && own[0].sample === undefined);
  at("head-title").textContent = `Layer ${layer}, head ${head}`;
  drawHeads();
  drawThumbnails();
  drawNumbers();
  drawMap();
  remember();
}

function drawMap() {
  const map = state.map;
  at("of-matrix").hidden = !map;
  at("why").textContent = map ? "" : data.without;
  if (!map) return;
  if (state.query === null) state.query = map.rows - 1;
  drawMatrix();
  drawPictures();
  drawTokens();
  drawLines();
  document.querySelectorAll(".square").forEach((node) => { node.hidden = !!map.queries; });  // one text has a graph, two have none
  if (map.queries) return;
  drawGraph();
  drawSpectrum();
}
function query(row) {
  state.query = row;
  drawMap();
}

const MARGIN = 74;
const sideOf = (map) => (480 - MARGIN - 4) / Math.max(map.n, map.rows);
function shareOf(top) {  // of the largest entry, or of its logarithm above one in ten thousand
  return at("log").checked && top > 1e-4 ? (v) => 1 + Math.log10(Math.max(v, 1e-4) / top) / Math.log10(top / 1e-4) : (v) => v / top;
}
function drawMatrix() {
  const { n, rows, matrix, tokens } = state.map, queries = state.map.queries || tokens, canvas = at("matrix"), context = canvas.getContext("2d"), size = 480, side = sideOf(state.map);
  const wide = side * n, high = side * rows;
  canvas.width = size * 2;
  canvas.height = Math.ceil((MARGIN + high + 4) * 2);
  context.scale(2, 2);
  const top = largest(matrix), share = shareOf(top);
  context.fillStyle = "rgba(128,128,128,0.16)";  // what stays of it is hidden from the query, or no number
  context.fillRect(MARGIN, MARGIN, wide, high);
  for (let i = 0; i < rows; i++) for (let j = 0; j < (state.map.causal ? i + 1 : n); j++) {
    const value = matrix[i * n + j];
    if (Number.isNaN(value)) continue;
    context.fillStyle = color(top > 0 ? share(value) : 0);
    context.fillRect(MARGIN + j * side, MARGIN + i * side, side + 0.25, side + 0.25);
  }
  drawBorder(context, side, wide, high);
  context.strokeStyle = ink("--accent");
  context.lineWidth = 1;
  context.strokeRect(MARGIN, MARGIN + state.query * side, wide, side);
  context.fillStyle = ink("--soft");
  context.font = `${Math.max(8, Math.min(11, side))}px system-ui, "DejaVu Sans", sans-serif`;
  context.textBaseline = "middle";
  const every = Math.ceil(11 / side);
  context.textAlign = "right";
  for (let k = 0; k < rows; k += every) context.fillText(short(compact(visible(queries[k]))), MARGIN - 5, MARGIN + (k + 0.5) * side);
  context.textAlign = "left";
  context.fillText("query ↓  key →", 2, 8);
  context.rotate(-Math.PI / 2);  // keys are written upwards
  for (let k = 0; k < n; k += every) context.fillText(short(compact(visible(tokens[k]))), 5 - MARGIN, MARGIN + (k + 0.5) * side);
  const best = Math.max(0, matrix.indexOf(top));
  say(Math.floor(best / n), best % n, "largest: ");
}
// --- where an answer begins, and whose queries are its own
function drawBorder(context, side, wide, high) {
  const map = state.map;
  at("answer-facts").hidden = !map.answer;
  if (!map.answer) return;
  const [start, stop] = map.answer, ends = [start, stop].filter((end) => end > 0 && end < map.rows), across = !map.queries;
  for (const [style, dash] of [["#fff", []], ["#000", [5, 4]]]) {  // dashes that show on every colour
    context.strokeStyle = style;
    context.lineWidth = 1.6;
    context.setLineDash(dash);
    context.beginPath();
    for (const end of ends) {
      context.moveTo(MARGIN, MARGIN + end * side);
      context.lineTo(MARGIN + wide, MARGIN + end * side);
      if (!across) continue;
      context.moveTo(MARGIN + end * side, MARGIN);
      context.lineTo(MARGIN + end * side, MARGIN + high);
    }
    context.stroke();
  }
  context.setLineDash([]);
  context.fillStyle = ink("--accent");
  context.fillRect(MARGIN - 4, MARGIN + start * side, 3, (stop - start) * side);
  if (across) context.fillRect(MARGIN + start * side, MARGIN - 4, (stop - start) * side, 3);
  at("answer-facts").textContent = answerFacts(map, across);
}
function answerFacts(map, across) {
  const [start, stop] = map.answer, words = `The answer is queries ${start} to ${stop - 1}, at the bar; dashed lines are its border.`;
  if (!across || !start) return words;
  let toPrompt = 0, toAnswer = 0;
  for (let i = start; i < stop; i++) for (let j = 0; j < stop; j++) if (j < start) toPrompt += map.matrix[i * map.n + j]; else toAnswer += map.matrix[i * map.n + j];
  const count = stop - start;
  return `${words} They give ${shown(toPrompt / count)} of their attention to the prompt and ${shown(toAnswer / count)} to the answer.`;
}
function say(i, j, lead = "") {
  const { n, matrix, tokens } = state.map, value = matrix[i * n + j];
  at("cell").textContent = `${lead}${isolated(visible((state.map.queries || tokens)[i]))} (${i}${isAnswer(state.map, i) ? ", answer" : ""}) → ${isolated(visible(tokens[j]))} (${j}): ${state.map.causal && j > i ? "not visible" : shown(value)}`;
}
function under(event) {
  const box = at("matrix").getBoundingClientRect(), unit = box.width / 480, side = sideOf(state.map) * unit;
  const place = (position, start) => Math.floor((position - start - MARGIN * unit) / side);
  const i = place(event.clientY, box.top), j = place(event.clientX, box.left);
  return i >= 0 && j >= 0 && i < state.map.rows && j < state.map.n ? [i, j] : null;
}

// --- the attention of one query on the picture that it reads
function pixelsOf(picture) {  // a picture as a canvas of its own size
  if (!picture.canvas) {
    const bytes = Uint8Array.from(atob(picture.rgb), (letter) => letter.charCodeAt(0)), image = new ImageData(picture.width, picture.height);
    for (let i = 0; i < picture.width * picture.height; i++) image.data.set([bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2], 255], 4 * i);
    picture.canvas = document.createElement("canvas");
    Object.assign(picture.canvas, { width: picture.width, height: picture.height });
    picture.canvas.getContext("2d").putImageData(image, 0, 0);
  }
  return picture.canvas;
}
function drawPictures() {
  const map = state.map, grids = (data.grids || [])[map.input] || [], holder = emptied("pictures"), names = map.queries || map.tokens;
  at("of-picture").hidden = !grids.length;
  if (!grids.length) return;
  const row = map.matrix.subarray(state.query * map.n, state.query * map.n + map.n);
  const top = largest(Array.from(row).filter((_, key) => grids.some((grid) => key >= grid.first && key < grid.first + grid.rows * grid.columns)));
  let share = 0;
  grids.forEach((grid, place) => {
    for (let key = grid.first; key < grid.first + grid.rows * grid.columns; key++) share += row[key];
    const picture = data.pictures[grid.picture], words = grids.length > 1 ? ` ${place + 1}` : "";
    drawPicture(holder, grid, picture, row, top, `attention to picture${words}`);
    if (picture) drawPicture(holder, grid, picture, null, 0, `picture${words}`);
  });
  at("picture-facts").textContent = `What the query ${isolated(visible(names[state.query]))} (${state.query}) sees: ${shown(share)} of its attention goes to the picture${grids.length > 1 ? "s" : ""}; the brightest patch gets ${shown(top)}.`;
}
function drawPicture(holder, grid, picture, row, top, label) {
  const canvas = element(element(holder, "figure"), "canvas"), context = canvas.getContext("2d");
  const ratio = picture ? picture.height / picture.width : grid.rows / grid.columns, wide = 480, high = Math.round(wide * ratio);
  Object.assign(canvas, { width: wide, height: high, title: label });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  canvas.className = row ? "overlay" : "plain";
  context.imageSmoothingEnabled = false;
  if (picture) context.drawImage(pixelsOf(picture), 0, 0, wide, high);
  const across = wide / grid.columns, down = high / grid.rows, cellOf = (key) => [Math.floor((key - grid.first) / grid.columns) * down, ((key - grid.first) % grid.columns) * across];
  if (row) for (let key = grid.first; key < grid.first + grid.rows * grid.columns; key++) {
    const [y, x] = cellOf(key), light = top > 0 ? row[key] / top : 0;
    context.fillStyle = picture ? `rgba(0,0,0,${(0.88 * (1 - light)).toFixed(3)})` : color(light);
    context.fillRect(x, y, across + 0.3, down + 0.3);
  }
  const inside = !state.map.queries && state.query >= grid.first && state.query < grid.first + grid.rows * grid.columns;
  if (inside) {  // where the query itself is
    const [y, x] = cellOf(state.query);
    context.strokeStyle = ink("--accent");
    context.lineWidth = 3;
    context.strokeRect(x + 1.5, y + 1.5, across - 3, down - 3);
  }
  const keyAt = (event) => {
    const box = canvas.getBoundingClientRect(), place = (value, count) => Math.min(count - 1, Math.max(0, Math.floor(value * count)));
    return grid.first + place((event.clientY - box.top) / box.height, grid.rows) * grid.columns + place((event.clientX - box.left) / box.width, grid.columns);
  };
  canvas.addEventListener("mousemove", (event) => say(state.query, keyAt(event)));
  if (!state.map.queries) canvas.addEventListener("click", (event) => query(keyAt(event)));
}

function drawTokens() {
  const { n, matrix, tokens, queries, causal } = state.map, holder = emptied("tokens"), row = matrix.subarray(state.query * n, state.query * n + n), top = Math.max(...row);
  const part = state.map.answer ? (isAnswer(state.map, state.query) ? ", of the answer" : state.query < state.map.answer[0] ? ", of the prompt" : ", behind the answer") : "";
  element(holder, "div", `What the query ${isolated(visible((queries || tokens)[state.query]))} (${state.query}${part}) attends to. Click a token to make it the query.${part ? " The answer is underlined." : ""}`, "lead");
  const asQuery = (node, place) => {
    node.classList.toggle("chosen", place === state.query);
    node.classList.toggle("answer", isAnswer(state.map, place));
    node.addEventListener("click", () => query(place));
  };
  (queries || []).forEach((token, place) => asQuery(element(holder, "span", visible(token), "token"), place));
  if (queries) element(holder, "div", "reads", "lead");
  tokens.forEach((token, key) => {
    const node = element(holder, "span", visible(token), "token");
    if (causal && key > state.query) node.classList.add("hidden-key");
    else if (row[key] > 0 && top > 0) node.style.background = `rgba(200, 80, 10, ${(0.75 * row[key] / top).toFixed(3)})`;
    node.title = `key ${key}: ${shown(row[key])}`;
    if (!queries) asQuery(node, key);
  });
}

// --- the graph of pairs at or above a threshold, and the bars it belongs to
const threshold = () => Number((10 ** (-4 + 4 * Number(at("threshold").value) / 1000)).toPrecision(3));
const barsOf = (dimension) => state.map.bars.filter((bar) => bar[0] === dimension);
function drawGraph() {
  const { n, pairs, tokens, betti } = state.map, t = threshold(), picture = at("graph"), size = 480, radius = n > 40 ? 215 : 158, middle = size / 2;
  at("threshold-value").textContent = shown(t);
  const edges = pairs.filter((pair) => pair[2] >= t), degree = new Array(n).fill(0);
  for (const [i, j] of edges) { degree[i]++; degree[j]++; }
  // a pair of weight w enters at 1 − w
  const [, components, loops] = betti.filter(([scale]) => scale <= 1 - t).at(-1) ?? [0, "undefined", "undefined"];
  picture.replaceChildren();
  picture.setAttribute("viewBox", `0 0 ${size} ${size}`);
  const spot = (k, r = radius) => [middle + r * Math.sin(2 * Math.PI * k / n), middle - r * Math.cos(2 * Math.PI * k / n)];
  const strongest = largest(pairs.map((pair) => pair[2])), drawn = edges.length > 6000 ? [...edges].sort((a, b) => b[2] - a[2]).slice(0, 6000) : edges;
  for (const [i, j, weight] of drawn) {
    const [x1, y1] = spot(i), [x2, y2] = spot(j), chosen = i === state.query || j === state.query;
    svg(picture, "line", { x1, y1, x2, y2, "stroke-opacity": (0.12 + 0.75 * Math.sqrt(weight / strongest)).toFixed(2), "stroke-width": chosen ? 1.6 : 0.9 });
  }
  const most = Math.max(1, ...degree);
  for (let k = 0; k < n; k++) {
    const [x, y] = spot(k), node = svg(picture, "circle", { cx: x, cy: y, r: 3 + 7 * degree[k] / most });
    if (k === state.query) node.classList.add("chosen");
    node.classList.toggle("answer", isAnswer(state.map, k));
    svg(node, "title", {}, `${isolated(visible(tokens[k]))} (${k}), ${degree[k]} neighbours`);
    node.addEventListener("click", () => query(k));
    if (n > 40) continue;
    const angle = 360 * k / n, flip = angle > 180, [u, v] = spot(k, radius + 13);
    svg(picture, "text", { x: u, y: v, "text-anchor": flip ? "end" : "start", "dominant-baseline": "middle", transform: `rotate(${angle - 90 + (flip ? 180 : 0)} ${u} ${v})` }, short(compact(visible(tokens[k]))));
  }
  const hub = degree.indexOf(Math.max(...degree)), total = n * (n - 1) / 2;
  at("graph-facts").textContent = `${edges.length} of ${total} pairs${drawn.length < edges.length ? ` (the strongest ${drawn.length} drawn)` : ""} · β₀ ${components} · β₁ ${loops}` +
    (edges.length ? ` · hub ${isolated(visible(tokens[hub]))} (${hub}), degree ${degree[hub]}` : "");
  drawDiagram(t);
}

function frame(picture, xLabel, yLabel) {
  picture.replaceChildren();
  picture.setAttribute("viewBox", "0 0 480 384");
  const box = { left: 46, right: 466, top: 16, bottom: 344 };
  svg(picture, "path", { class: "axis", d: `M${box.left} ${box.top}V${box.bottom}H${box.right}` });
  svg(picture, "text", { x: (box.left + box.right) / 2, y: 378, "text-anchor": "middle" }, xLabel);
  svg(picture, "text", { x: 12, y: (box.top + box.bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(box.top + box.bottom) / 2})` }, yLabel);
  return box;
}
function ticks(picture, box, xs, ys, x, y) {
  for (const [value, label] of xs) { svg(picture, "path", { class: "axis", d: `M${x(value)} ${box.bottom}v4` }); svg(picture, "text", { x: x(value), y: box.bottom + 16, "text-anchor": "middle" }, label); }
  for (const [value, label] of ys) { svg(picture, "path", { class: "axis", d: `M${box.left} ${y(value)}h-4` }); svg(picture, "text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, label); }
}

function drawDiagram(t) {
  const picture = at("diagram"), box = frame(picture, "birth", "death"), { bars } = state.map, infinite = box.top + 8;
  const x = (v) => box.left + 12 + v * (box.right - box.left - 24), y = (v) => box.bottom - v * (box.bottom - box.top - 34);
  const steps = [0, 0.2, 0.4, 0.6, 0.8, 1].map((v) => [v, String(v)]);
  ticks(picture, box, steps, steps, x, y);
  svg(picture, "text", { x: box.left - 7, y: infinite + 4, "text-anchor": "end" }, "∞");
  svg(picture, "path", { class: "guide", d: `M${box.left} ${infinite}H${box.right}M${x(0)} ${y(0)}L${x(1)} ${y(1)}` });
  svg(picture, "rect", { class: "region", x: box.left, y: box.top, width: x(1 - t) - box.left, height: y(1 - t) - box.top });
  for (const [dimension, birth, death] of bars) {
    const node = svg(picture, "circle", { class: `h${dimension}`, cx: x(birth), cy: death === null ? infinite : y(death), r: 3.6 });
    svg(node, "title", {}, `H${dimension}: ${shown(birth)} to ${death === null ? "∞" : shown(death)}`);
  }
  at("diagram-facts").textContent = `${barsOf(0).length} bars in H0 (rings), ${barsOf(1).length} in H1 (dots). A pair of weight w enters at 1 − w; bars in the tinted corner are alive at the threshold ${shown(t)}.`;
}

function drawSpectrum() {
  const picture = at("spectrum"), found = state.map.spectrum;
  if (found.reason) { picture.replaceChildren(); picture.setAttribute("viewBox", "0 0 480 4"); at("spectrum-facts").textContent = found.reason; return; }
  const law = data.laws[found.law], values = found.values, count = values.length, box = frame(picture, "eigenvalue", "share below");
  const low = Math.log10(Math.max(1e-6, Math.min(...values.filter((v) => v > 0)) / 2)), high = Math.log10(1.6 * Math.max(values[count - 1], law.edge));
  const x = (v) => box.left + Math.min(1, Math.max(0, (Math.log10(Math.max(v, 1e-300)) - low) / (high - low))) * (box.right - box.left), y = (v) => box.bottom - v * (box.bottom - box.top);
  const powers = [];
  for (let p = Math.ceil(low); p <= high; p++) powers.push([10 ** p, p >= -2 && p <= 2 ? String(Number((10 ** p).toPrecision(2))) : `1e${p}`]);
  ticks(picture, box, powers, [0, 0.25, 0.5, 0.75, 1].map((v) => [v, String(v)]), x, y);
  svg(picture, "path", { class: "guide", d: `M${x(law.edge)} ${box.top}V${box.bottom}` });
  svg(picture, "path", { class: "law", d: `M${box.left} ${y(0)}` + law.x.map((v, k) => `L${x(v).toFixed(1)} ${y(law.cdf[k]).toFixed(1)}`).join("") + `H${box.right}` });
  let path = `M${box.left} ${y(0)}`;
  values.forEach((v, k) => { path += `H${x(v).toFixed(1)}V${y((k + 1) / count).toFixed(1)}`; });
  svg(picture, "path", { class: "map", d: path + `H${box.right}` });
  const [theory, own] = found.between;
  svg(picture, "path", { class: "ks", d: `M${x(found.at)} ${y(theory)}V${y(own)}` });
  const right = x(found.at) > box.right - 70;
  svg(picture, "text", { class: "ks-text", x: x(found.at) + (right ? -6 : 6), y: y((theory + own) / 2) + 4, "text-anchor": right ? "end" : "start" }, `KS ${found.ks.toFixed(2)}`);
  at("spectrum-facts").textContent = `Squared singular values of the row-standardised map over n (line) against the ${law.name} of random rows (dashed). KS ${found.ks.toFixed(3)}; ${found.outliers} of ${count} beyond the edge ${shown(law.edge)}.`;
}

// --- choices, and the address that remembers them
function remember() {
  if (!location.protocol.startsWith("http") && location.protocol !== "file:") return;  // a notebook's frame has no address
  const words = new URLSearchParams({ metric: data.metrics[state.metric].name, layer: state.layer, head: state.head, threshold: shown(threshold()) });
  if (data.texts.length > 1) words.set("text", state.text);
  history.replaceState(null, "", `#${words}`);
}
function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const metric = data.metrics.findIndex((metric) => metric.name === words.get("metric"));
  if (metric >= 0) state.metric = metric;
  const text = Number(words.get("text"));
  if (Number.isInteger(text) && text >= 0 && text < data.texts.length) state.text = text;
  const t = Number(words.get("threshold"));
  at("threshold").value = t > 0 && t <= 1 ? Math.round(250 * (Math.log10(t) + 4)) : 500;
  const layer = Number(words.get("layer")), head = Number(words.get("head"));
  if (words.has("layer") && data.layers.includes(layer) && data.heads.includes(head)) return [layer, head];
  if (data.open) return data.open;
  const kept = data.maps.filter(isHere);
  const withMatrix = (kept.length ? kept : data.maps).map((map) => [map.layer, map.head]);
  const own = withMatrix.length ? withMatrix : data.layers.flatMap((layer) => data.heads.map((head) => [layer, head]));
  const value = (one) => valueOf(state.metric, ...one) ?? -Infinity;  // the strongest head of the metric
  return own.reduce((a, b) => (value(b) > value(a) ? b : a));
}
function menu(id, names) {
  names.forEach((name, index) => { element(at(id), "option", name).value = index; });
  at(`of-${id}`).hidden = names.length < 2;
  chooser(id);
}
function chooser(key) {
  at(key).value = state[key];
  at(key).addEventListener("change", () => { state[key] = Number(at(key).value); choose(state.layer, state.head); });
}
const groups = new Map();
data.metrics.forEach((metric, index) => {
  if (!groups.has(metric.group)) { const group = element(at("metric"), "optgroup"); group.label = metric.group; groups.set(metric.group, group); }
  element(groups.get(metric.group), "option", metric.label).value = index;
});
const first = recall();
chooser("metric");
menu("checkpoint", data.checkpoints);
menu("text", data.texts.map((text, place) => `${place} · ${text}`));
menu("input", data.inputs);
data.notes.forEach((note) => element(at("notes"), "p", note));
at("log").addEventListener("change", () => { drawMatrix(); drawThumbnails(); });
at("of-thumbnails").addEventListener("toggle", drawThumbnails);
at("of-lines").addEventListener("toggle", drawLines);
at("every-query").addEventListener("change", drawLines);
at("lines").addEventListener("keydown", moveQuery);
if (window.parent !== window) new ResizeObserver(() => window.parent.postMessage({ attnscopeHeight: document.documentElement.offsetHeight }, "*")).observe(document.documentElement);
at("threshold").addEventListener("input", () => { drawGraph(); remember(); });
at("matrix").addEventListener("mousemove", (event) => { const cell = under(event); if (cell) say(...cell); });
at("matrix").addEventListener("click", (event) => { const cell = under(event); if (cell) query(cell[0]); });
const asked = new URLSearchParams(location.hash.slice(1)).get("query");  // an address may name the query to begin with
choose(...first);  // writes the address anew
if (asked !== null && state.map && Number(asked) >= 0 && Number(asked) < state.map.rows) query(Number(asked));
