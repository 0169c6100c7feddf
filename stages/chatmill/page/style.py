"""The look of the page: one column of dense, quiet type, light or dark as the reader's system is."""

STYLE = """
:root { color-scheme: light dark;
  --page: #fdfdfc; --ink: #1c1f23; --quiet: #5b626b; --rule: #dcdfe3; --wash: #f2f3f4;
  --c0: #1f5fa8; --c1: #b3470f; --c2: #1d7a4c; --c3: #8a3d8f; --c4: #6b7280;
  --t0: #d9e8f8; --t1: #fbe3d2; --t2: #d5efdf; --t3: #f0dcf2; --t4: #f3ecc4; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171a; --ink: #e4e7ea; --quiet: #9aa3ad; --rule: #333a41; --wash: #1e2328;
  --c0: #7db3ee; --c1: #f0935c; --c2: #67c795; --c3: #d493d8; --c4: #9aa3ad;
  --t0: #1d3a5a; --t1: #55301b; --t2: #1c4530; --t3: #472649; --t4: #463f17; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 60rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; line-height: 1.2; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; padding-top: .6rem; border-top: 1px solid var(--rule); }
p { margin: .3rem 0 .8rem; max-width: 44rem; }
.quiet, caption, .note { color: var(--quiet); font-size: .87rem; }
code, .token { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .87em; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .3rem 1.5rem; margin: 1.2rem 0; }
.tiles dt { font-size: .8rem; color: var(--quiet); } .tiles div { border-top: 2px solid var(--ink); padding-top: .25rem; }
.tiles dd { margin: 0; font-size: 1.5rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tiles dd small { display: block; font-size: .8rem; color: var(--quiet); line-height: 1.35; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem 2rem; }
figure { margin: .5rem 0; } figcaption { font-size: .87rem; font-weight: 600; margin-bottom: .3rem; }
figure svg { width: 100%; height: auto; display: block; font: 11.5px system-ui, sans-serif; }
svg text { fill: var(--quiet); } svg .grid { stroke: var(--rule); } svg .name { font-weight: 600; fill: var(--c); }
svg polyline { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
svg circle, svg rect { fill: var(--c); } svg .range { stroke: var(--c); opacity: .55; }
.color0 { --c: var(--c0); } .color1 { --c: var(--c1); } .color2 { --c: var(--c2); } .color3 { --c: var(--c3); }
.color4 { --c: var(--c4); }
.scroll { overflow-x: auto; margin: .6rem 0 1.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .2rem; }
th, td { text-align: right; padding: .16rem 0 .16rem .9rem; white-space: nowrap; font-weight: 400; vertical-align: baseline; }
th:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--quiet); font-size: .8rem; border-bottom: 1px solid var(--rule); vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid color-mix(in srgb, var(--rule) 55%, transparent); }
td:has(.bar) { width: 40%; min-width: 4rem; } .bar { display: block; }
.two td:has(.bar) { width: 26%; }
.chats { columns: 22rem; column-gap: 2rem; } .chat { break-inside: avoid; margin: 0 0 .9rem; }
.chat p { margin: 0; } .chat .asked { color: var(--quiet); font-size: .9rem; } .chat .answer { white-space: pre-wrap; padding-left: .8rem; border-left: 2px solid var(--c0); }
.chat .cut { border-left-style: dashed; }
.tokens { display: flex; flex-wrap: wrap; gap: .25rem; margin: .6rem 0; padding: 0; list-style: none; }
.token { padding: .15rem .35rem; border-radius: 3px; text-align: center; white-space: pre; }
.token small { display: block; font-size: .72rem; color: var(--quiet); line-height: 1.3; white-space: normal; }
.t0 { background: var(--t0); } .t1 { background: var(--t1); } .t2 { background: var(--t2); } .t3 { background: var(--t3); }
.t4 { background: var(--t4); }
.trained { background: var(--t2); border-bottom: 2px solid var(--c2); } .prompt { background: var(--wash); border-bottom: 2px solid transparent; }
.ignored { border-bottom: 2px dotted var(--c4); color: var(--quiet); }
.yes { color: var(--c2); } .no { color: var(--c1); font-weight: 600; }
details { margin: .4rem 0 1rem; } summary { cursor: pointer; font-size: .87rem; color: var(--quiet); }
:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
@media print { .scroll { overflow: visible; } body { max-width: none; } }
"""
