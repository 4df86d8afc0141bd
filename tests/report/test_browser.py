"""The page in a real Chromium, from the file system and without a network."""

from pathlib import Path

import pytest

from tests.report.browser import (
    DRAWN,
    FITS,
    chromium,
    complaints,
    find_chromium,
    open_page,
    point_at,
    press_chip,
    wait,
    wait_for_shown,
)
from tests.report.folders import LABELS, change_json, change_rounds, run_cell, run_folder
from tests.report.live_folders import HOSTILE, live_folder
from tests.report.test_page import ATTACK
from turnout.experiment import Variant
from turnout.report import write_report

CHARTS = [
    "swept-0", "success", "success-moving", "cep", "regret", "bound", "counts", "lorenz",
    "fairness", "time", "round-time", "backlog-mean", "backlog-max",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """Open for this module only: Playwright's event loop would be in the way of others."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(browser, report):
    return open_page(browser, report.path)


@pytest.fixture(autouse=True)
def no_complaints(browser):
    """Whatever a test does to a page, the page must not complain."""
    yield
    pages = [page for context in browser.contexts for page in context.pages]
    assert [complaint for page in pages for complaint in complaints(page)] == []


@pytest.fixture
def visit(browser):
    """Opens pages that are closed after the test, when they have been asked for complaints."""
    pages = []

    def visit(path, **view):
        pages.append(open_page(browser, path, **view))
        return pages[-1]

    yield visit
    said = [complaint for page in pages for complaint in complaints(page)]
    for page in pages:
        page.context.close()
    assert said == []


def test_every_chart_is_drawn(page):
    drawn = page.evaluate(DRAWN)
    assert list(drawn) == [f"w0-{key}" for key in (*CHARTS[:7], "map", *CHARTS[7:])]
    for key, (n_marks, width, height) in drawn.items():
        assert n_marks >= (1 if key == "w0-map" else len(LABELS)), key
        assert width > 300, key
        assert height > 200, key


def test_nothing_is_asked_of_the_network(page):
    assert page.evaluate("navigator.onLine") is False
    urls = [request.url for request in page.requests()]
    (own,) = [url for url in urls if not url.startswith(("data:", "blob:"))]
    assert own.startswith("file://")
    buttons = page.evaluate(
        "[...new Set([...document.querySelectorAll('.modebar-btn')]"
        ".map((one) => one.dataset.title))]"
    )
    assert len(buttons) == 6  # picture, zoom, pan, in, out, reset: none that uploads a chart
    assert not any("loud" in title or "hare" in title for title in buttons)
    links = page.evaluate("[...document.links].map((link) => link.getAttribute('href'))")
    assert all(link.startswith(("#", "data:text/csv")) for link in links)


def test_the_numbers_can_be_saved(page):
    for press, columns in (("a[download]", "experiment,world,label,"), ("#curves", "chart,")):
        with page.expect_download() as download:
            page.click(press)
        lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith(columns)
        assert len(lines) > len(LABELS)
        assert all(any(label in line for line in lines) for label in LABELS)


def test_the_summary_fits_a_screen_and_has_more_on_demand(visit, report):
    page = visit(report.path, width=1440)
    width = "[...document.querySelectorAll('.scroll')].map((one) => one.scrollWidth)"
    room = "[...document.querySelectorAll('.scroll')].map((one) => one.clientWidth)"
    assert page.evaluate(width) == page.evaluate(room)
    gini = page.locator("th.extra", has_text="Gini of counts")
    assert not gini.is_visible()
    page.check("text=All columns")
    assert gini.is_visible()


def test_a_chip_toggles_its_selector_in_every_chart(page):
    everyone = range(len(LABELS))
    wait_for_shown(page, everyone)
    press_chip(page, 2)
    wait_for_shown(page, [0, 1, 3, 4, 5, 6])
    assert page.evaluate("document.querySelectorAll('.chip')[2].ariaPressed") == "false"
    assert page.evaluate("document.querySelectorAll('tr.off').length") == 2  # means, differences
    press_chip(page, 2)
    wait_for_shown(page, everyone)
    assert page.evaluate("document.querySelectorAll('.chip')[2].ariaPressed") == "true"
    press_chip(page, 4, modifiers=["Shift"])  # alone
    wait_for_shown(page, [4])
    page.click("#show-all")
    wait_for_shown(page, everyone)


def test_chips_work_from_the_keyboard(page):
    page.locator(".chip").first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.selector") == "1"
    page.keyboard.press("Space")
    wait_for_shown(page, [0, 2, 3, 4, 5, 6])
    page.keyboard.press("Enter")
    wait_for_shown(page, range(len(LABELS)))


def test_a_selector_has_one_colour_everywhere(page):
    colours = page.evaluate("""[...document.querySelectorAll('.chip')].map((chip) => {
      const number = Number(chip.dataset.selector);
      const own = getComputedStyle(chip.querySelector('.swatch')).color;
      const probe = document.createElement('i');
      const used = new Set();
      for (const plot of document.querySelectorAll('.drawing')) {
        for (const trace of plot._fullData) {
          if (trace.meta.selector !== number || trace.meta.role === 'map') continue;
          const line = { bar: trace.marker, tip: trace.marker, band: { color: trace.fillcolor } };
          probe.style.color = (line[trace.meta.role] || trace.line).color;
          used.add(probe.style.color.replace('rgba', 'rgb').replace(/, 0?\\.\\d+\\)/, ')'));
        }
      }
      return [own, [...used]];
    })""")
    assert len({own for own, _ in colours}) == len(LABELS)
    for own, used in colours:
        assert used == [own]


def test_hovering_names_the_selectors(page):
    hover = "document.querySelector('#w0-{} .hoverlayer').textContent"
    point_at(page, "#w0-cep .nsewdrag")
    for label in LABELS:
        wait(page, f"{hover.format('cep')}.includes({label!r})")
    point_at(page, "#w0-round-time .nsewdrag")
    wait(page, f"{hover.format('round-time')}.includes('nine in ten')")
    point_at(page, "#w0-map .nsewdrag", down=0.01)
    wait(page, f"{hover.format('map')}.includes('client 39, round ')")


def test_a_drag_zooms_and_survives_a_toggle(page):
    visible = "document.getElementById('w0-cep')._fullLayout.xaxis.range"
    point_at(page, "#w0-cep .nsewdrag", across=0.25)
    page.mouse.down()
    point_at(page, "#w0-cep .nsewdrag", across=0.5)
    page.mouse.up()
    wait(page, f"{visible}[1] < 40")
    zoomed = page.evaluate(visible)
    assert zoomed == pytest.approx([60 / 4, 60 / 2], abs=2)
    press_chip(page, 1)
    wait_for_shown(page, [0, 2, 3, 4, 5, 6])
    assert page.evaluate(visible) == zoomed
    press_chip(page, 1)
    wait_for_shown(page, range(len(LABELS)))
    page.locator("#w0-cep [data-val=reset]").dispatch_event("click")
    wait(page, f"{visible}[1] > 59")


def test_the_map_follows_its_menus(page):
    of_map = "document.getElementById('w0-map')._fullData[0]"
    page.select_option("#w0-map-selector", "3")
    wait(page, f"{of_map}.meta.selector === 3")
    before = page.evaluate(f"{of_map}.z.flat().reduce((a, b) => a + b)")
    page.select_option("#w0-map-run", "mean of 3 seeds")
    wait(page, f"new Set({of_map}.z.flat()).size > 2")
    # 8 of 40 are chosen in each of 60 rounds, whichever way they are averaged
    after = page.evaluate(f"{of_map}.z.flat().reduce((a, b) => a + b)")
    assert before == 8 * 60
    assert after == pytest.approx(before, rel=0.01)
    press_chip(page, 3)  # the one on the map is hidden: the map takes another
    wait(page, f"{of_map}.meta.selector !== 3")
    press_chip(page, 3)
    wait(page, f"{of_map}.meta.selector === 3")


def test_dark_mode_repaints_page_and_charts(page):
    background = "getComputedStyle(document.body).backgroundColor"
    line = "document.getElementById('w0-cep')._fullData.at(-1).line.color"
    text = "document.getElementById('w0-cep')._fullLayout.font.color"
    light = [page.evaluate(one) for one in (background, line, text)]
    page.emulate_media(color_scheme="dark")
    wait(page, f"{text} !== {light[2]!r}")
    dark = [page.evaluate(one) for one in (background, line, text)]
    assert all(before != after for before, after in zip(light, dark, strict=True))

    def brightness(colour):
        red, green, blue = colour.removeprefix("rgb(").rstrip(")").split(",")
        return int(red) + int(green) + int(blue)

    assert brightness(dark[0]) < 150 < 600 < brightness(light[0])
    page.emulate_media(color_scheme="light")
    wait(page, f"{text} === {light[2]!r}")


def test_no_screen_scrolls_sideways(page):
    for width in (768, 1920, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        wait(page, f"window.innerWidth === {width} && {FITS}")


def test_a_phone_shows_everything_upright_and_turned(visit, report):
    page = visit(report.path, width=360, height=740, mobile=True)
    assert page.evaluate("window.innerWidth") == 360
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(FITS)
    assert all(n_marks for n_marks, _, _ in page.evaluate(DRAWN).values())
    page.set_viewport_size({"width": 740, "height": 360})
    wait(page, f"window.innerWidth === 740 && {FITS}")
    page.set_viewport_size({"width": 360, "height": 740})
    wait(page, f"window.innerWidth === 360 && {FITS}")


def test_printing_is_light_and_comes_back(page):
    text = "document.getElementById('w0-cep')._fullLayout.font.color"
    page.emulate_media(color_scheme="dark")
    wait(page, f"{text} === '#e7ebf0'")
    page.evaluate(f"window.addEventListener('beforeprint', () => {{ window.printed = {text}; }})")
    assert page.pdf().startswith(b"%PDF")
    assert page.evaluate("window.printed") == "#1d2430"
    wait(page, f"{text} === '#e7ebf0'")
    page.emulate_media(color_scheme="light")
    wait(page, f"{text} === '#1d2430'")


def test_a_hostile_folder_is_harmless(visit, tmp_path):
    cell = run_cell(tmp_path / "runs", "random", n_rounds=5)
    hostile = {"experiment": ATTACK, "parameters": {ATTACK: ATTACK}, "label": "<img src=x>"}
    classes = {"names": [ATTACK] * 4, "what": ATTACK}
    change_json(cell / "config.json", **hostile, classes=classes)
    change_rounds(cell, lambda t: {ATTACK: 1.0})
    page = visit(write_report([tmp_path / "runs"], tmp_path / "r.html").path)
    assert page.evaluate("document.querySelector('.chip').textContent.trim()") == "<img src=x>"
    assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert "<img src=x>" in page.evaluate("document.querySelector('#w0-round-time').textContent")
    urls = [request.url for request in page.requests()]
    assert len([url for url in urls if url.startswith("file:")]) == 1


def test_a_script_that_is_not_ours_does_not_run(browser, report):
    page = open_page(browser, report.path)
    page.evaluate("""() => {
      const script = document.createElement('script');
      script.textContent = 'window.ran = true';
      document.body.append(script);
    }""")
    assert page.evaluate("window.ran") is None
    assert "Content Security Policy" in complaints(page)[0]
    page.context.close()


def test_many_selectors_training_and_mixed_worlds_draw(visit, training, tmp_path):
    labels = [f"variant-{number}-with-quite-a-long-name-indeed" for number in range(18)]
    variants = [Variant("random", label) for label in labels]
    run_folder(tmp_path / "many", *variants, seeds=1, n_rounds=5)
    paths = [training, tmp_path / "many"]
    page = visit(write_report(paths, tmp_path / "r.html", allow_mixed=True).path, width=360)
    drawn = page.evaluate(DRAWN)
    assert {"w0-extra-0", "w0-extra-0-time", "w1-cep"} <= drawn.keys()
    assert all(n_marks for n_marks, _, _ in drawn.values())
    dashes = page.evaluate(
        "document.getElementById('w1-cep')._fullData.map((one) => one.line.dash)"
    )
    assert len(set(dashes)) == 3  # beyond eight colours, other dashes
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_losses_of_clients_and_rounds_to_an_accuracy(visit, trained, tmp_path):
    for config in trained.glob("*/*/config.json"):
        change_json(config, training={"target_accuracy": [0.3, 0.99]})
    report = write_report([trained / "random", trained / "e3cs-0.5"], tmp_path / "r.html")
    for width in (1280, 360):
        page = visit(report.path, width=width)
        n_marks, chart_width, _ = page.evaluate(DRAWN)["w0-local-loss"]
        assert n_marks == 2  # a step line for each selector
        assert chart_width > 0.7 * width
        text = page.evaluate("document.querySelectorAll('.scroll')[1].innerText")
        assert "Rounds to 0.3" in text
        assert "0 of 2 seeds" in text  # nobody reaches 0.99
        press_chip(page, 0)
        wait_for_shown(page, [1])
        off = page.evaluate(
            "[...document.querySelectorAll('.scroll')].slice(0, 2)"
            ".map((one) => one.querySelectorAll('tr.off').length)"
        )
        assert off == [1, 1]  # its row in both tables
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_missing_chromium_fails_with_the_remedy(monkeypatch):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AssertionError, match="make browser"):
        find_chromium()


@pytest.mark.parametrize("width", [1440, 400])
def test_a_live_run_by_name_and_a_script_as_a_name_does_nothing(visit, tmp_path, width):
    folder = live_folder(tmp_path / "runs", 12, names=[HOSTILE])
    page = visit(write_report([folder], tmp_path / "live.html").path, width=width)
    assert page.evaluate(FITS)
    assert page.title() == "runs · turnout report"
    map_ = "#w0-live-0-status"
    names = page.locator(f"{map_} .ytick text")
    assert names.filter(has_text="<script>").count() == 1
    assert page.evaluate(f"document.querySelector('{map_}').data[0].z.length") == 12
    tips = page.evaluate(f"document.querySelector('{map_}').data[0].text.flat()")
    assert any(tip.endswith(": in time") for tip in tips)
    colours = page.evaluate(f"document.querySelector('{map_}').data[0].colorscale")
    assert len({colour for _, colour in colours}) == 7
    for key in ("status", "answers", "waits", "shares"):
        drawn, width, height = page.evaluate(DRAWN)[f"w0-live-0-{key}"]
        assert drawn > 0
        assert width > 250
        assert height > 100
