"""The page in a real Chromium, from the file system and without a network."""

import numpy as np
import pytest

from tests.report.browser import BrowserError, find_chromium
from tests.report.folders import (
    N_CLIENTS,
    SELECTORS,
    config_of,
    learning,
    write_cell,
    write_experiment,
)
from tests.report.test_page import ATTACK
from turnout.report import write_report

CHARTS = [
    "success", "success-moving", "cep", "regret", "bound", "counts", "lorenz", "fairness",
    "time", "round-time", "backlog-mean", "backlog-max",
]  # fmt: skip

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


@pytest.fixture(scope="module")
def page(browser, report):
    page = browser.open(report.path)
    yield page
    page.close()


@pytest.fixture(autouse=True)
def no_complaints(request):
    """Whatever a test does to the page, the page must not complain."""
    yield
    if "page" in request.fixturenames:
        page = request.getfixturevalue("page")
        assert page.complaints() == []


def press_chip(page, number, shift="false"):
    page.evaluate(
        f"document.querySelectorAll('.chip')[{number}].dispatchEvent("
        f"new MouseEvent('click', {{bubbles: true, shiftKey: {shift}}}))"
    )


def wait_for_shown(page, numbers):
    """Wait until every chart shows exactly these selectors, the map one of them."""
    wanted = sorted(numbers)
    page.wait(
        f"Object.entries({SHOWN}).every(([id, shown]) => id.endsWith('-map') "
        f"? (shown.length === 1 && {wanted}.includes(shown[0])) "
        f": JSON.stringify(shown) === JSON.stringify({wanted}))"
    )


def test_every_chart_is_drawn(page):
    drawn = page.evaluate(DRAWN)
    assert list(drawn) == [f"w0-{key}" for key in (*CHARTS[:6], "map", *CHARTS[6:])]
    for key, (n_marks, width, height) in drawn.items():
        assert n_marks >= (1 if key == "w0-map" else len(SELECTORS)), key
        assert width > 300, key
        assert height > 200, key


def test_nothing_is_asked_of_the_network(page):
    assert page.evaluate("navigator.onLine") is False
    others = [url for url in page.requested() if not url.startswith(("data:", "blob:"))]
    assert len(others) == 1
    assert others[0].startswith("file://")
    buttons = page.evaluate(
        "[...new Set([...document.querySelectorAll('.modebar-btn')]"
        ".map((one) => one.dataset.title))]"
    )
    assert len(buttons) == 6  # picture, zoom, pan, in, out, reset: none that uploads a chart
    assert not any("loud" in title or "hare" in title for title in buttons)
    assert page.evaluate("document.querySelectorAll('a[href]').length") == 0


def test_a_chip_toggles_its_selector_in_every_chart(page):
    everyone = range(len(SELECTORS))
    wait_for_shown(page, everyone)
    press_chip(page, 2)
    wait_for_shown(page, [0, 1, 3, 4, 5, 6])
    assert page.evaluate("document.querySelectorAll('.chip')[2].ariaPressed") == "false"
    assert page.evaluate("document.querySelectorAll('tr.off').length") == 1
    press_chip(page, 2)
    wait_for_shown(page, everyone)
    assert page.evaluate("document.querySelectorAll('.chip')[2].ariaPressed") == "true"
    press_chip(page, 4, shift="true")  # alone
    wait_for_shown(page, [4])
    page.evaluate("document.getElementById('show-all').click()")
    wait_for_shown(page, everyone)


def test_chips_work_from_the_keyboard(page):
    page.evaluate("document.querySelectorAll('.chip')[0].focus()")
    page.press("Tab", "Tab", 9)
    assert page.evaluate("document.activeElement.dataset.selector") == "1"
    page.press(" ", "Space", 32, " ")
    wait_for_shown(page, [0, 2, 3, 4, 5, 6])
    page.press("Enter", "Enter", 13, "\r")
    wait_for_shown(page, range(len(SELECTORS)))


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
    assert len({own for own, _ in colours}) == len(SELECTORS)
    for own, used in colours:
        assert used == [own]


def test_hovering_names_the_selectors(page):
    hover = "document.querySelector('#w0-{} .hoverlayer').textContent"
    page.point_at("#w0-cep .nsewdrag")
    for label in SELECTORS:
        page.wait(f"{hover.format('cep')}.includes({label!r})")
    page.point_at("#w0-round-time .nsewdrag")
    page.wait(f"{hover.format('round-time')}.includes('nine in ten')")
    page.point_at("#w0-map .nsewdrag", down=0.01)
    page.wait(f"{hover.format('map')}.includes('client 39, round ')")


def test_a_drag_zooms_and_survives_a_toggle(page):
    visible = "document.getElementById('w0-cep')._fullLayout.xaxis.range"
    page.drag("#w0-cep .nsewdrag", 0.25, 0.5)
    page.wait(f"{visible}[1] < 40")
    zoomed = page.evaluate(visible)
    assert zoomed == pytest.approx([60 / 4, 60 / 2], abs=2)
    press_chip(page, 1)
    wait_for_shown(page, [0, 2, 3, 4, 5, 6])
    assert page.evaluate(visible) == zoomed
    press_chip(page, 1)
    wait_for_shown(page, range(len(SELECTORS)))
    page.evaluate(
        "document.querySelector('#w0-cep [data-val=reset]').dispatchEvent(new MouseEvent('click'))"
    )
    page.wait(f"{visible}[1] > 59")


def test_the_map_follows_its_menus(page):
    def choose(menu, value):
        page.evaluate(
            f"(() => {{ const menu = document.getElementById('w0-map-{menu}');"
            f"menu.value = {value!r}; menu.dispatchEvent(new Event('change')); }})()"
        )

    of_map = "document.getElementById('w0-map')._fullData[0]"
    choose("selector", "3")
    page.wait(f"{of_map}.meta.selector === 3")
    before = page.evaluate(f"{of_map}.z.flat().reduce((a, b) => a + b)")
    choose("run", "mean of 3 seeds")
    page.wait(f"new Set({of_map}.z.flat()).size > 2")
    # 8 of 40 are chosen in each of 60 rounds, whichever way they are averaged
    after = page.evaluate(f"{of_map}.z.flat().reduce((a, b) => a + b)")
    assert before == 8 * 60
    assert after == pytest.approx(before, rel=0.01)
    press_chip(page, 3)  # the one on the map is hidden: the map takes another
    page.wait(f"{of_map}.meta.selector !== 3")
    press_chip(page, 3)
    page.wait(f"{of_map}.meta.selector === 3")


def test_dark_mode_repaints_page_and_charts(page):
    background = "getComputedStyle(document.body).backgroundColor"
    line = "document.getElementById('w0-cep')._fullData.at(-1).line.color"
    text = "document.getElementById('w0-cep')._fullLayout.font.color"
    light = [page.evaluate(one) for one in (background, line, text)]
    page.theme(dark=True)
    page.wait(f"{text} !== {light[2]!r}")
    dark = [page.evaluate(one) for one in (background, line, text)]
    assert all(before != after for before, after in zip(light, dark, strict=True))

    def brightness(colour):
        red, green, blue = colour.removeprefix("rgb(").rstrip(")").split(",")
        return int(red) + int(green) + int(blue)

    assert brightness(dark[0]) < 150 < 600 < brightness(light[0])
    page.theme(dark=False)
    page.wait(f"{text} === {light[2]!r}")


FITS = """(() => {
  const wide = window.innerWidth;
  const edges = [...document.querySelectorAll('.drawing .main-svg')]
    .map((one) => one.getBoundingClientRect());
  return document.documentElement.scrollWidth <= wide
    && edges.every((one) => one.width > 200 && one.right <= wide);
})()"""


def test_no_screen_scrolls_sideways(page):
    for width in (768, 1920, 1280):
        page.resize(width)
        page.wait(f"window.innerWidth === {width} && {FITS}")


def test_a_phone_shows_everything_upright_and_turned(browser, report):
    page = browser.open(report.path, width=360, height=740, mobile=True)
    assert page.evaluate("window.innerWidth") == 360
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(FITS)
    assert all(n_marks for n_marks, _, _ in page.evaluate(DRAWN).values())
    page.resize(740, 360, mobile=True)
    page.wait(f"window.innerWidth === 740 && {FITS}")
    page.resize(360, 740, mobile=True)
    page.wait(f"window.innerWidth === 360 && {FITS}")
    assert page.complaints() == []
    page.close()


def test_printing_is_light_and_comes_back(page):
    text = "document.getElementById('w0-cep')._fullLayout.font.color"
    page.theme(dark=True)
    page.wait(f"{text} === '#e7ebf0'")
    page.evaluate(f"window.addEventListener('beforeprint', () => {{ window.printed = {text}; }})")
    assert page.pdf().startswith(b"%PDF")
    assert page.evaluate("window.printed") == "#1d2430"
    page.wait(f"{text} === '#e7ebf0'")
    page.theme(dark=False)
    page.wait(f"{text} === '#1d2430'")


def test_a_hostile_folder_is_harmless(browser, tmp_path):
    config = config_of("random", 0, n_rounds=5, experiment=ATTACK, parameters={ATTACK: ATTACK})
    config |= {"classes": {"names": [ATTACK] * 4, "what": ATTACK}, "label": "x"}
    folder = write_cell(tmp_path / "runs", config, extra=lambda t: {ATTACK: 1.0})
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"label": "x"', '"label": "<img src=x>"'))
    out = write_report([tmp_path / "runs"], tmp_path / "r.html").path
    page = browser.open(out)
    assert page.complaints() == []
    assert page.evaluate("document.querySelector('.chip').textContent.trim()") == "<img src=x>"
    assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert "<img src=x>" in page.evaluate("document.querySelector('#w0-round-time').textContent")
    assert len([url for url in page.requested() if url.startswith("file:")]) == 1
    page.close()


def test_many_selectors_training_and_mixed_worlds_draw(browser, training, tmp_path):
    labels = [f"variant-{number}-with-quite-a-long-name-indeed" for number in range(18)]
    write_experiment(tmp_path / "many", labels, (0,), n_rounds=5)
    paths = [training, tmp_path / "many"]
    page = browser.open(write_report(paths, tmp_path / "r.html", allow_mixed=True).path, width=360)
    drawn = page.evaluate(DRAWN)
    assert {"w0-extra-0", "w0-extra-0-time", "w1-cep"} <= drawn.keys()
    assert all(n_marks for n_marks, _, _ in drawn.values())
    dashes = page.evaluate(
        "document.getElementById('w1-cep')._fullData.map((one) => one.line.dash)"
    )
    assert len(set(dashes)) == 3  # beyond eight colours, other dashes
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.complaints() == []
    page.close()


def test_losses_of_clients_and_rounds_to_an_accuracy(browser, tmp_path):
    rng = np.random.default_rng(0)
    for label in ("random", "e3cs-0.5"):
        for seed in (0, 1):
            config = config_of(label, seed, n_rounds=21, kind="training")
            config["training"] = {"target_accuracy": [0.3, 0.99]}
            scores = (rng.random(N_CLIENTS), rng.random(N_CLIENTS))
            write_cell(tmp_path, config, extra=learning(seed), scores=scores)
    for width in (1280, 360):
        page = browser.open(write_report([tmp_path], tmp_path / "r.html").path, width=width)
        n_marks, chart_width, _ = page.evaluate(DRAWN)["w0-local-loss"]
        assert n_marks == 2  # a step line for each selector
        assert chart_width > 0.7 * width
        text = page.evaluate("document.querySelectorAll('.scroll')[1].innerText")
        assert "0.3, rounds" in text
        assert "0 of 2 seeds" in text  # nobody reaches 0.99
        press_chip(page, 0)
        wait_for_shown(page, [1])
        off = page.evaluate(
            "[...document.querySelectorAll('.scroll')].slice(0, 2)"
            ".map((one) => one.querySelectorAll('tr.off').length)"
        )
        assert off == [1, 1]  # its row in both tables
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.complaints() == []
        page.close()


def test_a_missing_chromium_fails_with_the_remedy(monkeypatch):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BrowserError, match="make browser"):
        find_chromium()
