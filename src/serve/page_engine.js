// SPDX-License-Identifier: Apache-2.0
// What the engine does: figures with two minutes of history, shares of a step, experts.
const round = (x, digits) => (x || 0).toFixed(digits), clock = (t) => new Date(t).toLocaleTimeString();
const minutes = 120;  // seconds of history
let history = [], worked = null;  // worked: the last state in which something ran, and when
const series = [  // label, value in words, number of the curve
  [() => "Tokens per second, answers", (s) => round(s.new_tokens_per_s, 1), (s) => s.new_tokens_per_s],
  [() => "Tokens per second, prompts", (s) => round(s.prompt_tokens_per_s, 1), (s) => s.prompt_tokens_per_s],
  [(s) => "Running, of " + s.slots, (s) => s.running, (s) => s.running],
  [() => "Waiting", (s) => s.waiting, (s) => s.waiting],
  [() => "KV blocks used / cached / free", (s) => s.kv_blocks.used + " / " + s.kv_blocks.cached + " / " + s.kv_blocks.free, (s) => s.kv_blocks.used],
  [() => "First token, p50 / p99", (s) => round(1000 * s.first_token_seconds.p50, 0) + " / " + round(1000 * s.first_token_seconds.p99, 0) + " ms", (s) => s.first_token_seconds.p50],
  [() => "Between tokens, p50 / p99", (s) => round(1000 * s.gap_seconds.p50, 1) + " / " + round(1000 * s.gap_seconds.p99, 1) + " ms", (s) => s.gap_seconds.p50],
  [() => "Wanted experts that were in memory", (s) => (s.experts_on_disk ? round(100 * s.experts_on_disk.hits / (s.experts_on_disk.hits + s.experts_on_disk.misses), 1) : 100) + " %", (s) => s.experts_on_disk ? s.experts_on_disk.misses : 0],
  [(s) => "Read from memory" + (s.read_roof_bytes_per_s ? ", " + round(100 * s.read_bytes_per_s / s.read_roof_bytes_per_s, 1) + " % of the roof" : ""), (s) => round(s.read_bytes_per_s / 1e9, 2) + " GB/s", (s) => s.read_bytes_per_s],
];
const svg = (name, attributes) => { const e = document.createElementNS($("curve").content.firstElementChild.namespaceURI, name); for (const k in attributes) e.setAttribute(k, attributes[k]); return e; };
// Where no state came for a while the curve has a gap.
function curve(node, index) {
  const now = Date.now(), most = Math.max(...history.map((h) => h.values[index]), 0), lines = [];
  history.forEach((h, i) => {
    if (!i || h.time - history[i - 1].time > 5000) lines.push([]);
    lines[lines.length - 1].push((minutes - (now - h.time) / 1000).toFixed(1) + "," + (29 - 28 * (most ? h.values[index] / most : 0)).toFixed(1));
  });
  node.replaceChildren(svg("line", { x1: 0, x2: minutes, y1: 30, y2: 30 }), ...lines.map((l) => svg("polyline", { points: l.join(" ") })));
}
function figures(s) {
  const box = $("figures");
  if (!box.children.length) box.append(...series.map(([label]) => {
    const d = el("div", undefined, { class: "figure" });
    d.append(el("b"), el("span"), svg("svg", { viewBox: "0 0 " + minutes + " 30", preserveAspectRatio: "none", role: "img", "aria-label": label(s).split(",")[0] + ", the last two minutes" }));
    return d;
  }));
  series.forEach(([label, value], i) => {
    const [number, name, line] = box.children[i].children;
    number.textContent = value(s);
    name.textContent = label(s);
    curve(line, i);
  });
  if ($("history-table").hidden) return;
  const table = el("table"), head = table.insertRow(), now = Date.now();
  table.append(el("caption", "The last two minutes", { class: "hidden" }));
  for (const name of ["Seconds ago", "Answers, tokens/s", "Prompts, tokens/s", "Running", "Waiting", "KV blocks used"]) head.append(el("th", name, { scope: "col" }));
  for (let ago = 0; ago < minutes; ago += 10) {
    const h = history.filter((x) => Math.abs((now - x.time) / 1000 - ago) < 5).pop();
    if (!h) continue;
    const row = table.insertRow();
    row.append(el("th", ago, { scope: "row" }), ...h.values.slice(0, 5).map((v) => el("td", Number.isInteger(v) ? v : round(v, 1))));
  }
  $("history-table").replaceChildren(table);
}
function phases(s) {
  const table = el("table"), sum = Object.values(s.phase_seconds).reduce((a, b) => a + b, 0) || 1;
  table.append(el("caption", "Share of the last seconds", { class: "hidden" }));
  for (const name in s.phase_seconds) {
    const row = table.insertRow();
    const share = 100 * s.phase_seconds[name] / sum, bar = el("div", undefined, { class: "bar" }), cell = el("td");
    bar.style.width = share + "%";
    cell.append(bar);
    row.append(el("th", name, { scope: "row" }), el("td", round(share, 1) + " %"), cell);
  }
  $("phases").replaceChildren(table);
}
function heat(s) {
  const x = s.experts, canvas = $("heat");
  canvas.hidden = !x;
  if (!x) { $("experts-note").textContent = "Nothing has run yet, or this model has no experts."; return; }
  const most = x.rows.reduce((a, b) => Math.max(a, b), 0), bytes = x.rows.map((r) => 255 * Math.log1p(r) / Math.log1p(Math.max(most, 1)));
  $("experts-note").textContent = "Layers from top to bottom, experts from left to right, busier is brighter: the busiest ran " + most + " rows.";
  canvas.width = x.experts;
  canvas.height = x.layers;
  canvas.style.height = Math.min(20 * x.layers, 400) + "px";
  const context = canvas.getContext("2d"), image = context.createImageData(x.experts, x.layers);
  bytes.forEach((b, i) => { image.data.set([24 + 0.9 * b, 28 + 0.75 * b, 60 + 60 * Math.sin(b / 81), 255].map(Math.round), 4 * i); });
  context.putImageData(image, 0, 0);
  if ($("heat-table").hidden) return;
  const table = el("table");
  table.append(el("caption", "Rows per layer and expert, last ten seconds", { class: "hidden" }));
  for (let l = 0; l < x.layers; ++l) {
    const row = table.insertRow();
    row.append(el("th", "layer " + l, { scope: "row" }));
    for (let e = 0; e < x.experts; ++e) row.append(el("td", x.rows[l * x.experts + e]));
  }
  $("heat-table").replaceChildren(table);
}
// Rates fall to nothing when nothing runs; times, shares and experts stay those of the last work.
function received(s) {
  const now = Date.now(), works = Object.values(s.phase_seconds).some((v) => v > 0);
  state = s;
  if (works || !worked) worked = { state: s, time: now, works };
  history.push({ time: now, values: series.map(([, , number]) => number(s) || 0) });
  history = history.filter((h) => now - h.time <= 1000 * minutes);
  tell(works || !worked.works ? "" : "Nothing ran in the last ten seconds: times, shares and experts are of " + clock(worked.time) + ".");
}
const tell = (text) => { if ($("engine-state").textContent !== text) $("engine-state").textContent = text; };
function paintEngine() {
  if (!state) return;
  const last = worked.state;
  figures({ ...state, first_token_seconds: last.first_token_seconds, gap_seconds: last.gap_seconds });
  phases(last);
  heat(last);
}
// By fetch and not by EventSource, which cannot carry a key.
async function watch() {
  if (source || document.hidden || $("engine").hidden) return;
  const own = source = new AbortController();
  try {
    const r = await fetch("api/events" + asked(), { headers: headers(), signal: source.signal });
    if (r.status === 401) askKey();
    if (!r.ok) throw new Error();
    for await (const events of streamed(r)) {
      events.forEach(received);
      paintEngine();
    }
  } catch (e) { /* gone: tried again below */ }
  if (!own.signal.aborted) tell(history.length ? "The server does not answer: these are the values of " + clock(history[history.length - 1].time) + "." : "The server does not answer.");
  source = null;
  if (!document.hidden && !$("engine").hidden) setTimeout(watch, 2000);
}
function unwatch() { if (source) source.abort(); }
document.addEventListener("visibilitychange", () => (document.hidden ? unwatch() : watch()));
function folding(button, box, open, closed) {
  $(button).addEventListener("click", () => {
    const shows = $(box).hidden;
    $(box).hidden = !shows;
    $(button).setAttribute("aria-expanded", shows);
    $(button).textContent = shows ? open : closed;
    paintEngine();
  });
}
folding("table-button", "heat-table", "Hide the table", "Show as table");
folding("history-button", "history-table", "Hide the table of the last two minutes", "Show the last two minutes as a table");
