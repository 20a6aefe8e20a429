// SPDX-License-Identifier: Apache-2.0
// Steps through the story. The drawing comes ready made, one SVG per window of
// steps; the first is in the page, the others are unpacked when they are needed.
"use strict";
(() => {
  const meta = JSON.parse(document.getElementById("meta").textContent);
  const packed = [...document.querySelectorAll("script.window")];
  const el = (id) => document.getElementById(id);
  const main = document.querySelector("main");
  const loaded = new Map();
  let current = -1;
  let shownWindow = 0;
  let wanted = 0;

  async function windowAt(index) {
    if (!loaded.has(index)) {
      const text = packed[index].textContent;
      if (!meta.packed) {
        loaded.set(index, JSON.parse(text));
      } else {
        const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
        const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
        loaded.set(index, JSON.parse(await new Response(stream).text()));
      }
      if (loaded.size > 8) loaded.delete(loaded.keys().next().value);
    }
    return loaded.get(index);
  }

  function stateAt(win, index) {
    const state = new Map(Object.entries(win.base));
    let before = new Map(state);
    for (let i = win.first; i <= index; i++) {
      if (i === index) before = new Map(state);
      for (const [name, text] of Object.entries(win.steps[i - win.first].c)) {
        if (text === null) state.delete(name);
        else state.set(name, text);
      }
    }
    return { state, before };
  }

  function node(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function fillPanel(step, state, before) {
    const panel = el("state");
    const title = node("h2", step.l + " ");
    title.append(node("span", [meta.lanes[step.a] || "", step.s].filter(Boolean).join(" · "), "lane"));
    const parts = [title];
    if (step.w) parts.push(node("p", step.w));
    if (step.n.length) {
      const pills = node("ul", undefined, "pills");
      for (const note of step.n) pills.append(node("li", note));
      parts.push(pills);
    }
    const groups = new Map();
    const names = [...state.keys(), ...Object.keys(step.c).filter((n) => !state.has(n))];
    for (const full of names) {
      const bar = full.indexOf("|");
      const group = full.slice(0, bar);
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(full);
    }
    const changedFirst = [...groups].sort((a, b) => {
      const touched = (names) => (names.some((n) => n in step.c) ? 0 : 1);
      return touched(a[1]) - touched(b[1]);
    });
    for (const [group, members] of changedFirst) {
      if (!members.some((full) => state.has(full))) continue; // the object is over
      parts.push(node("h3", group));
      const table = node("table");
      for (const full of members) {
        const row = node("tr");
        const changed = full in step.c;
        row.append(node("th", full.slice(full.indexOf("|") + 1)));
        const cell = node("td");
        if (changed) {
          row.className = "changed";
          if (before.has(full)) cell.append(node("s", before.get(full)), " ");
        }
        cell.append(state.has(full) ? state.get(full) : "(gone)");
        row.append(cell);
        table.append(row);
      }
      parts.push(table);
    }
    panel.replaceChildren(...parts);
    panel.scrollTop = 0;
  }

  function markRow(index) {
    const body = document.querySelector(".body svg");
    const row = body.querySelector(`.step[data-i="${index}"]`);
    if (!row) return;
    const top = Number(row.dataset.y);
    const height = Number(row.dataset.h);
    const now = body.querySelector(".now");
    now.setAttribute("y", top);
    now.setAttribute("height", height);
    let veil = body.querySelector(".veil");
    if (!veil) {
      veil = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      veil.setAttribute("class", "veil");
      veil.setAttribute("width", "100%");
      body.append(veil);
    }
    veil.setAttribute("y", top + height);
    veil.setAttribute("height", Math.max(0, body.height.baseVal.value - top - height));
    const head = document.querySelector(".head").offsetHeight;
    const from = main.scrollTop;
    const to = from + main.clientHeight - head;
    if (top < from + 20 || top + height > to - 20) {
      main.scrollTop = Math.max(0, top - main.clientHeight / 2 + height);
    }
  }

  async function show(index) {
    index = Math.max(0, Math.min(meta.count - 1, index));
    wanted = index;
    const at = Math.floor(index / meta.size);
    const win = await windowAt(at);
    if (wanted !== index) return; // another step was asked for meanwhile
    if (at !== shownWindow) {
      document.querySelector(".head").innerHTML = win.head;
      document.querySelector(".body").innerHTML = win.body;
      shownWindow = at;
    }
    current = index;
    const { state, before } = stateAt(win, index);
    fillPanel(win.steps[index - win.first], state, before);
    markRow(index);
    el("slider").value = index;
    el("slider").setAttribute("aria-valuetext", `step ${index + 1}: ${win.steps[index - win.first].l}`);
    el("where").textContent = `${index + 1} / ${meta.count}`;
    el("first").disabled = el("back").disabled = index === 0;
    el("last").disabled = el("next").disabled = index === meta.count - 1;
    history.replaceState(null, "", `#${index + 1}`);
  }

  function flipTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  }

  function findNext(text) {
    const needle = text.trim().toLowerCase();
    if (!needle) return;
    for (let k = 1; k <= meta.count; k++) {
      const i = (current + k) % meta.count;
      const [label, subject] = meta.index[i];
      if (`${meta.labels[label]} ${subject}`.toLowerCase().includes(needle)) {
        show(i);
        return;
      }
    }
    el("find").setCustomValidity("no step matches");
    el("find").reportValidity();
    el("find").setCustomValidity("");
  }

  el("first").onclick = () => show(0);
  el("back").onclick = () => show(current - 1);
  el("next").onclick = () => show(current + 1);
  el("last").onclick = () => show(meta.count - 1);
  el("theme").onclick = flipTheme;
  if (el("broke")) el("broke").onclick = () => show(meta.verdict);
  el("slider").oninput = (event) => show(Number(event.target.value));
  const form = document.querySelector(".find");
  if (form) form.onsubmit = (event) => { event.preventDefault(); findNext(el("find").value); };
  main.addEventListener("click", (event) => {
    const step = event.target.closest("[data-i]");
    if (step) show(Number(step.dataset.i));
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input[type=search]") || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = {
      ArrowRight: current + 1, ArrowDown: current + 1, ArrowLeft: current - 1, ArrowUp: current - 1,
      Home: 0, End: meta.count - 1, PageDown: current + meta.size, PageUp: current - meta.size,
    };
    if (event.key in moves) {
      event.preventDefault();
      show(moves[event.key]);
    } else if (event.key === "b" && meta.verdict !== null) {
      show(meta.verdict);
    } else if (event.key === "t") {
      flipTheme();
    }
  });
  const start = Number.parseInt(location.hash.slice(1), 10);
  show(Number.isInteger(start) ? start - 1 : meta.start);
})();
