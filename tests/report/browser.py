"""Debian's Chromium by Playwright: nothing is downloaded, and pages are opened offline."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--disable-sync")
#: Drawing takes seconds on a free processor, and ten times as long on one that many tests share.
TIMEOUT_MS = 120_000

# Which charts show a selector: traces that plotly calculated and that are visible.
SHOWN = """(() => {
  const shown = {};
  for (const plot of document.querySelectorAll('.drawing')) {
    shown[plot.id] = [...new Set(plot._fullData.filter((trace) => trace.visible === true)
      .map((trace) => trace.meta.selector).filter((number) => number !== undefined))].sort();
  }
  return shown;
})()"""

# What is drawn: data paths, boxes, bars and images with a size.
DRAWN = """Object.fromEntries([...document.querySelectorAll('.drawing')].map((plot) => {
  const marks = plot.querySelectorAll('.scatterlayer path, .boxlayer path, .barlayer path, image');
  const sizes = [...marks].map((mark) => mark.getBoundingClientRect());
  const box = plot.querySelector('.main-svg').getBoundingClientRect();
  return [plot.id, [sizes.filter((one) => one.width > 0 || one.height > 0).length,
    box.width, box.height]];
}))"""

# Whether nothing is wider than the screen.
FITS = """(() => {
  const wide = window.innerWidth;
  const edges = [...document.querySelectorAll('.drawing .main-svg')]
    .map((one) => one.getBoundingClientRect());
  return document.documentElement.scrollWidth <= wide
    && edges.every((one) => one.width > 200 && one.right <= wide);
})()"""


def find_chromium():
    paths = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES)]
    path = next(filter(None, paths), None)
    if path is None:
        raise AssertionError(
            "Chromium is not installed: run `make browser`, or set CHROMIUM=/path."
        )
    return path


@contextmanager
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        yield browser
        browser.close()


def open_page(browser, path, *, width=1280, height=900, mobile=False):
    """Open a file in a context of its own, and wait until all charts are drawn."""
    context = browser.new_context(
        offline=True,
        viewport={"width": width, "height": height},
        is_mobile=mobile,
        has_touch=mobile,
    )
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    page.goto(Path(path).resolve().as_uri())
    wait(page, "document.documentElement?.dataset.ready === 'true'")
    return page


def wait(page, expression):
    """Wait until an expression is true; as a function, the page's own policy allows it."""
    page.wait_for_function(f"() => {expression}")


def complaints(page):
    """Exceptions, console errors and warnings, and what the browser itself logged."""
    said = [m.text for m in page.console_messages() if m.type in ("error", "warning", "assert")]
    return said + [str(error) for error in page.page_errors()]


def point_at(page, selector, across=0.5, down=0.5):
    """Move the mouse over an element, to a share of its width and height."""
    element = page.locator(selector).first
    element.evaluate("(element) => element.scrollIntoView({block: 'center'})")
    box = element.bounding_box()
    # in steps: a pointer that appears is not one that moves
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"], steps=3)


def press_chip(page, number, modifiers=()):
    page.locator(".chip").nth(number).click(modifiers=modifiers)


def wait_for_shown(page, numbers):
    """Wait until every chart shows exactly these selectors, the map one and a sweep some."""
    wanted = sorted(numbers)
    wait(
        page,
        f"Object.entries({SHOWN}).every(([id, shown]) => id.endsWith('-map') "
        f"? (shown.length === 1 && {wanted}.includes(shown[0])) : id.includes('-swept-') "
        f"? shown.every((number) => {wanted}.includes(number)) "
        f": JSON.stringify(shown) === JSON.stringify({wanted}))",
    )
