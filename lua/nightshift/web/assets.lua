--- The style sheet, the script and the icon of the pages.
--
-- There is one type scale (12, 14, 16, 20, 28 px), one grid of 8 px, and one palette, in light and
-- dark. Colours of text have a contrast of at least 4.5 to 1. A state is a word with a colour, never
-- a colour alone.
--
-- Invariant: nothing is fetched from elsewhere. A file's URL has a hash of its text, so that
-- browsers keep it until it is another.

local core = require "nightshift.core"

local assets = { files = {}, version = {} }

local STYLE <const> = [=[
:root {
  --ground: #f6f7f9; --panel: #ffffff; --raised: #eef0f4; --line: #dfe2e8; --text: #1b1f29; --dim: #565e6e;
  --accent: #2b57c4; --on-accent: #ffffff; --focus: #2b57c4; --mark: #e8eefc;
  --blue: #1d5bb8; --green: #18713a; --amber: #855400; --violet: #6140bd; --red: #b3261e; --grey: #515a69;
  --blue-ground: #e3edfb; --green-ground: #e0f3e6; --amber-ground: #fdf0d5; --violet-ground: #ece6fb;
  --red-ground: #fce7e5; --grey-ground: #e9ecf1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #11141a; --panel: #181c24; --raised: #222732; --line: #2d333f; --text: #e5e8ee; --dim: #a0a8b7;
    --accent: #8fb2ff; --on-accent: #10141c; --focus: #8fb2ff; --mark: #1e2a44;
    --blue: #90b8fb; --green: #76d394; --amber: #eabd58; --violet: #bda8f8; --red: #ff938a; --grey: #b0b8c6;
    --blue-ground: #1b2b45; --green-ground: #173324; --amber-ground: #362a10; --violet-ground: #2a2347;
    --red-ground: #401d1d; --grey-ground: #272d38;
  }
}
* { box-sizing: border-box; }
html { color-scheme: light dark; scroll-padding-top: 64px; }
body {
  margin: 0; min-height: 100vh; display: flex; flex-direction: column; background: var(--ground);
  color: var(--text); font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  -webkit-text-size-adjust: 100%;
}
h1 { font-size: 28px; line-height: 1.2; font-weight: 650; letter-spacing: -0.01em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; line-height: 1.5; font-weight: 650; margin: 0 0 8px; }
h3 { font-size: 14px; font-weight: 650; margin: 16px 0 8px; }
p { margin: 0 0 8px; }
a { color: var(--accent); text-underline-offset: 2px; text-decoration-thickness: 1px; }
a:not(:hover) { text-decoration-color: color-mix(in srgb, currentColor 40%, transparent); }
b, code, bdi, td, th { unicode-bidi: isolate; }
code, pre, kbd { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code, pre { font-size: 12px; }
pre {
  margin: 0 0 8px; padding: 8px 16px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  background: var(--raised); border-radius: 6px; line-height: 1.6; max-height: 480px; overflow-y: auto;
}
kbd {
  display: inline-block; min-width: 20px; padding: 0 4px; border: 1px solid var(--line); border-radius: 4px;
  background: var(--panel); color: var(--dim); font-size: 12px; text-align: center;
}
:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; border-radius: 4px; }
main:focus { outline: none; }
.unseen {
  position: absolute; width: 1px; height: 1px; margin: -1px; padding: 0; overflow: hidden; border: 0;
  clip-path: inset(50%); white-space: nowrap;
}
.skip { position: absolute; left: 8px; top: -64px; z-index: 3; padding: 8px 16px; background: var(--panel); }
.skip:focus { top: 8px; }
.dim, .dim a { color: var(--dim); }
.error { color: var(--red); }
.warn { color: var(--amber); }
.number, .num { font-variant-numeric: tabular-nums; }
time { white-space: nowrap; }
.large { font-size: 20px; line-height: 1.4; }
.large .state { vertical-align: 2px; }
.wide { grid-column: 1 / -1; }

/* ---------------------------------------------------------------- the frame */
.bar {
  position: sticky; top: 0; z-index: 2; display: flex; align-items: center; gap: 8px 24px; min-height: 56px;
  padding: 8px 24px; background: var(--panel); border-bottom: 1px solid var(--line);
}
.brand {
  display: flex; align-items: center; gap: 8px; color: var(--text); font-size: 16px; font-weight: 650;
  text-decoration: none;
}
.mark { width: 16px; height: 16px; fill: var(--accent); }
.pages { display: flex; gap: 4px; margin: 0; padding: 0; list-style: none; }
.pages a {
  display: block; padding: 8px 12px; border-radius: 6px; color: var(--dim); text-decoration: none; white-space: nowrap;
}
.pages a:hover { background: var(--raised); color: var(--text); }
.pages a[aria-current] { background: var(--mark); color: var(--accent); font-weight: 600; }
.search { position: relative; margin-left: auto; }
.search input { width: 224px; padding-right: 32px; }
.search kbd { position: absolute; right: 8px; top: 50%; transform: translateY(-50%); pointer-events: none; }
.search input:focus + kbd { visibility: hidden; }
main { flex: 1; width: 100%; max-width: 1440px; margin: 0 auto; padding: 24px; }
.title {
  display: flex; flex-wrap: wrap; align-items: center; justify-content: space-between; gap: 8px 16px;
  margin: 0 0 16px;
}
.title > h2 { margin: 0; }
.live { display: flex; align-items: center; gap: 8px; margin: 0; color: var(--dim); font-size: 12px; }
.live[hidden] { display: none; }
.dot { width: 8px; height: 8px; border-radius: 4px; background: var(--green); }
.live.off .dot { background: var(--amber); }
.said { padding: 8px 16px; border-radius: 6px; background: var(--green-ground); color: var(--green); }
.said.error { background: var(--red-ground); color: var(--red); }
.foot {
  display: flex; flex-wrap: wrap; gap: 4px 24px; padding: 16px 24px; border-top: 1px solid var(--line);
  color: var(--dim); font-size: 12px;
}
.foot p { margin: 0; }
.foot .keys { margin-left: auto; }

/* -------------------------------------------------------------------- panels */
.panel {
  min-width: 0; margin: 0 0 16px; padding: 16px; background: var(--panel); border: 1px solid var(--line);
  border-radius: 8px;
}
.panel > :last-child { margin-bottom: 0; }
.panel > h2:first-child { display: flex; align-items: baseline; justify-content: space-between; gap: 16px; }
.panel > h2 .more, .panel > h2 .dim { font-size: 14px; font-weight: 400; }
.grid {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); gap: 16px;
  margin: 0 0 16px;
}
.grid > .panel { margin: 0; }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(112px, 1fr)); gap: 8px 16px; margin: 0 0 16px;
  padding: 0; list-style: none;
}
.tile { min-width: 0; padding: 8px 16px; background: var(--panel); border: 1px solid var(--line); border-radius: 8px; }
.tile a { color: inherit; text-decoration: none; display: block; }
.tile b { display: block; font-size: 20px; line-height: 1.4; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--dim); font-size: 12px; }
.tile a:hover span { text-decoration: underline; }
.attention { margin: 0 0 16px; padding: 0; list-style: none; background: var(--amber-ground); border-radius: 8px; }
.attention li {
  display: flex; flex-wrap: wrap; align-items: center; justify-content: space-between; gap: 4px 16px;
  min-height: 48px; padding: 8px 16px; overflow-wrap: anywhere;
}
.attention li + li { border-top: 1px solid var(--ground); }
.attention p { margin: 0; flex: 1 1 240px; }
.attention .is-bad { box-shadow: inset 4px 0 var(--red); }
.empty { padding: 24px 16px; text-align: center; color: var(--dim); }
.empty pre { display: inline-block; text-align: left; margin: 0; color: var(--text); }
.problem { max-width: 720px; overflow-wrap: anywhere; }
.login { max-width: 400px; }
.login input { width: 100%; margin: 0 0 8px; }

/* -------------------------------------------------------------------- tables */
.scroll { overflow-x: auto; }
.table { width: 100%; border-collapse: collapse; font-size: 14px; }
.table caption { text-align: left; color: var(--dim); padding: 0 0 8px; }
.table th, .table td { padding: 8px; text-align: left; vertical-align: baseline; overflow-wrap: break-word; }
.table thead th {
  position: sticky; top: 56px; z-index: 1; background: var(--panel); color: var(--dim);
  font-size: 12px; font-weight: 600; vertical-align: bottom;
  box-shadow: inset 0 -1px var(--line);
}
.scroll > .table thead th { position: static; }
.table tbody tr + tr > * { border-top: 1px solid var(--line); }
.table tbody th { font-weight: 600; }
.table .number, .table .num { text-align: right; }
.table td.number, .table td.num { white-space: nowrap; }
.table .number + :not(.number) { padding-left: 24px; }
.table .tight { width: 1%; white-space: nowrap; }
.table td.end { text-align: right; white-space: nowrap; }
.table .end form { margin-left: 4px; }
.table tbody tr:hover > *, .table tr[data-row].at > * { background: var(--mark); }
.table tr[data-row].at > :first-child { box-shadow: inset 2px 0 var(--accent); }
.table .zero { color: var(--dim); }
.clip { display: block; max-width: 480px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.panel > .table:last-child, .panel > .scroll:last-child > .table { margin-bottom: -8px; }
.pager a:not(.button) { padding: 4px 12px; border: 1px solid var(--line); border-radius: 6px; text-decoration: none; }
.pager { display: flex; gap: 8px; justify-content: flex-end; margin: 16px 0 0; }

/* --------------------------------------------------------- states, tags, facts */
.state {
  display: inline-block; padding: 0 8px; border-radius: 10px; font-size: 12px; line-height: 20px; font-weight: 600;
  white-space: nowrap; background: var(--grey-ground); color: var(--grey);
}
.graph text { font-size: 14px; fill: var(--text); }
.graph .word, .graph .note { font-size: 12px; fill: currentColor; }
.graph .id, .graph .note { fill: var(--dim); }
.graph .box { fill: var(--panel); stroke: var(--line); }
.graph .own .box { stroke: var(--accent); stroke-width: 2; }
.graph .bar, .graph .head { fill: currentColor; }
.graph .edge { fill: none; stroke: var(--dim); stroke-opacity: 0.6; }
.graph .waits { stroke-dasharray: 4 4; }
.graph .head { fill: var(--dim); }
.graph a:hover .box { fill: var(--mark); }
.is-ready { background: var(--blue-ground); color: var(--blue); }
.is-running { background: var(--green-ground); color: var(--green); }
.is-ok { background: var(--green-ground); color: var(--green); }
.is-waiting, .is-paused, .is-warn { background: var(--amber-ground); color: var(--amber); }
.is-scheduled { background: var(--violet-ground); color: var(--violet); }
.is-dead, .is-failed, .is-crashed, .is-lost { background: var(--red-ground); color: var(--red); }
.chip {
  display: inline-block; padding: 0 8px; border: 1px solid var(--line); border-radius: 4px; font-size: 12px;
  line-height: 20px; color: var(--dim); overflow-wrap: anywhere;
}
.facts { display: grid; grid-template-columns: minmax(96px, max-content) 1fr; gap: 4px 16px; margin: 0 0 8px; }
.facts dt { color: var(--dim); }
.facts dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.timeline { margin: 0; padding: 0 0 0 16px; list-style: none; border-left: 2px solid var(--line); }
.timeline > li { position: relative; padding: 0 0 16px; }
.timeline > li:last-child { padding: 0; }
.timeline > li:last-child > p { margin: 0; }
.timeline > li::before {
  content: ""; position: absolute; left: -21px; top: 6px; width: 8px; height: 8px; border-radius: 4px;
  background: var(--grey); box-shadow: 0 0 0 2px var(--panel);
}
progress { width: 96px; height: 8px; accent-color: var(--accent); vertical-align: middle; }
details > summary { cursor: pointer; color: var(--dim); }
details[open] > summary { margin: 0 0 8px; }

/* ---------------------------------------------------------------- trees, flows */
.bare, .path, .tree, .tree ul { margin: 0; padding: 0; list-style: none; }
.tree ul { margin: 0 0 0 8px; padding: 0 0 0 16px; border-left: 1px solid var(--line); }
.tree li { padding: 4px 0; }
.path { display: flex; flex-wrap: wrap; gap: 4px 8px; padding: 0 0 8px; }
.flow h3 { margin: 0 0 8px; color: var(--dim); }
.bare li { padding: 0 0 4px; overflow-wrap: anywhere; }
.why { overflow-wrap: anywhere; }
fieldset.panel legend { padding: 0 8px; color: var(--dim); font-size: 12px; }
fieldset.panel .toolbar { margin: 0 0 8px; }

/* --------------------------------------------------------------------- forms */
.button, button, input, select, textarea { font: inherit; color: inherit; }
.button, button:not(.plain) {
  display: inline-block; min-height: 32px; padding: 4px 12px; border: 1px solid var(--line); border-radius: 6px;
  background: var(--panel); color: var(--text); text-decoration: none; cursor: pointer; white-space: nowrap;
}
.button:hover, button:not(.plain):hover { background: var(--raised); }
.button.main { border-color: var(--accent); background: var(--accent); color: var(--on-accent); }
.button.main:hover { background: var(--accent); filter: brightness(1.1); }
.button.danger { border-color: var(--red); color: var(--red); }
.button.danger:hover { background: var(--red-ground); }
button:disabled { opacity: 0.6; cursor: default; }
.plain { padding: 0; border: 0; background: none; color: inherit; cursor: pointer; }
input, select, textarea {
  min-height: 32px; padding: 4px 8px; border: 1px solid var(--dim); border-radius: 6px; background: var(--panel);
  max-width: 100%;
}
input[type="checkbox"], input[type="radio"] { min-height: 0; width: 16px; height: 16px; accent-color: var(--accent); }
textarea { width: 100%; min-height: 128px; }
label { color: var(--dim); font-size: 12px; }
.inline { display: inline; }
fieldset { min-width: 0; }
legend { padding: 0 4px; font-weight: 650; }
.field.wide { flex: 1 1 256px; }
.field.wide > input { width: 100%; }
.toolbar { display: flex; flex-wrap: wrap; align-items: flex-end; gap: 8px; margin: 0 0 16px; }
.field { display: flex; flex-direction: column; gap: 4px; min-width: 0; }
.tabs { display: flex; flex-wrap: wrap; gap: 4px; margin: 0; padding: 0; list-style: none; }
.tabs a { display: block; padding: 4px 12px; border-radius: 6px; color: var(--dim); text-decoration: none; }
.tabs a:hover { background: var(--raised); color: var(--text); }
.tabs a[aria-current] { background: var(--mark); color: var(--accent); font-weight: 600; }
dialog {
  max-width: min(480px, calc(100vw - 32px)); padding: 24px; border: 1px solid var(--line); border-radius: 8px;
  background: var(--panel); color: var(--text);
}
dialog::backdrop { background: rgb(0 0 0 / 40%); }
.keylist { display: grid; grid-template-columns: max-content 1fr; gap: 8px 16px; margin: 0 0 16px; }
.keylist dd { margin: 0; }

.why { max-width: 960px; }
.bare, .path, .tree, .tree ul { margin: 0; padding: 0; list-style: none; }
.bare li, .node { padding: 2px 0; overflow-wrap: anywhere; }
.path { display: flex; flex-wrap: wrap; gap: 4px 8px; margin: 0 0 8px; }
.path li:not(:last-child)::after { content: "›"; margin-left: 8px; color: var(--dim); }
.node { display: inline-flex; flex-wrap: wrap; align-items: center; gap: 4px 8px; min-height: 28px; }
.tree ul { margin-left: 12px; padding-left: 16px; border-left: 1px solid var(--line); }
.flow { display: flex; flex-wrap: wrap; align-items: stretch; gap: 16px 40px; }
.flow > div {
  position: relative; flex: 1 1 192px; padding: 8px 16px; border: 1px solid var(--line); border-radius: 8px;
}
.flow > div + div::before { content: "→"; position: absolute; left: -28px; top: calc(50% - 12px); color: var(--dim); }

/* -------------------------------------------------------------------- charts */
.chart { margin: 0; }
.chart svg { display: block; width: 100%; height: auto; }
.chart .axis { stroke: var(--line); stroke-width: 1; }
.chart text { fill: var(--dim); font-size: 12px; font-variant-numeric: tabular-nums; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.chart .area { opacity: 0.16; stroke: none; }
.chart .blue { stroke: var(--blue); } .chart .area.blue, .chart .bar-of.blue { fill: var(--blue); }
.chart .green { stroke: var(--green); } .chart .area.green, .chart .bar-of.green { fill: var(--green); }
.chart .violet { stroke: var(--violet); } .chart .area.violet, .chart .bar-of.violet { fill: var(--violet); }
.chart .red { stroke: var(--red); } .chart .area.red, .chart .bar-of.red { fill: var(--red); }
.chart .bar-of { stroke: none; }
.chart .dashed { stroke-dasharray: 4 4; }
.chart .table { font-size: 12px; }
.chart details { margin: 8px 0 0; font-size: 12px; }
.chart details .scroll { max-height: 240px; overflow: auto; }
.legend {
  display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0 0 8px; padding: 0; list-style: none;
  font-size: 12px; color: var(--dim);
}
.legend b { font-variant-numeric: tabular-nums; color: var(--text); }
.legend .key {
  display: inline-block; width: 16px; height: 4px; margin-right: 4px; vertical-align: middle;
  border-radius: 2px;
}
.key.blue { background: var(--blue); } .key.green { background: var(--green); }
.key.violet { background: var(--violet); } .key.red { background: var(--red); }
.key.dashed { background-image: repeating-linear-gradient(90deg, transparent 0 4px, var(--panel) 4px 6px); }

/* ------------------------------------------------------------------ narrow ones */
@media (max-width: 960px) {
  .bar { flex-wrap: wrap; position: static; padding: 8px 16px; }
  .bar nav { order: 3; width: 100%; overflow-x: auto; }
  .pages a { padding: 8px; }
  .table thead th { top: 0; }
  main { padding: 16px; }
  .foot { padding: 16px; }
}
@media (min-width: 641px) and (max-width: 1200px) {
  .panel { overflow-x: auto; position: relative; }
  .panel .table thead th { position: static; }
}
@media (max-width: 640px) {
  .search input { width: 152px; }
  .search kbd, .foot .keys { display: none; }
  .table.cards, .table.cards tbody, .table.cards tr, .table.cards td, .table.cards tbody th {
    display: block; width: auto;
  }
  .table.cards thead {
    position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  }
  .table.cards tr { padding: 8px 0; }
  .table.cards tbody tr + tr { border-top: 1px solid var(--line); }
  .table.cards tbody tr + tr > * { border-top: 0; }
  .table.cards td, .table.cards tbody th {
    padding: 4px 0; text-align: left; white-space: normal; overflow-wrap: anywhere;
  }
  .table.cards td[data-label] { display: flex; justify-content: flex-end; gap: 4px; text-align: right; }
  .table.cards td[data-label]::before {
    content: attr(data-label); margin-right: auto; padding-right: 12px; color: var(--dim); text-align: left;
    white-space: nowrap;
  }
  .table.cards td:is(:empty, .zero, :has(> .clip:empty)) { display: none; }
  .table.cards .number + :not(.number) { padding-left: 0; }
  .table.cards td.end { text-align: left; }
  .table.cards .end form { margin: 0 4px 0 0; }
  .facts { grid-template-columns: 1fr; gap: 0; }
  .facts dd { margin: 0 0 8px; }
  .clip { max-width: 100%; }
  .toolbar .field { flex: 1 1 136px; }
  .toolbar .field > * { width: 100%; }
}
@media (prefers-reduced-motion: no-preference) {
  .skip { transition: top 0.1s; }
  .changed { animation: changed 1s ease-out; }
  @keyframes changed { from { background: var(--mark); } }
}
@media (forced-colors: active) { .state, .chip { border: 1px solid; } }
@media print { .bar, .foot, form, dialog { display: none; } }
]=]

local SCRIPT <const> = [=[
"use strict";
(() => {
  const doc = document, body = doc.body, main = doc.getElementById("main");
  const live = doc.querySelector(".live"), help = doc.getElementById("help");

  /* ------------------------------------------------ live: what differs is replaced */
  const sameKind = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName;

  /* Makes the children of one element those of another one. What is the same stays, and with it the
     focus, the selection and the scroll position. A field that is being edited is left alone. */
  const blend = (old, fresh) => {
    const was = [...old.childNodes], now = [...fresh.childNodes];
    now.forEach((node, i) => {
      const had = was[i];
      if (!had) old.append(node);
      else if (!sameKind(had, node) || had.id !== node.id) had.replaceWith(node);
      else if (had.nodeType !== 1) { if (had.data !== node.data) had.data = node.data; }
      else if (!had.isEqualNode(node)) blendElement(had, node);
    });
    was.slice(now.length).forEach((node) => node.remove());
  };
  const KEPT = new Set(["open", "class"]);
  const blendElement = (old, fresh) => {
    if (old.matches("input, select, textarea") && (old === doc.activeElement || isTouched(old))) return;
    for (const { name } of [...old.attributes])
      if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (old.getAttribute(name) !== value) {
        const at = name === "class" && old.classList.contains("at");
        old.setAttribute(name, value);
        if (at) old.classList.add("at");
      }
    blend(old, fresh);
  };
  const isTouched = (field) => field.type === "checkbox" ? field.checked !== field.defaultChecked
    : field.value !== field.defaultValue && field.defaultValue !== undefined;

  const change = (parts) => {
    for (const [key, html] of Object.entries(parts)) {
      const old = [...doc.querySelectorAll("[data-live]")].find((item) => item.dataset.live === key);
      if (!old) continue;
      const fresh = old.cloneNode(false);
      fresh.innerHTML = html;
      if (fresh.innerHTML !== old.innerHTML) blend(old, fresh);
    }
    tell("Live", false);
  };
  const tell = (text, off) => {
    if (!live) return;
    live.hidden = false;
    live.classList.toggle("off", off);
    const place = live.querySelector(".text");
    if (place.textContent !== text) place.textContent = text;
  };

  let source = null;
  const open = () => {
    if (source || !body.dataset.stream || !window.EventSource) return;
    source = new EventSource(body.dataset.stream);
    source.addEventListener("change", (event) => change(JSON.parse(event.data)));
    source.addEventListener("away", () => tell("The database is away", true));
    source.addEventListener("back", () => tell("Live", false));
    source.addEventListener("gone", () => { close(); tell("This page is gone; reload it", true); });
    source.addEventListener("error", () => {
      tell("Not connected", true);
      if (source && source.readyState === EventSource.CLOSED) { close(); setTimeout(open, 5000); }
    });
  };
  const close = () => { if (source) source.close(); source = null; };
  doc.addEventListener("visibilitychange", () => doc.hidden ? close() : open());
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", () => { if (!doc.hidden) open(); });
  if (!doc.hidden) open();

  /* ---------------------------------------------------------------- relative times */
  const SPANS = [[86400, "d"], [3600, "h"], [60, "min"]];
  const ahead = Date.now() - body.dataset.now; // of the database's clock
  const span = (s) => {
    if (s < 120) return Math.round(s) + " s";
    const [size, unit] = SPANS.find(([size]) => s >= 2 * size);
    return Math.round(s / size) + " " + unit;
  };
  const tick = () => {
    if (doc.hidden) return;
    for (const item of doc.querySelectorAll("time[datetime]")) {
      const ago = (Date.now() - ahead - Date.parse(item.dateTime)) / 1000;
      const text = Math.abs(ago) < 1 ? "now" : ago > 0 ? span(ago) + " ago" : "in " + span(-ago);
      if (Math.abs(ago) >= 10 && item.textContent !== text) item.textContent = text;
    }
  };
  setInterval(tick, 5000);

  /* ------------------------------------------------------------------------- forms */
  doc.addEventListener("submit", (event) => {
    const form = event.target, by = event.submitter;
    const asks = (by && by.dataset.confirm) || form.dataset.confirm;
    if (asks && !window.confirm(asks)) return event.preventDefault();
    if (form.method === "post") setTimeout(() => {
      for (const button of form.querySelectorAll("button")) button.disabled = true;
    });
  });
  window.addEventListener("pageshow", () => {
    for (const button of doc.querySelectorAll("form[method=post] button:disabled")) button.disabled = false;
  });
  doc.addEventListener("change", (event) => {
    const all = event.target.closest("[data-check-all]");
    if (!all) return;
    const scope = all.closest("form") || all.closest("table") || doc;
    for (const box of scope.querySelectorAll("input[type=checkbox]")) if (box !== all) box.checked = all.checked;
  });

  /* -------------------------------------------------------------------------- keys */
  const rows = () => [...doc.querySelectorAll("tr[data-row]")];
  const walk = (step) => {
    const list = rows();
    if (!list.length) return;
    const at = list.findIndex((row) => row.classList.contains("at"));
    const next = list[Math.min(list.length - 1, Math.max(0, at < 0 ? (step > 0 ? 0 : list.length - 1) : at + step))];
    list.forEach((row) => row.classList.toggle("at", row === next));
    const link = next.querySelector("a[href]");
    if (link) link.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  };
  const openRow = () => {
    const link = doc.querySelector("tr[data-row].at a[href]");
    if (link && doc.activeElement !== link) link.click();
  };
  const go = (key) => {
    const link = doc.querySelector(`.pages a[data-key="${CSS.escape(key)}"]`);
    if (link) link.click();
  };
  let leads = 0;
  doc.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const on = event.target, key = event.key;
    if (on.matches("input, select, textarea")) {
      if (key === "Escape") on.blur();
      return;
    }
    if (help && help.open) return;
    const search = doc.getElementById("search");
    if (Date.now() < leads) { leads = 0; go(key); }
    else if (key === "g") leads = Date.now() + 1500;
    else if (key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
    else if (key === "j") walk(1);
    else if (key === "k") walk(-1);
    else if (key === "Enter" && (on === body || on === main)) openRow();
    else if (key === "?" && help) help.showModal();
  });
  const button = doc.querySelector("[data-help]");
  if (button && help) button.addEventListener("click", () => help.showModal());
})();
]=]

local ICON <const> = [[<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3"
fill="#2b57c4"/><path fill="#fff" d="M12.3 9.7A4.9 4.9 0 0 1 6.3 3.7a4.9 4.9 0 1 0 6 6z"/></svg>]]

local function add(path, key, type_of, text)
  local hash = core.hash(text)
  assets.files[path] = { text = text, type = type_of, etag = '"' .. hash .. '"' }
  assets.version[key] = hash
end

add("/assets/style.css", "style", "text/css; charset=utf-8", STYLE)
add("/assets/page.js", "script", "text/javascript; charset=utf-8", SCRIPT)
add("/assets/icon.svg", "icon", "image/svg+xml", ICON)

return assets
