"""Everything that the pages refer to exists: files, headings, tests."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "node_modules" not in path.parts
)


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def existing_tests() -> frozenset[str]:
    """Return the names of all test functions and test files."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.add(path.stem)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        found.update(node.name for node in functions)
    return frozenset(found)


def anchor(heading: str) -> str:
    """Return GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_resolve(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)|<img[^>]*src=\"([^\"]+)\"", text):
        link = target[0] or target[1]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in map(anchor, headings), link


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_named_tests_exist(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")))
    assert named <= existing_tests()


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_named_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    roots = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
    for path in re.findall(rf"`((?:{roots})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
