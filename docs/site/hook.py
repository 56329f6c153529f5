"""What MkDocs does not do by itself: the README as the first page, and links that lead out of `docs/`."""

import re
import tomllib
from pathlib import Path
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = f"{PROJECT['urls']['Repository']}/blob/main"
_LINK = re.compile(r'(\]\(|<img[^>]*src=")([^)\s"#]*)')


def anchor(heading: str, separator: str) -> str:
    """As GitHub makes them, where the same pages are read, too."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings their anchors."""
    config.mdx_configs.setdefault("toc", {}).update(slugify=anchor, permalink=True)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The README is the first page; its table of settings is a page of its own."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    before, _, rest = readme.partition("## Settings\n")
    settings, _, after = rest.partition("\n## ")
    settings = re.sub(r"</?details>\n|<summary>.*</summary>\n", "", settings)
    pages = {
        "index.md": f"{before}## {after}" if after else before,
        "settings.md": f"# Settings\n{settings}",
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=from_docs(content)))
    return files


def from_docs(markdown: str) -> str:
    """The links of a page at the root, as from a page in `docs/`."""
    return _LINK.sub(lambda link: link[1] + _from_docs(link[2]), markdown)


def _from_docs(target: str) -> str:
    if not target or re.match(r"[a-z]+:", target):
        return target
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to what is no page lead to the sources; what stands behind a comment is no part of it."""
    folder = Path("docs", page.file.src_uri).parent

    def lead(link: re.Match[str]) -> str:
        target = link[2]
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        path = normpath(folder / target)
        if path == "README.md":
            return link[1] + "index.md"
        if path.startswith("docs/") and files.get_file_from_path(path.removeprefix("docs/")):
            return link[0]
        return f"{link[1]}{SOURCES}/{path}" if (ROOT / path).exists() else link[0]

    return _LINK.sub(lead, re.sub(r"^(<!--.*-->)\n", r"\1\n\n", markdown, flags=re.MULTILINE))
