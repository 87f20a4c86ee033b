// SPDX-License-Identifier: MIT
"use strict";
// Lines from queries on the left to keys on the right, as wide and as dark as the attention between them.
const MOST_LINES = 1500, HIGHEST = 1600;

function drawLines() {
  const picture = at("lines"), map = state.map;
  picture.replaceChildren();
  if (!map || !at("of-lines").open) return;
  const { n, rows, matrix, tokens } = map, queries = map.queries || tokens, isOfEvery = at("every-query").checked;
  const step = Math.min(16, HIGHEST / Math.max(n, rows)), left = 150, right = 330, height = step * Math.max(n, rows) + 12;
  picture.setAttribute("viewBox", `0 0 480 ${height}`);
  const y = (place) => 8 + step * (place + 0.5), top = largest(matrix);
  const strongest = strongestEntries(map, isOfEvery);
  for (const [i, j, weight] of strongest.entries) {
    const share = weight / top, isChosen = i === state.query;
    svg(picture, "line", {
      x1: left + 4, y1: y(i), x2: right - 4, y2: y(j), class: isChosen ? "chosen" : "",
      "stroke-opacity": (isChosen ? 0.25 + 0.75 * share : 0.7 * share).toFixed(3), "stroke-width": (0.4 + 2.6 * share).toFixed(2),
    });
  }
  const every = Math.ceil(11 / step), keys = new Set(strongest.entries.filter(([i]) => i === state.query).slice(-3).map(([, j]) => j));
  const write = (token, place, x, anchor, isChosen) => svg(picture, "text", { x, y: y(place) + 4, "text-anchor": anchor, class: isChosen ? "chosen" : "" }, short(compact(visible(token))));
  queries.forEach((token, place) => {
    const isChosen = place === state.query;
    if (place % every && !isChosen) return;
    const name = write(token, place, left - 2, "end", isChosen);
    name.classList.toggle("answer", isAnswer(map, place));
    name.addEventListener("click", () => query(place));
  });
  tokens.forEach((token, place) => { if (place % every === 0 || keys.has(place)) write(token, place, right + 2, "start", keys.has(place)); });
  const bound = strongest.count > strongest.entries.length ? ` The strongest ${strongest.entries.length} of ${strongest.count} lines are drawn.` : "";
  at("line-facts").textContent = `From each query on the left to the keys on the right; width and darkness are the attention, those of ${isolated(visible(queries[state.query]))} (${state.query}) stand out. Click a query, or choose one with the arrow keys.${bound}`;
}
// the entries that lines are drawn of, the strongest last: of the chosen query all that can be seen, of the others the strongest
function strongestEntries(map, isOfEvery) {
  const { n, rows, matrix } = map, chosen = [], others = [], floor = 0.01 * largest(matrix);
  for (let i = 0; i < rows; i++) for (let j = 0; j < n; j++) {
    const weight = matrix[i * n + j];
    if (!(weight > floor)) continue;  // NaN is none
    if (i === state.query) chosen.push([i, j, weight]); else if (isOfEvery) others.push([i, j, weight]);
  }
  const ascending = (a, b) => a[2] - b[2];
  chosen.sort(ascending);
  others.sort(ascending);
  const entries = [...others, ...chosen].slice(-MOST_LINES);
  return { entries, count: others.length + chosen.length };
}
function moveQuery(event) {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step || !state.map) return;
  event.preventDefault();
  query(Math.min(state.map.rows - 1, Math.max(0, state.query + step)));
  at("lines").focus();
  const holder = at("of-drawn-lines"), row = picturedRow(state.query);  // the chosen query stays in sight
  if (row < holder.scrollTop || row > holder.scrollTop + holder.clientHeight - 24) holder.scrollTop = row - holder.clientHeight / 2;
}
function picturedRow(place) {
  return at("lines").clientHeight * (place + 0.5) / Math.max(state.map.n, state.map.rows);
}
