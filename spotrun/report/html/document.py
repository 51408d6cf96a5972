"""
Builds a page as one self-contained file, with its style sheet and its script. The page's content security policy allows
no other style sheet or script. A live page, which a local server serves, also has a script that keeps it up to date.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from spotrun.report.html.markup import Markup, element, join

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--line:#c8ccd1;--soft:#5a6370;--edge:#00000040}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--paper:#14171b;--line:#3b424b;--soft:#a0a9b5;--edge:#ffffff59}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;max-width:70rem;
padding:1rem;overflow-wrap:anywhere}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}.soft{color:var(--soft)}
.glance{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(11rem,45%),1fr));gap:.6rem 1rem;margin:1rem 0}
.glance dt{color:var(--soft);font-size:.85rem}.glance dd{margin:0;font-size:1.15rem;font-variant-numeric:tabular-nums}
.drawing{display:grid;grid-template-columns:fit-content(15rem) 1fr auto;row-gap:.5rem;margin:1rem 0}
.lane{display:grid;grid-template-columns:subgrid;grid-column:1/-1;align-items:center}
.marks{grid-column:2;overflow:visible}.lane>*{grid-row:1}.name{padding-right:1rem}
.value{grid-column:3;padding-left:1rem;text-align:right}.name,.value{font-size:.85rem;line-height:1.2}
.marks svg{overflow:visible}.marks polyline{vector-effect:non-scaling-stroke}
svg text{fill:var(--ink);font-size:13px;paint-order:stroke;stroke:var(--paper);stroke-width:4px}
.wide{overflow-x:auto;background:linear-gradient(90deg,var(--paper) 40%,transparent) 0/3rem 100% no-repeat local,
linear-gradient(270deg,var(--paper) 40%,transparent) 100%/3rem 100% no-repeat local,
linear-gradient(90deg,var(--edge),transparent) 0/1.2rem 100% no-repeat,
linear-gradient(270deg,var(--edge),transparent) 100%/1.2rem 100% no-repeat}
@media(max-width:40rem){.spare{display:none}.drawing{grid-template-columns:1fr auto}
.lane{row-gap:.2rem}.lane>.marks{grid-row:2}.value{grid-column:2}.marks{grid-column:1/-1}}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}caption{text-align:left;color:var(--soft)}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child,.words td,.words th{text-align:left}
tr>:first-child{position:sticky;left:0;background:var(--paper)}.words tr>:first-child{position:static}
.figures th,.figures td{padding:.25rem .3rem;font-size:.82rem}
.figures thead th{white-space:normal;overflow-wrap:normal;vertical-align:bottom}
@media(max-width:40rem){.figures tr>:first-child{white-space:normal;min-width:6rem}}
.words td:last-child{white-space:normal;min-width:16rem}
th button{font:inherit;color:inherit;text-align:inherit;background:none;border:0;padding:0;cursor:pointer;
text-decoration:underline}
:focus-visible{outline:2px solid #2f81f7;outline-offset:2px}
summary{cursor:pointer}pre{white-space:pre-wrap}
.legend{list-style:none;display:flex;font-size:.85rem;flex-wrap:wrap;gap:.2rem 1rem;padding:0}
.swatch{width:12px;margin-right:.4rem}
.productive{fill:#2a9d6f}.spot{fill:#4263d9}.on_demand{fill:#cf7420}.own{fill:#2f8f9d}.storage{fill:#b5548b}.wait{fill:#808a96}.detect{fill:#6b7480}
.boot{fill:#3d97da}.setup{fill:#3a6fb5}.restore{fill:#8a6fd1}.rework{fill:#c94f4f}.stall{fill:#b08a15}
.paused{fill:var(--line)}.axis{stroke:var(--line)}.overlap,.notice{fill:#d6336c}.commit{fill:var(--ink)}
.range{fill:#3d97da}.middle{fill:var(--ink)}
.paid{fill:none;stroke:#4263d9;stroke-width:2.5}.all_on_demand{fill:none;stroke:#cf7420;stroke-width:2.5;
stroke-dasharray:7 4}.key_paid{fill:#4263d9}.key_all_on_demand{fill:#cf7420}
.stale{position:fixed;inset:auto 0 0;margin:0;padding:.6rem 1rem;background:#a3241c;color:#fff}
"""

SCRIPT = """
document.addEventListener("click", event => {
  const head = event.target.closest("th button")?.closest("th");
  if (!head) return;
  const body = head.closest("table").tBodies[0];
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const figure = row => Number(row.cells[head.cellIndex].dataset.value);
  const rows = [...body.rows].sort((a, b) => (figure(a) - figure(b)) * (up ? 1 : -1));
  body.append(...rows);
});
"""

LIVE = """
const told = document.body.appendChild(document.createElement("p"));
told.className = "stale";
told.setAttribute("role", "status");
told.hidden = true;
let shown = document.querySelector("main").innerHTML, at = new Date();
const all = what => [...document.querySelectorAll(what)];
const controls = () => all("main a, main button, main summary, main [tabindex]");

const renew = page => {
  const fresh = page.querySelector("main");
  at = new Date();
  if (fresh.innerHTML === shown) return;
  shown = fresh.innerHTML;
  const focus = controls().indexOf(document.activeElement), open = all("main details").map(each => each.open);
  const tables = new Map(all("main .wide").map(wide => {
    const sorted = wide.querySelector("[aria-sort]");
    return [wide.getAttribute("aria-label"), [wide.scrollLeft, sorted?.cellIndex, sorted?.getAttribute("aria-sort")]];
  }));
  document.querySelector("main").replaceWith(fresh);
  document.title = page.title;
  all("main details").forEach((each, index) => each.open = open[index]);
  for (const wide of all("main .wide")) {
    const [left, column, order] = tables.get(wide.getAttribute("aria-label")) ?? [0];
    for (let click = order === "descending" ? 2 : order ? 1 : 0; click; click--)
      wide.querySelector("tr").cells[column].querySelector("button").click();
    wide.scrollLeft = left;
  }
  controls()[focus]?.focus({preventScroll: true});
};

const look = async () => {
  let trouble = "";
  if (!document.hidden) try {
    const answer = await fetch(location.pathname, {cache: "no-store", signal: AbortSignal.timeout(60000)});
    const text = await answer.text();
    if (answer.ok) renew(new DOMParser().parseFromString(text, "text/html"));
    else trouble = text;
  } catch {
    trouble = "spotrun view no longer answers.";
  }
  told.textContent = trouble && `This page is as of ${at.toLocaleTimeString()}: ${trouble}`;
  told.hidden = !trouble;
  setTimeout(look, 5000);
};
setTimeout(look, 5000);
"""
"""
Fetches the page every five seconds of system time while it is visible, and puts the new content in place of the old.
Where the reader is (scroll positions, sorted columns, open details, focus) stays as it is.
"""


def _allowed(inline: str) -> str:
    return f"'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'"


def _policy(script: str, *, live: bool) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {_allowed(STYLE)}",
            f"script-src {_allowed(script)}",
            *(["connect-src 'self'"] if live else []),
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def document(title: str, body: Markup, *, live: bool = False) -> str:
    """Return a page. If `live` is True, the page keeps itself up to date while a server answers at its address."""
    script = SCRIPT + LIVE if live else SCRIPT
    policy = _policy(script, live=live)
    head = join(
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    whole = join(element("head", head), element("body", body, element("script", Markup(script))))
    return f"<!doctype html>\n{element('html', whole, lang='en').text}\n"
