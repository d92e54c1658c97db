// SPDX-License-Identifier: Apache-2.0
// The conversations: what stays of them in the browser, how they are shown, and answers as they come.
const $ = (id) => document.getElementById(id);
const el = (name, text, attributes) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  for (const key in attributes || {}) node.setAttribute(key, attributes[key]);
  return node;
};
const press = (text, label, act, kind) => {
  const b = el("button", text, { type: "button", class: kind === undefined ? "quiet" : kind, "aria-label": label });
  b.addEventListener("click", () => act(b));
  return b;
};
const names = Array.from(document.querySelectorAll("fieldset input"), (input) => input.id);  // fields of a request
const texts = ["system", "tools", "schema"];
// A chat: { messages: [{ role, content, reasoning_content?, calls?, facts? }] }. facts: { tokens, rate, first, context, cut };
// calls: [{ id, name, arguments, result? }].
let chats = [{ messages: [] }], at = 0, undo = null, failure = "";
let running = null, model = null, models = [], wanted = "", state = null, source = null;
const messages = () => chats[at].messages;
function say(text, bad) { $("state").textContent = text; $("state").className = bad ? "bad" : ""; }

// --- what stays -----------------------------------------------------------------------------------
function save() {
  const settings = {};
  for (const n of names.concat(texts)) settings[n] = $(n).value;
  if (wanted) settings.model = wanted;
  try { localStorage.setItem("moebius", JSON.stringify({ chats, at, settings })); } catch (e) { say("this browser keeps no more: export what you need", true); }
}
const clean = (list) => (Array.isArray(list) ? list : []).filter((m) => m && typeof m.content === "string" && /^(user|assistant)$/.test(m.role));
function restore(saved) {
  const kept = Array.isArray(saved.chats) ? saved.chats : [saved];  // one chat alone: an older page's
  chats = kept.map((c) => ({ messages: clean(c && c.messages) }));
  if (!chats.length) chats = [{ messages: [] }];
  at = Math.min(Math.max(0, saved.at | 0), chats.length - 1);
  const settings = saved.settings || {};
  for (const n of names.concat(texts)) if (typeof settings[n] === "string") $(n).value = settings[n];
  if (typeof settings.model === "string") wanted = settings.model;
}
const stored = () => { try { return JSON.parse(localStorage.getItem("moebius") || "{}"); } catch (e) { return {}; } };
const headers = () => {
  const h = { "Content-Type": "application/json" }, key = sessionStorage.getItem("moebius-key");
  if (key) h.Authorization = "Bearer " + key;
  return h;
};
// Before something is taken away: what was, until the next such thing.
function keep(what) {
  undo = { chats: JSON.stringify(chats), at };
  $("undone").textContent = what;
  $("undo").hidden = false;
}
function forget() { undo = null; $("undo").hidden = true; }
async function copy(text, button) {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else {  // an origin without TLS has no clipboard
      const box = el("textarea");
      box.value = text;
      document.body.append(box);
      box.select();
      document.execCommand("copy");
      box.remove();
    }
    const was = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = was; }, 1500);
  } catch (e) { say("the browser does not let this page copy", true); }
}

// --- the conversation -----------------------------------------------------------------------------
const count = (n) => Math.round(n).toLocaleString("en");
function told(facts) {
  const parts = [count(facts.tokens) + (facts.tokens === 1 ? " token" : " tokens")];
  if (facts.rate) parts.push(facts.rate.toFixed(1) + " tokens/s");
  if (facts.first !== undefined) parts.push("first after " + facts.first.toFixed(2) + " s");
  if (facts.context) parts.push("context " + count(facts.context) + (model && model.context ? " of " + count(model.context) : ""));
  return parts.join(" · ");
}
// Calls of tools, folded; of the last message also a place for what they gave.
function drawCalls(box, message, last) {
  box.replaceChildren(...(message.calls || []).map((call) => {
    const fold = el("details", undefined, { class: "call" });
    let shown = call.arguments;
    try { shown = JSON.stringify(JSON.parse(shown), null, 1); } catch (e) { /* not whole yet */ }
    fold.append(el("summary", "Calls " + call.name), el("pre", shown));
    if (call.result !== undefined && !last) fold.append(el("div", "Result", { class: "soft" }), el("pre", call.result));
    if (last && !running) {
      const input = el("textarea", undefined, { rows: 2, "aria-label": "Result of " + call.name, placeholder: "What " + call.name + " gave" });
      input.value = call.result || "";
      for (const when of ["input", "change"]) input.addEventListener(when, () => { call.result = input.value; save(); });
      fold.open = true;
      fold.append(input);
    }
    return fold;
  }));
  if (last && !running && (message.calls || []).length) box.append(press("Send results", "Send the results", () => { if (!running) answer(); }, "small"));
}
function show(message, index) {
  const box = el("article", undefined, { class: "message " + message.role, "aria-label": message.role === "user" ? "You" : "Model" });
  const reasoning = el("details"), thoughts = el("div");
  reasoning.append(el("summary", "Reasoning"), thoughts);
  reasoning.hidden = !message.reasoning_content;
  thoughts.textContent = message.reasoning_content || "";
  const body = el("div", undefined, { class: "body" }), tools = el("div", undefined, { class: "tools" }), which = " message " + (index + 1);
  const calls = el("div", undefined, { class: "calls" }), last = index === messages().length - 1;
  drawCalls(calls, message, last);
  markdown(body, message.content);
  tools.append(press("Copy", "Copy" + which, (b) => copy(message.content, b)));
  if (message.role === "user") tools.append(press("Edit", "Edit" + which, () => {
    if (running) return;
    keep("Messages from here on were taken out.");
    $("text").value = message.content;
    messages().length = index;
    changed();
    grow();
    $("text").focus();
  }));
  box.append(reasoning, body, calls);
  const facts = message.facts;
  if (facts && facts.cut) {
    const full = model && model.context && facts.context >= model.context, note = el("div", undefined, { class: "note" });
    note.append(el("span", facts.cut === "stopped" ? "Stopped." : full ? "The context is full." : "Cut at " + count(facts.tokens) + " tokens."));
    if (last && !full) note.append(press("Go on", "Go on with" + which, () => { if (!running) answer(true); }, "small"));
    box.append(note);
  }
  if (facts && facts.tokens) tools.append(el("span", told(facts), { class: "facts" }));
  box.append(tools);
  $("log").append(box);
  return { body, reasoning, thoughts, calls, box };
}
const title = (chat) => {
  const first = chat.messages.find((m) => m.role === "user");
  return first ? first.content.trim().replace(/\s+/g, " ").slice(0, 60) : "New chat";
};
function go(to) {
  if (running) return say("an answer is being written: stop it first", true);
  at = to;
  failure = "";
  say("");
  $("side").classList.remove("open");
  $("menu").setAttribute("aria-expanded", false);
  changed();
  scrollTo(0, document.documentElement.scrollHeight);
}
function drawChats() {
  $("chat-list").replaceChildren(...chats.map((chat, i) => {
    const row = el("li"), name = title(chat);
    const open = press(name, name, () => go(i), "open");
    if (i === at) open.setAttribute("aria-current", "true");
    row.append(open, press("\u00d7", "Delete chat " + name, () => {
      if (running) return say("an answer is being written: stop it first", true);
      keep("The chat was deleted.");
      chats.splice(i, 1);
      if (!chats.length) chats.push({ messages: [] });
      at = Math.min(i < at ? at - 1 : at, chats.length - 1);
      failure = "";
      changed();
    }));
    return row;
  }));
}
function draw() {
  $("log").replaceChildren();
  messages().forEach(show);
  if (failure) {
    const note = el("div", undefined, { class: "note bad", role: "alert" });
    note.append(el("span", failure), press("Try again", "Try again", again, "small"));
    $("log").append(note);
  }
  $("empty").hidden = messages().length > 0;
  $("again").disabled = !messages().length;
  drawChats();
}
function changed() { draw(); save(); }
function given(id, what) {
  try { return JSON.parse($(id).value); } catch (e) { throw new Error(what + " in the settings: " + e.message); }
}
function numbers() {
  const out = {};
  for (const n of names) {
    const text = $(n).value.trim();
    if (text && !Number.isFinite(Number(text))) throw new Error(n + " in the settings: \"" + text + "\" is not a number");
    if (text) out[n] = Number(text);
  }
  return out;
}
function request(goOn) {
  const body = { stream: true, stream_options: { include_usage: true }, messages: [] };
  if (models.length > 1) body.model = model.name;
  if ($("system").value.trim()) body.messages.push({ role: "system", content: $("system").value });
  for (const m of messages()) {
    const calls = m.calls || [];
    const out = { role: m.role, content: calls.length && !m.content ? null : m.content };
    if (calls.length) out.tool_calls = calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
    body.messages.push(out);
    for (const c of calls) body.messages.push({ role: "tool", tool_call_id: c.id, content: c.result || "" });
  }
  if ($("tools").value.trim()) body.tools = given("tools", "The tools");
  if ($("schema").value.trim()) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: given("schema", "The schema") } };
  Object.assign(body, numbers());
  if (goOn) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  return body;
}
// The body of a request, or null: a setting is wrong, which is said.
function usable(goOn) {
  try { return request(goOn); } catch (e) { say(e.message, true); return null; }
}
// The browser's own words for a server that is gone differ and help nobody.
const words = (e) => (e instanceof TypeError || e.name === "TimeoutError" ? "the server does not answer" : e.message);
function askKey() {
  $("key-wrong").hidden = sessionStorage.getItem("moebius-key") === null;
  $("key-form").hidden = false;
}
// Whoever looks at the end goes on looking at it.
function follow(change) {
  const root = document.documentElement, atEnd = innerHeight + scrollY >= root.scrollHeight - 40;
  change();
  if (atEnd) scrollTo(0, root.scrollHeight);
}
function busy(on) {
  $("send").disabled = $("again").disabled = $("undo-button").disabled = on;
  $("send").hidden = on;
  $("stop").disabled = $("stop").hidden = !on;
}
// The events of a stream: one list for each piece that came.
async function* streamed(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  for (let rest = "";;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = events.pop();
    yield events.filter((e) => e.startsWith("data: ") && e !== "data: [DONE]").map((e) => JSON.parse(e.slice(6)));
  }
}
// One more answer, or more of the last one.
async function answer(goOn) {
  const body = usable(goOn);
  if (!body) return;
  const list = messages(), message = goOn ? list[list.length - 1] : { role: "assistant", content: "" };
  running = new AbortController();
  failure = "";
  const cut = goOn ? message.facts.cut : undefined;
  if (goOn) delete message.facts.cut;
  changed();
  busy(true);
  say("waiting for the first token");
  const view = goOn ? { body: $("log").lastChild.querySelector(".body") } : show(message, list.length);
  if (!goOn) list.push(message);
  $("empty").hidden = true;
  scrollTo(0, document.documentElement.scrollHeight);
  const begin = performance.now();
  let usage = null, reason = "", first = 0, last = 0, spoken = message.content.length, dirty = false;
  const paint = () => { dirty = false; follow(() => markdown(view.body, message.content)); };
  try {
    const r = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal });
    if (r.status === 401) askKey();
    if (!r.ok) throw new Error((await r.json()).error.message);
    for await (const events of streamed(r)) {
      for (const j of events) {
        if (j.error) throw new Error(j.error.message);
        if (j.usage) usage = j.usage;
        const choice = j.choices.length ? j.choices[0] : {}, delta = choice.delta || {};
        if (choice.finish_reason) reason = choice.finish_reason;
        if (delta.reasoning_content && view.reasoning) {
          message.reasoning_content = (message.reasoning_content || "") + delta.reasoning_content;
          view.reasoning.hidden = false;
          view.thoughts.textContent = message.reasoning_content;
        }
        for (const part of delta.tool_calls || []) {
          message.calls = message.calls || [];
          const call = message.calls[part.index] = message.calls[part.index] || { id: part.id, name: part.function.name, arguments: "" };
          call.arguments += part.function.arguments || "";
          if (view.calls) drawCalls(view.calls, message, false);
        }
        if (delta.content || delta.reasoning_content || delta.tool_calls) {
          last = performance.now();
          if (!first) { first = last; say("writing"); }
        }
        message.content += delta.content || "";
      }
      if (!dirty) { dirty = true; requestAnimationFrame(paint); }
      const end = message.content.slice(spoken).search(/[.!?]\s(?!.*[.!?]\s)/s);  // whole sentences are read aloud
      if (end >= 0) { $("spoken").textContent = message.content.slice(spoken, spoken + end + 1); spoken += end + 2; }
    }
  } catch (e) {
    if (e.name === "AbortError") reason = "stopped";
    else failure = words(e);
  }
  if (message.content.length > spoken) $("spoken").textContent = message.content.slice(spoken);
  const facts = message.facts = { tokens: (message.facts || {}).tokens || 0 };
  if (reason === "length" || reason === "stopped") facts.cut = reason;
  else if (failure && cut) facts.cut = cut;
  if (first) facts.first = (first - begin) / 1000;
  if (usage) {
    facts.tokens += usage.completion_tokens;
    facts.context = usage.prompt_tokens + usage.completion_tokens;
    if (last > first) facts.rate = 1000 * (usage.completion_tokens - 1) / (last - first);
  }
  if (failure) say(failure, true);
  else if (usage) say(usage.completion_tokens + " tokens in " + ((performance.now() - begin) / 1000).toFixed(1) + " s");
  else say("stopped");
  const typing = document.activeElement === $("stop");
  running = null;
  busy(false);
  if (!message.content && !message.reasoning_content && !message.calls) list.pop();
  follow(changed);
  if (typing) $("text").focus();
}
function grow() {
  const box = $("text");
  box.style.height = "auto";
  box.style.height = Math.min(box.scrollHeight, 0.4 * innerHeight) + "px";
}
function again() {
  if (running || !usable()) return;
  const list = messages();
  if (list.length && list[list.length - 1].role === "assistant") keep("The answer was taken out.");
  while (list.length && list[list.length - 1].role === "assistant") list.pop();
  if (list.length) answer();
}
$("ask").addEventListener("submit", (e) => {
  e.preventDefault();
  const text = $("text").value;
  if (running || !text.trim() || !usable()) return;  // with a wrong setting the text stays where it is
  messages().push({ role: "user", content: text });
  $("text").value = "";
  grow();
  forget();
  answer();
});
const touch = matchMedia("(pointer: coarse)");  // there the key makes a new line, as the keyboard on the screen says
$("text").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing && !touch.matches) { e.preventDefault(); $("ask").requestSubmit(); }
  if (e.key === "Escape" && running) running.abort();
});
$("text").addEventListener("input", grow);
$("stop").addEventListener("click", () => running && running.abort());
$("again").addEventListener("click", again);
$("new").addEventListener("click", () => {
  const empty = chats.findIndex((c) => !c.messages.length);
  if (!running && empty < 0) chats.unshift({ messages: [] });
  go(Math.max(0, empty));
  if (!running) $("text").focus();
});
$("undo-button").addEventListener("click", () => {
  if (running || !undo) return;
  chats = JSON.parse(undo.chats);
  at = undo.at;
  failure = "";
  forget();
  changed();
});
$("menu").addEventListener("click", () => $("menu").setAttribute("aria-expanded", $("side").classList.toggle("open")));
$("export").addEventListener("click", () => {
  const link = el("a", "", { download: "chat.json", href: URL.createObjectURL(new Blob([JSON.stringify({ messages: messages() }, null, 1)], { type: "application/json" })) });
  link.click();
  URL.revokeObjectURL(link.href);
});
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  try {
    const read = clean(JSON.parse(await $("file").files[0].text()).messages);
    if (!read.length || running) throw new Error();
    chats.unshift({ messages: read });
    go(0);
  } catch (e) { say("this file is no chat", true); }
  $("file").value = "";
});
$("key-form").addEventListener("submit", (e) => {
  e.preventDefault();
  sessionStorage.setItem("moebius-key", $("key").value);
  $("key").value = "";
  $("key-form").hidden = true;
  hello();
});
for (const n of names.concat(texts)) $(n).addEventListener("change", save);
addEventListener("storage", (e) => { if (e.key === "moebius" && !running) { const where = at; restore(stored()); at = Math.min(where, chats.length - 1); draw(); } });
