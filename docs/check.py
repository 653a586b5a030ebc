"""Looks at the built site: every public name has its entry, and no page fetches anything from elsewhere.

``python docs/check.py docs/_build/html``
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
import zlib
from html.parser import HTMLParser
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]
warnings.simplefilter("ignore")

from rooms import ROOMS, public_names  # noqa: E402

FETCHED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "embed": "src", "link": "href"}
IN_CSS = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", flags=re.I)


class Fetches(HTMLParser):
    """What a page fetches from other places than the site itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an address of elsewhere."""
        address = dict(attrs).get(FETCHED.get(tag, ""), None) or ""
        if re.match(r"(https?:)?//", address):
            self.found.append(f"<{tag}> {address}")


def missing_names(site: Path) -> list[str]:
    """Public names that are not in the site's inventory."""
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]  # below four lines of text
    lines = zlib.decompress(packed).decode("utf-8").splitlines()
    known = {line.split(" ", 1)[0] for line in lines if " py:" in line}
    missing = []
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in public_names(room):
            thing = getattr(module, name)
            homes = (room, getattr(thing, "__module__", room))
            elsewhere = [other for other in ROOMS if name in public_names(other)] if room == "fastrec.all" else []
            if not any(f"{home}.{name}" in known for home in (*homes, *elsewhere)):
                missing.append(f"{room}.{name}")
    return missing


def fetched_from_elsewhere(site: Path) -> list[str]:
    """Scripts, styles, fonts and pictures that a page or a style sheet of the site would fetch from another place."""
    found = []
    for page in sorted(site.rglob("*.html")):
        parser = Fetches()
        parser.feed(page.read_text(encoding="utf-8"))
        found += [f"{page.relative_to(site)}: {f}" for f in parser.found]
    for sheet in sorted([*site.rglob("*.css"), *site.rglob("*.html")]):
        if IN_CSS.search(sheet.read_text(encoding="utf-8")):
            found.append(f"{sheet.relative_to(site)}: a style's address")
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    problems = [f"no entry: {n}" for n in missing_names(folder)]
    problems += [f"fetched from elsewhere: {n}" for n in fetched_from_elsewhere(folder)]
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"{len(problems)} problems in {folder}")
    print(f"{sum(len(public_names(room)) for room in ROOMS)} public names, all in the reference")
