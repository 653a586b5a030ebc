"""The report's style sheet: one column on a phone, two on a wide screen, light and dark."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#16191f;--soft:#59616e;--faint:#8a93a1;--rule:#e3e6eb;
--grid:#e9ecf0;--track:#eef0f4;--code:#eef1f5;--c0:#2563c9;--c1:#d9622b;--c2:#13906a;--c3:#8a4fd0;--c4:#b88700;
--c5:#c8366f;--c6:#1590ab;--c7:#5e7a1c;--c-grey:#8b93a0}
@media (prefers-color-scheme:dark){:root{--bg:#0f1217;--card:#181c23;--ink:#e8ebf0;--soft:#a6afbc;--faint:#7f8997;
--rule:#2a303a;--grid:#262c36;--track:#242a34;--code:#232935;--c0:#6ba1ff;--c1:#f28d5a;--c2:#3fc397;--c3:#b68cf2;
--c4:#dfb13b;--c5:#f078a5;--c6:#53c2dc;--c7:#a3c352;--c-grey:#87909e}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:1020px;margin:0 auto;padding:28px 16px 56px}
header{margin:0 4px 20px}
h1{font-size:27px;line-height:1.2;letter-spacing:-.015em;margin:0 0 10px;overflow-wrap:anywhere}
h2{font-size:18px;line-height:1.3;letter-spacing:-.005em;margin:0 0 4px}
h3{font-size:14px;font-weight:600;margin:0 0 6px}
p{margin:0 0 10px}
header p{font-size:17px;line-height:1.5;max-width:46em;margin:0}
.eyebrow{font-size:13px;color:var(--soft);margin:0 0 4px}
.note{color:var(--soft);font-size:13.5px;max-width:56em}
.absent{color:var(--soft);margin:6px 0 0}
section{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:18px 20px 20px;margin:0 0 16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(148px,1fr));gap:12px;margin:0 0 16px}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:12px 16px 13px}
.tile span{display:block;font-size:13px;color:var(--soft)}
.tile b{display:block;white-space:nowrap;font-size:25px;line-height:1.3;letter-spacing:-.02em;font-weight:650}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:20px 28px;
margin-top:14px}.scroll+.pair{margin-top:24px}
.pair>div{min-width:0}
svg{display:block;width:100%;max-width:520px;height:auto;overflow:visible}
svg text{font-family:inherit;font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
svg text.name{font-size:12.5px;fill:var(--ink)}
svg text.value{font-size:11px;fill:var(--ink)}
.grid{stroke:var(--grid);stroke-width:1}
.mark{stroke:var(--faint);stroke-width:1.5;stroke-dasharray:4 3}
.bold{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
.thin{fill:none;stroke-width:1;opacity:.4;stroke-linejoin:round}
.whisker{stroke-width:2.4;stroke-linecap:round;opacity:.65}
.scroll{overflow-x:auto;margin:10px -4px 0;padding:0 4px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{font-size:13px;font-weight:600;color:var(--soft);text-align:right;vertical-align:bottom;line-height:1.35}
th small{display:block;font-weight:400}
th,td{padding:7px 10px;border-bottom:1px solid var(--rule)}
td{text-align:right;white-space:nowrap;line-height:1.35}
td small{display:block;color:var(--soft);font-size:12px}
th:first-child,td:first-child{text-align:left;padding-left:2px}
th:last-child,td:last-child{padding-right:2px}
tbody tr:last-child td{border-bottom:0}
td i,.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px}
tr.best td{font-weight:650}
tr.best small,tr.best td.even{font-weight:400}
td.even{color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--soft);margin:8px 0 0}
.legend i{margin-right:6px}
.bars{margin-top:10px}
.bar{display:grid;grid-template-columns:minmax(0,24em) minmax(0,1fr) 5.5em;gap:12px;align-items:center;padding:2.5px 0}
.bar-name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-size:13.5px}
.bar-track{background:var(--track);border-radius:4px;height:12px;overflow:hidden}
.bar-fill{display:block;height:100%;border-radius:4px;min-width:2px}
.bar-value{font-size:13px;color:var(--soft);text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.names{display:flex;flex-wrap:wrap;gap:6px;margin:10px 0 0;padding:0;list-style:none}
code,.names li{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--code);
border-radius:5px;padding:1px 7px;overflow-wrap:anywhere}
details{margin-top:14px}
summary{cursor:pointer;font-size:13.5px;color:var(--soft)}
table.plain td{white-space:normal;text-align:left;padding:5px 10px 5px 2px;font-size:13.5px;vertical-align:top}
table.plain td:first-child{color:var(--soft);width:13em;white-space:nowrap}
table.plain td:last-child{overflow-wrap:anywhere}
@media (max-width:560px){main{padding:20px 10px 40px}section{padding:15px 14px 16px}h1{font-size:23px}
header p{font-size:16px}th,td{padding:7px 5px;font-size:13px}td small{font-size:11px}th small{font-size:11px}
.board,.board tbody,.board thead{display:block}.board tr{display:grid;grid-template-columns:repeat(var(--n),1fr);
border-bottom:1px solid var(--rule);padding:5px 0}.board tbody tr:last-child{border:0}.board td,.board th{border:0;
padding:1px 3px;text-align:left}.board td:first-child{grid-column:1/-1;padding:1px 3px;font-weight:650}
.board th:first-child{display:none}.board td small{white-space:normal}
.tiles{grid-template-columns:1fr 1fr;gap:8px}.tile{padding:10px 12px}
.tile b{font-size:21px}.bar{grid-template-columns:1fr auto;gap:1px 10px;padding:4px 0}.bar-name{grid-column:1}
.bar-value{grid-column:2;grid-row:1}.bar-track{grid-column:1/3;height:8px}
table.plain td:first-child{width:auto;white-space:normal;min-width:7em}}
@media print{body{background:#fff}section,.tile{break-inside:avoid}}
""".strip()
