"""Whether a built site loads nothing from another host: `python check.py build/site`."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

_LOADED = {(tag, "src") for tag in ("script", "img", "iframe", "source")} | {("object", "data"), ("link", "href")}
_NOT_LOADED = {"canonical", "next", "prev", "alternate"}
"""Kinds of `link` that lead somewhere, and bring nothing."""


class _Loads(HTMLParser):
    """Addresses on other hosts that a browser would ask by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        given = dict(attrs)
        if tag == "link" and set((given.get("rel") or "").split()) <= _NOT_LOADED:
            return
        for name, value in given.items():
            if (tag, name) in _LOADED and re.match(r"(https?:)?//", value or ""):
                self.found.append(f"<{tag} {name}={value}>")


def foreign(site: Path) -> list[str]:
    """What the pages and style sheets of a site load from other hosts, with the file that says so."""
    found = []
    for page in sorted(site.rglob("*.html")):
        loads = _Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        found += [f"{page}: {one}" for one in loads.found]
    for sheet in sorted(site.rglob("*.css")):
        loaded = re.findall(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)", sheet.read_text(encoding="utf-8"))
        found += [f"{sheet}: {one}" for one in loaded]
    return found


if __name__ == "__main__":
    loaded = foreign(Path(sys.argv[1]))
    print("\n".join(loaded), file=sys.stderr)
    sys.exit(1 if loaded else 0)
