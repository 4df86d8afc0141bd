// Draws the charts from the embedded data and toggles selectors in all.
(() => {
  "use strict";
  const { PAPER_MAP, config, drawChart, hidden, isNarrow, layoutOf, readTheme, redrawBy } = figures;
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;

  // ----- maps: one selector at a time, chosen from a menu
  function unpacked(text, nRows) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const nColumns = bytes.length / nRows;
    return Array.from({ length: nRows }, (_, row) =>
      Array.from(bytes.subarray(row * nColumns, (row + 1) * nColumns), (level) => level / 255));
  }

  function fillMenu(menu, options) {
    const before = menu.dataset.wanted || menu.value;
    menu.replaceChildren(...options.map(([value, text, isOff]) => {
      const option = new Option(text, value);
      option.disabled = Boolean(isOff);
      return option;
    }));
    const free = options.filter(([, , isOff]) => !isOff).map(([value]) => String(value));
    menu.value = free.includes(before) ? before : free.length ? free[0] : "";
  }

  function drawMap(id) {
    const { maps, rows, columns, x, groups } = data.maps[id];
    const selectors = document.getElementById(`${id}-selector`);
    const runs = document.getElementById(`${id}-run`);
    fillMenu(selectors, maps.map((map, i) => [i, map.name, hidden.has(map.selector)]));
    const map = maps[selectors.value];
    fillMenu(runs, Object.keys(map ? map.runs : {}).map((run) => [run, run]));
    const traces = map ? [{
      type: "heatmap", meta: { selector: map.selector, role: "map" },
      z: unpacked(map.runs[runs.value], rows.length), x, zmin: 0, zmax: 1,
      colorscale: "Cividis",
      text: rows.map((row) => columns.map((column) => `${row}, ${column}`)),
      hovertemplate: "%{text}<br>chosen in %{z:.0%} of rounds<extra></extra>",
      colorbar: colourBar(),
    }] : [];
    return Plotly.react(id, traces, layoutOf(mapLayout(groups), readTheme(), PAPER_MAP), config);
  }

  function colourBar() {
    const bar = { tickformat: ".0%", thickness: 12, outlinewidth: 0 };
    const below = { orientation: "h", x: 0.5, y: -0.16, yanchor: "top", len: 1 };
    return isNarrow.matches ? { ...bar, ...below } : bar;
  }

  function mapLayout(groups) {
    const yaxis = { title: { text: groups.length ? "client class" : "client" }, showgrid: false };
    if (groups.length) {
      yaxis.tickvals = groups.map((group) => (group.first + group.last) / 2);
      yaxis.ticktext = groups.map((group) => group.name);
    }
    const borders = groups.slice(1).map((group) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: group.first - 0.5, y1: group.first - 0.5,
      line: { color: "#ffffff", width: 2 },
    }));
    return {
      xaxis: { title: { text: "round" }, showgrid: false }, yaxis, shapes: borders,
      hovermode: "closest",
    };
  }

  // ----- curves as a file
  function quoted(text) {
    return `"${String(text).replaceAll('"', '""')}"`;
  }

  function curvesCsv() {
    const lines = ["chart,selector,x,y"];
    for (const [id, { traces }] of Object.entries(data.charts)) {
      for (const { meta, x, y } of traces.filter((trace) => trace.meta.role === "line")) {
        const chip = document.querySelector(`.chip[data-selector="${meta.selector}"]`);
        const start = `${quoted(id)},${quoted(chip.textContent.trim())}`;
        lines.push(...x.map((value, i) => `${start},${value},${y[i] ?? ""}`));
      }
    }
    return `${lines.join("\n")}\n`;
  }

  function save(text, name) {
    const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    Object.assign(document.createElement("a"), { href: address, download: name }).click();
    URL.revokeObjectURL(address);
  }

  // ----- all at once
  function drawAll() {
    return Promise.all([
      ...Object.entries(data.charts).map(([id, chart]) => drawChart(id, chart)),
      ...Object.keys(data.maps).map((id) => drawMap(id)),
    ]);
  }

  function showState() {
    for (const chip of document.querySelectorAll(".chip")) {
      chip.setAttribute("aria-pressed", String(!hidden.has(Number(chip.dataset.selector))));
    }
    for (const row of document.querySelectorAll("tr[data-selector]")) {
      row.classList.toggle("off", hidden.has(Number(row.dataset.selector)));
    }
    return drawAll();
  }

  function toggle(selector, isAlone) {
    if (isAlone) {
      hidden.clear();
      for (const chip of document.querySelectorAll(".chip")) {
        hidden.add(Number(chip.dataset.selector));
      }
      hidden.delete(selector);
    } else if (!hidden.delete(selector)) {
      hidden.add(selector);
    }
    return showState();
  }

  function listen() {
    for (const chip of document.querySelectorAll(".chip")) {
      chip.addEventListener("click", (event) =>
        toggle(Number(chip.dataset.selector), event.shiftKey));
    }
    document.getElementById("show-all").addEventListener("click", () => {
      hidden.clear();
      showState();
    });
    document.getElementById("curves").addEventListener("click", () =>
      save(curvesCsv(), "curves.csv"));
    for (const id of Object.keys(data.maps)) {
      for (const name of ["selector", "run"]) {
        const menu = document.getElementById(`${id}-${name}`);
        menu.addEventListener("change", () => {
          menu.dataset.wanted = menu.value;
          drawMap(id);
        });
      }
    }
    redrawBy(drawAll);
  }

  // One chart after the other, so that the page can be read and scrolled meanwhile.
  async function start() {
    listen();
    const draws = [
      ...Object.entries(data.charts).map(([id, chart]) => () => drawChart(id, chart)),
      ...Object.keys(data.maps).map((id) => () => drawMap(id)),
    ];
    for (const draw of draws) {
      await draw();
      await new Promise((done) => setTimeout(done, 0));
    }
    root.dataset.ready = "true";
  }

  start();
})();
