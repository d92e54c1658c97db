// SPDX-License-Identifier: Apache-2.0
// The views, and the first request.
// --- views ----------------------------------------------------------------------------------------
const views = ["chat", "engine"];
function view(name) {
  for (const n of views) {
    $(n).hidden = n !== name;
    $("tab-" + n).setAttribute("aria-selected", n === name);
    $("tab-" + n).tabIndex = n === name ? 0 : -1;
  }
  $("menu").hidden = name !== "chat";
  if (name === "engine") { paintEngine(); watch(); } else unwatch();
  scrollTo(0, name === "chat" ? document.documentElement.scrollHeight : 0);
}
views.forEach((n, i) => {
  $("tab-" + n).addEventListener("click", () => view(n));
  $("tab-" + n).addEventListener("keydown", (e) => {
    if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
    const other = views[(i + (e.key === "ArrowRight" ? 1 : views.length - 1)) % views.length];
    view(other);
    $("tab-" + other).focus();
  });
});
// Of several models, the one that is looked at.
const asked = () => (models.length > 1 ? "?model=" + encodeURIComponent(model.name) : "");
$("model").addEventListener("change", () => {
  wanted = $("model").value;
  save();
  history = [];
  worked = state = null;
  unwatch();  // the next one is of the other model
  hello();
});
async function hello() {
  try {
    const r = await fetch("v1/models", { headers: headers() });
    if (r.status === 401) return askKey();
    if (!r.ok) throw new Error((await r.json()).error.message);
    models = (await r.json()).data.filter((m) => !m.root || m.root === m.id).map((m) => ({ name: m.id, context: m.max_model_len }));
    $("model").replaceChildren(...models.map((m) => el("option", m.name, { value: m.name })));
    $("model").hidden = models.length < 2;
    model = models.find((m) => m.name === wanted) || models[0];
    $("model").value = model.name;
    $("title").textContent = models.length > 1 ? "Moebius" : model.name;
    document.title = model.name + " \u00b7 Moebius";
    if (!running) { say(""); draw(); }
    const state = await (await fetch("api/state" + asked(), { headers: headers() })).json();
    $("tool-format").textContent = state.tool_format ? "Calls are read in the format " + state.tool_format + "." : "The model's chat template names no format of calls.";
  } catch (e) {
    say(words(e), true);
    setTimeout(hello, 2000);
  }
}
// Tells of a server that is gone before anybody asks it something, and of its return.
let away = false;
async function pulse() {
  if (!document.hidden) {
    try {
      const r = await fetch("health", { signal: AbortSignal.timeout(5000) });
      if (!r.ok) throw new Error((await r.json()).error.message);
      if (away && running) say("writing");
      else if (away) hello();
      away = false;
    } catch (e) {
      away = true;
      say(words(e), true);
    }
  }
  setTimeout(pulse, 5000);
}
restore(stored());
draw();
hello();
setTimeout(pulse, 5000);
