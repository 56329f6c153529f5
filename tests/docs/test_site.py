"""The pages as a site: every page is in the navigation, the build has no warning, and nothing external is loaded."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GENERATED = {"index.md", "settings.md"}
"""Made of the README."""


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """docs/site/check.py, which runs in an environment without this project."""
    spec = importlib.util.spec_from_file_location("site_check", ROOT / "docs/site/check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaves(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return set().union(*(leaves(part) for part in (nav.values() if isinstance(nav, dict) else nav)))


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("*.md")}
    assert leaves(config["nav"]) == pages | GENERATED


@pytest.mark.parametrize(
    ("name", "content", "loads"),
    [
        ("a.html", '<script src="https://example.com/x.js"></script>', True),
        ("a.html", '<link rel="stylesheet" href="//fonts.example.com/css">', True),
        ("a.html", '<img src="http://example.com/x.png">', True),
        ("a.css", "@import 'https://example.com/x.css';", True),
        ("a.css", "a { background: url(//example.com/x.png) }", True),
        ("a.html", '<a href="https://example.com/">there</a>', False),
        ("a.html", '<link rel="canonical" href="https://example.com/a.html">', False),
        ("a.html", '<script src="assets/x.js"></script><img src="journey.svg">', False),
        ("a.css", "a { background: url(data:image/svg+xml;utf8,x) }", False),
    ],
)
def test_external_resources_are_found(check: ModuleType, tmp_path: Path, name: str, content: str, loads: bool) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert bool(check.foreign(tmp_path)) is loads


def test_the_site_is_built_without_a_warning(check: ModuleType, tmp_path: Path) -> None:
    mkdocs = shutil.which("mkdocs", path=str(ROOT / ".venv-docs/bin")) or shutil.which("mkdocs")
    if mkdocs is None:
        pytest.skip("no mkdocs found: make docs installs it in .venv-docs")
    command = [mkdocs, "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert check.foreign(tmp_path / "site") == []
    settings = (tmp_path / "site/settings.html").read_text(encoding="utf-8")
    assert "ORCASTREAM_MAX_QUEUE_DEPTH" in settings
    assert "Two commands" in (tmp_path / "site/index.html").read_text(encoding="utf-8")
