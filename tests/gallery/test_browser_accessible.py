"""Every page in both themes: nothing serious that axe-core finds, no tiny words, no endless page on a phone.

vendor/axe.min.js is axe-core 4.14.1 (MPL 2.0, vendor/LICENSE-axe-core), as npm has it; it is of the tests alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from diffrl.gallery.votes import Side, add_vote
from tests.gallery import made_trees
from tests.gallery.made import make_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
SERIOUS = """async (rules) => (await axe.run(document, rules)).violations
  .filter((found) => ["serious", "critical"].includes(found.impact))
  .map((found) => [found.id, found.nodes.slice(0, 3).map((one) => one.html.slice(0, 200))])"""
SMALL = """() => {
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement, drawing = one.closest("svg") && one.getScreenCTM?.();
    if (!walk.currentNode.textContent.trim() || !one.getClientRects().length) continue;
    if (one.closest("script, style, noscript, title, .visually-hidden")) continue;
    const size = parseFloat(getComputedStyle(one).fontSize) * (drawing ? Math.hypot(drawing.a, drawing.b) : 1);
    if (size < 11.99) found.push([size, one.outerHTML.slice(0, 200)]);
  }
  return found.slice(0, 5);
}"""
"""Words below 12 pixels as they are drawn, a drawing's scaled with it; what is folded away is looked at too."""
LONGEST = 6000
"""Pixels of a page on a phone."""
SIX = "&".join(f"columns={run}@eval-{number}" for run in ("made", "other", "other-2") for number in (0, 4))
PAGES = (
    *("/", "/nothing", f"/compare?{SIX}"),
    *("/run?run=made", "/compare", "/compare?run=made&show=worse", "/compare?columns=made@eval-4", "/curves", "/votes"),
    *("/vote?run=made", "/trees?run=made", "/tree?run=made&tree=000020-3", "/tree?run=made&tree=000021-3"),
    *("/tree?run=made&tree=000022-3", "/tree?run=made&tree=000023-3"),
    "/report?run=made",
)


def test_no_page_has_a_serious_violation(tmp_path, served, context_of):
    prompts = [f"a red circle above blue square number {n}" for n in range(40)]
    names = ("made", "other", "an-arm-of-a-comparison.with-a-name-that-is-long/other")  # which is the page's other-2
    runs = [make_run(tmp_path / "runs" / name, prompts=prompts) for name in names]
    made_trees.write(runs[0], made_trees.forest())
    for number, tree in enumerate((made_trees.pool, made_trees.chains, made_trees.tilted), start=21):
        made_trees.write(runs[0], tree(iteration=number))
    for a, b in ((0, 1), (1, 2)):
        sides = [Side(runs[i].name, str(runs[i].resolve()), "eval-4", ("p", 0, 0, 0, ""), "") for i in (a, b)]
        add_vote(tmp_path / "votes.jsonl", "", "s", *sides, "a", "b")
    base = served(*runs)
    page = context_of(viewport={"width": 1280, "height": 800}, color_scheme="light", bypass_csp=True).new_page()
    for address in PAGES:
        page.goto(f"{base}{address}")
        page.add_script_tag(path=AXE)
        assert page.evaluate(SERIOUS, {}) == [], address
        page.emulate_media(color_scheme="dark")  # where colours alone are others
        assert page.evaluate(SERIOUS, {"runOnly": ["color-contrast"]}) == [], ("dark", address)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{base}{address}")  # as a phone opens it, with nothing unfolded
        wide, high = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        assert wide <= 390 and high <= LONGEST, (address, wide, high)
        assert page.evaluate(SMALL) == [], (390, address)
        page.set_viewport_size({"width": 1280, "height": 800})
        assert page.evaluate(SMALL) == [], address
