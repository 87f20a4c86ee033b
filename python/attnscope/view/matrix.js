// SPDX-License-Identifier: MIT
"use strict";
// The matrix of the chosen head, and small pictures of all; stands before view.js, whose tools it uses.
// --- every matrix as a small picture, made when they are asked for
const SMALL = 44;
function drawThumbnails() {
  const room = at("thumbnails"), all = data.maps.filter((map) => map.checkpoint === state.checkpoint && map.input === state.input);
  const first = new Map();
  for (const map of all) { const key = `${map.layer} ${map.head}`; if (!first.has(key)) first.set(key, map); }
  at("of-thumbnails").hidden = first.size < 2;
  room.replaceChildren();
  if (first.size < 2 || !at("of-thumbnails").open) return;
  room.style.gridTemplateColumns = `repeat(${data.heads.length}, minmax(0, ${SMALL + 4}px))`;
  for (const layer of data.layers) for (const head of data.heads) {
    const canvas = element(room, "canvas"), map = first.get(`${layer} ${head}`);
    canvas.width = canvas.height = SMALL;
    canvas.title = `L${layer}H${head}`;
    if (!map) continue;
    canvas.classList.toggle("chosen", layer === state.layer && head === state.head);
    canvas.addEventListener("click", () => choose(layer, head));
    const { matrix, n, rows } = decoded(map), context = canvas.getContext("2d"), top = ends(matrix)[1], share = shareOf(top);
    const count = Math.min(SMALL, Math.max(n, rows)), step = Math.max(n, rows) / count, side = SMALL / count;
    for (let a = 0; a < count; a++) for (let b = 0; b < count; b++) {
      let most = -1;  // the largest entry of each tile, so that a single bright cell is not lost
      for (let i = Math.floor(a * step); i < Math.min(rows, Math.ceil((a + 1) * step)); i++) for (let j = Math.floor(b * step); j < Math.min(n, Math.ceil((b + 1) * step)); j++) if (!(map.causal && j > i)) most = Math.max(most, matrix[i * n + j]);
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
  const own = data.maps.filter((map) => map.layer === layer && map.head === head && (!data.stacks || map.input === state.input));
  const near = own.find((map) => map.checkpoint === state.checkpoint && map.input === state.input);
  state.map = own.length ? decoded(near || own[0]) : null;
  const menu = at("map");
  menu.replaceChildren();
  own.forEach((map, index) => {
    const words = [data.checkpoints[map.checkpoint], data.inputs[map.input], map.sample === undefined ? "" : `sample ${map.sample}`];
    const option = element(menu, "option", words.filter((word) => word).join(", ") || "the sentence");
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
  at("matrix-room").hidden = !map;
  at("why").textContent = map ? "" : data.without;
  if (!map) return;
  if (state.query === null) state.query = map.rows - 1;
  drawMatrix();
  drawTokens();
  document.querySelectorAll(".square").forEach((node) => { node.hidden = !!map.queries; });  // one text has a graph, two have none
  if (map.queries) return;
  drawGraph();
  drawSpectrum();
}
function query(row) {
  state.query = row;
  drawMatrix();
  drawTokens();
  if (!state.map.queries) drawGraph();
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
  context.clearRect(0, 0, size, size);
  let top = 0;
  for (const value of matrix) if (value > top) top = value;
  const share = shareOf(top);
  context.fillStyle = "rgba(128,128,128,0.16)";  // what stays of it is hidden from the query, or no number
  context.fillRect(MARGIN, MARGIN, wide, high);
  for (let i = 0; i < rows; i++) for (let j = 0; j < (state.map.causal ? i + 1 : n); j++) {
    const value = matrix[i * n + j];
    if (Number.isNaN(value)) continue;
    context.fillStyle = color(top > 0 ? share(value) : 0);
    context.fillRect(MARGIN + j * side, MARGIN + i * side, side + 0.25, side + 0.25);
  }
  context.strokeStyle = getComputedStyle(document.body).getPropertyValue("--accent");
  context.lineWidth = 1;
  context.strokeRect(MARGIN, MARGIN + state.query * side, wide, side);
  context.fillStyle = getComputedStyle(document.body).getPropertyValue("--soft");
  context.font = `${Math.max(8, Math.min(11, side))}px system-ui, "DejaVu Sans", sans-serif`;
  context.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(11 / side));
  context.textAlign = "right";
  for (let k = 0; k < rows; k += every) context.fillText(short(visible(queries[k])), MARGIN - 5, MARGIN + (k + 0.5) * side);
  context.textAlign = "left";
  for (let k = 0; k < n; k += every) {
    context.save();
    context.translate(MARGIN + (k + 0.5) * side, MARGIN - 5);
    context.rotate(-Math.PI / 2);
    context.fillText(short(visible(tokens[k])), 0, 0);
    context.restore();
  }
  context.textAlign = "left";
  context.fillText("query ↓  key →", 2, 8);
  let best = 0;
  matrix.forEach((value, place) => { if (value > matrix[best]) best = place; });
  say(Math.floor(best / n), best % n, "largest: ");
}
function say(i, j, lead = "") {
  const { n, matrix, tokens } = state.map, value = matrix[i * n + j];
  at("cell").textContent = `${lead}${visible((state.map.queries || tokens)[i])} (${i}) → ${visible(tokens[j])} (${j}): ${state.map.causal && j > i ? "not visible" : shown(value)}`;
}
function under(event) {
  const box = at("matrix").getBoundingClientRect(), unit = box.width / 480, side = sideOf(state.map) * unit;
  const place = (position, start) => Math.floor((position - start - MARGIN * unit) / side);
  const i = place(event.clientY, box.top), j = place(event.clientX, box.left);
  return i >= 0 && j >= 0 && i < state.map.rows && j < state.map.n ? [i, j] : null;
}

function drawTokens() {
  const { n, matrix, tokens, queries, causal } = state.map, room = at("tokens"), row = matrix.subarray(state.query * n, state.query * n + n), top = Math.max(...row);
  room.replaceChildren();
  element(room, "div", `What the query ${visible((queries || tokens)[state.query])} (${state.query}) attends to. Click a token to make it the query.`, "lead");
  (queries || []).forEach((token, at) => {
    const node = element(room, "span", visible(token), "token");
    if (at === state.query) node.classList.add("chosen");
    node.addEventListener("click", () => query(at));
  });
  if (queries) element(room, "div", "reads", "lead");
  tokens.forEach((token, key) => {
    const node = element(room, "span", visible(token), "token");
    if (causal && key > state.query) node.classList.add("hidden-key");
    else if (row[key] > 0 && top > 0) node.style.background = `rgba(200, 80, 10, ${(0.75 * row[key] / top).toFixed(3)})`;
    if (key === state.query && !queries) node.classList.add("chosen");
    node.title = `key ${key}: ${shown(row[key])}`;
    if (!queries) node.addEventListener("click", () => query(key));
  });
}
