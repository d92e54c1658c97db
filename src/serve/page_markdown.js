// SPDX-License-Identifier: Apache-2.0
// A subset of Markdown, as nodes: text is never taken for markup.
const deepest = 8;  // quotes and lists inside each other; deeper ones are shown as they are written
const spans = /(`[^`]+`|\*\*(?=\S)(?:[^*]|\*(?!\*))+\*\*|\*(?=[^\s*])[^*]+\*|(?<!\w)__(?=\S)[^_]+__(?!\w)|(?<!\w)_(?=[^\s_])[^_]+_(?!\w)|~~[^~]+~~|!?\[[^[\]]*\]\([^()\s]+\))/;
function inline(parent, text) {
  const within = (name, inner) => { const e = el(name); inline(e, inner); parent.append(e); };
  text.split(spans).forEach((part, i) => {
    if (i % 2 === 0) parent.append(part);
    else if (part[0] === "`") parent.append(el("code", part.slice(1, -1)));
    else if (/^(\*\*|__)/.test(part)) within("strong", part.slice(2, -2));
    else if (part[0] === "~") within("s", part.slice(2, -2));
    else if (part[0] === "*" || part[0] === "_") within("em", part.slice(1, -1));
    else {  // an address is shown, and nothing leads there
      const [, name, address] = /^!?\[([^[\]]*)\]\(([^()\s]+)\)$/.exec(part);
      parent.append(el("span", name, { class: "link" }), " ", el("span", "(" + address + ")", { class: "address" }));
    }
  });
}
const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(?=\S)/, rule = /^\s{0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const indent = (line) => line.length - line.trimStart().length;
const tabular = (lines, i) => lines[i].startsWith("|") && /^\|[\s:|-]+\|?$/.test(lines[i + 1] || "");
const begins = (lines, i) => /^\s*```|^#{1,6}\s|^>/.test(lines[i]) || rule.test(lines[i]) || item.test(lines[i]) || tabular(lines, i);
// The items of a list from line i on; returns the line behind it.
function list(parent, lines, i, depth) {
  const first = item.exec(lines[i]), base = first[1].length, ordered = /\d/.test(first[2]);
  const node = el(ordered ? "ol" : "ul");
  if (ordered && parseInt(first[2], 10) !== 1) node.setAttribute("start", parseInt(first[2], 10));
  const belongs = (k) => { const m = item.exec(lines[k] || ""); return m && m[1].length <= base + 1 && m[1].length >= base - 1 && /\d/.test(m[2]) === ordered && !rule.test(lines[k]); };
  while (i < lines.length && belongs(i)) {
    const inside = item.exec(lines[i])[0].length, content = [lines[i].slice(inside)];
    for (++i; i < lines.length; ++i) {
      if (!lines[i].trim()) {
        let next = i + 1;
        while (next < lines.length && !lines[next].trim()) ++next;
        if (next >= lines.length || indent(lines[next]) < base + 2 || belongs(next)) break;
        content.push("");
      } else if (indent(lines[i]) > base + 1 || (!begins(lines, i) && content[content.length - 1] !== "")) {
        content.push(lines[i].slice(Math.min(indent(lines[i]), inside)));
      } else break;
    }
    const entry = el("li");
    blocks(entry, content, depth + 1);
    if (entry.children.length && entry.firstChild.nodeName === "P") entry.firstChild.replaceWith(...entry.firstChild.childNodes);
    node.append(entry);
    let next = i;
    while (next < lines.length && !lines[next].trim()) ++next;
    if (belongs(next)) i = next;
  }
  parent.append(node);
  return i;
}
function blocks(parent, lines, depth) {
  for (let i = 0; i < lines.length;) {
    const line = lines[i], heading = /^(#{1,6})\s+/.exec(line);
    if (!line.trim()) {
      ++i;
    } else if (/^\s*```/.test(line)) {
      const code = [], margin = indent(line);
      for (++i; i < lines.length && !/^\s*```/.test(lines[i]); ++i) code.push(lines[i].slice(Math.min(margin, indent(lines[i]))));
      ++i;
      const pre = el("pre");
      pre.append(el("code", code.join("\n")));
      parent.append(pre);
    } else if (heading) {
      const h = el("h" + Math.min(heading[1].length + 2, 6));
      inline(h, line.slice(heading[0].length));
      parent.append(h);
      ++i;
    } else if (rule.test(line)) {
      parent.append(el("hr"));
      ++i;
    } else if (line.startsWith(">") && depth < deepest) {
      const inner = [];
      for (; i < lines.length && lines[i].startsWith(">"); ++i) inner.push(lines[i].replace(/^> ?/, ""));
      const quote = el("blockquote");
      blocks(quote, inner, depth + 1);
      parent.append(quote);
    } else if (item.test(line) && depth < deepest) {
      i = list(parent, lines, i, depth);
    } else if (tabular(lines, i)) {
      const table = el("table"), cells = (l) => l.replace(/^\||\|$/g, "").split("|");
      for (let k = i; i < lines.length && lines[i].startsWith("|"); ++i) {
        if (i === k + 1) continue;
        const row = table.insertRow();
        for (const c of cells(lines[i])) { const cell = el(i === k ? "th" : "td"); inline(cell, c.trim()); row.append(cell); }
      }
      const box = el("div", undefined, { class: "scroll" });
      box.append(table);
      parent.append(box);
    } else {
      const p = el("p");
      for (let first = true; i < lines.length && lines[i].trim() && (first || !begins(lines, i)); ++i, first = false) {
        if (!first) p.append(el("br"));
        inline(p, lines[i]);
      }
      parent.append(p);
    }
  }
}
function markdown(parent, text) {
  parent.replaceChildren();
  blocks(parent, text.split("\n"), 0);
}
