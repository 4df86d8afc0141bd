"""What the site has besides the files of docs/, and what it must not have.

Pages from elsewhere in the repository are added, and links to them are turned: a link to
``../CHANGELOG.md`` works on a git host and here. Each public package gets a page made of its
docstrings. A built page that would load something from another host is an error.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "turnout"
#: What docs/build_tutorial.py made of the scripts: pages, figures, notebooks.
TUTORIAL = ROOT / "build" / "tutorial"
#: Files outside docs/ that are pages of the site.
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/flower-volatile/README.md": "howto/flower-volatile.md",
    "examples/nvflare-volatile/README.md": "howto/nvflare-volatile.md",
}
#: Scripts of the tutorial, and their pages.
STEPS = {
    f"examples/{path.name}": f"tutorial/{path.stem}.md"
    for path in sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
}
#: Modules without a package of their own whose names users import.
MODULES = ("data.features", "report.watch", "results.metrics")
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
_IMAGE = re.compile(r"""<img\b[^>]*?\bsrc=["']?([^"'\s>]+)""", re.IGNORECASE)
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon|modulepreload))"""
    r"""[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|(?:url\(|@import )\s*["']?((?:https?:)?//[^"'\s)]+)""",
    re.IGNORECASE,
)


def public_modules() -> list[str]:
    """Return the packages that say by ``__all__`` what is public, and the modules beside them."""
    inits = (path for path in PACKAGE.rglob("__init__.py") if path.parent.name != "cli")
    packages = (path for path in inits if "__all__" in path.read_text(encoding="utf-8"))
    dotted = (".".join(path.parent.relative_to(PACKAGE.parent).parts) for path in packages)
    return sorted([*dotted, *(f"turnout.{name}" for name in MODULES)])


def added_pages() -> dict[str, str]:
    """Return the text of each page that is not a file of docs/, by its path in the site."""
    pages = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in OUTSIDE.items()}
    for name in public_modules():
        pages[f"api/{name}.md"] = f"# `{name}`\n\n::: {name}\n"
    return pages


def tutorial_files() -> list[Path]:
    """Return the pages, figures and notebooks of the tutorial, or say how to make them."""
    missing = [name for name in STEPS if not (TUTORIAL / Path(STEPS[name]).name).exists()]
    if missing:
        raise PluginError(f"{missing[0]} has not been executed: run make docs.")
    return sorted(path for path in TUTORIAL.iterdir() if path.is_file())


def turned(markdown: str, page: str, source: str) -> str:
    """Return a page whose links go where the linked files are in the site.

    Args:
        markdown: The page.
        page: Where the page is in the site.
        source: Where the page is in the repository.
    """

    def turn(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        is_beside = "/" not in match[2] and not (ROOT / target).exists()
        if source in STEPS and is_beside:
            return match[0]  # a figure that the script has drawn
        inside = (OUTSIDE | STEPS).get(target, target.removeprefix("docs/"))
        return match[1] + posixpath.relpath(inside, posixpath.dirname(page) or ".") + match[3]

    return _LINK.sub(turn, markdown)


def external_loads(text: str) -> list[str]:
    """Return what a page or a style sheet would fetch from other hosts; links do not count.

    Args:
        text: HTML or CSS.
    """
    return [address for groups in _LOADED.findall(text) for address in groups if address]


def missing_images(site: Path) -> list[str]:
    """Return the images of a built site that are not there, each after its page.

    Args:
        site: The folder of the site.
    """
    return [
        f"{page.relative_to(site)}: {source}"
        for page in sorted(site.rglob("*.html"))
        for source in _IMAGE.findall(page.read_text(encoding="utf-8"))
        if not urlsplit(source).scheme and not _file_of(source, page, site).is_file()
    ]


def _file_of(source: str, page: Path, site: Path) -> Path:
    path = unquote(urlsplit(source).path)
    return site / path.lstrip("/") if path.startswith("/") else page.parent / path


def expanded(nav: list[Any], pages: list[str]) -> list[Any]:
    """Return the navigation with pages in place of its patterns.

    Args:
        nav: As in mkdocs.yml. A page goes to the longest pattern that it matches.
        pages: All pages of the site.
    """
    entries = list(_entries(nav))
    patterns = sorted((entry for entry in entries if "*" in entry), key=len, reverse=True)
    matches: dict[str, list[str]] = {pattern: [] for pattern in patterns}
    for page in sorted(set(pages) - set(entries)):
        for pattern in patterns:
            if fnmatch(page, pattern):
                matches[pattern].append(page)
                break
    return _filled(nav, matches)


def _entries(nav: Any) -> Iterator[str]:
    """Yield every page or pattern of the navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for inner in nav.values() if isinstance(nav, dict) else nav:
            yield from _entries(inner)


def _filled(nav: list[Any], matches: dict[str, list[str]]) -> list[Any]:
    filled: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            ((title, inner),) = entry.items()
            if title == "*":
                filled += [
                    {page.rpartition("/")[2].removesuffix(".md"): page} for page in matches[inner]
                ]
                continue
            filled.append({title: inner if isinstance(inner, str) else _filled(inner, matches)})
        else:
            filled += matches.get(entry, [entry])
    return filled


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from elsewhere, and fill in the patterns of the navigation."""
    for path, text in added_pages().items():
        files.append(File.generated(config, path, content=text))
    for path in tutorial_files():
        files.append(File.generated(config, f"tutorial/{path.name}", abs_src_path=str(path)))
    config.nav = expanded(config.nav, [file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the links of a page."""
    sources = {inside: name for name, inside in (OUTSIDE | STEPS).items()}
    path = page.file.src_uri
    return turned(markdown, path, sources.get(path, f"docs/{path}"))


def on_post_build(config: Any) -> None:
    """Refuse a site that loads from other hosts or lacks images."""
    site = Path(config.site_dir)
    missing = missing_images(site)
    if missing:
        raise PluginError(f"{len(missing)} images are missing; the first is {missing[0]}.")
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        addresses = external_loads(path.read_text(encoding="utf-8"))
        if addresses:
            raise PluginError(
                f"{path.relative_to(site)} loads {addresses[0]}: serve it from docs/."
            )
