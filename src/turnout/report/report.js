// Draws the charts from the embedded data, paints them by theme and toggles selectors in all.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;
  const hidden = new Set();
  const isDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isTouch = window.matchMedia("(pointer: coarse)");
  const isHoverless = window.matchMedia("(hover: none)");
  const isNarrow = window.matchMedia("screen and (max-width: 760px)");
  const DASHES = ["solid", "dash", "longdashdot"];
  const PAPER = { width: 660, height: 215 }; // as in the style sheet
  const PAPER_MAP = { width: 660, height: 420 };
  let printing = false;

  // ----- theme: every colour comes from the style sheet
  function readTheme() {
    const style = getComputedStyle(root);
    const value = (name) => style.getPropertyValue(name).trim();
    return {
      page: value("--page"), text: value("--text"), quiet: value("--quiet"),
      grid: value("--grid"), line: value("--line"), panel: value("--panel"),
      series: Array.from({ length: 8 }, (_, i) => value(`--series-${i}`)),
    };
  }

  function faded(hex, alpha) {
    const part = (from) => parseInt(hex.slice(from, from + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
  }

  function painted(trace, theme) {
    const { role, selector, colour: named } = trace.meta;
    if (role === "reference") {
      return { ...trace, line: { color: theme.quiet, width: 1, dash: "dash" } };
    }
    const colour = named ?? theme.series[selector % 8];
    const dash = DASHES[Math.floor((selector ?? 0) / 8) % 3];
    const shown = { ...trace, visible: !hidden.has(selector) };
    switch (role) {
      case "band":
        return { ...shown, fillcolor: faded(colour, 0.16), line: { width: 0 } };
      case "bound":
        return { ...shown, line: { color: colour, width: 2, dash: "dot" } };
      case "box":
        return { ...shown, fillcolor: faded(colour, 0.35), line: { color: colour, width: 1.5 } };
      case "tip": // seen only by the pointer
        return { ...shown, marker: { color: colour, opacity: 0 } };
      case "bar":
        return {
          ...shown, marker: { color: colour },
          error_y: { ...trace.error_y, color: theme.text },
        };
      default:
        return { ...shown, line: { color: colour, width: 2, dash } };
    }
  }

  function axis(given, theme) {
    return {
      automargin: true, gridcolor: theme.grid, linecolor: theme.line, zerolinecolor: theme.line,
      ...given, title: { standoff: 8, ...(given && given.title) },
    };
  }

  // Axes are called xaxis, yaxis, xaxis2, yaxis2, ...: a pair for each panel.
  function axesOf(given, theme) {
    const names = Object.keys(given).filter((name) => /^[xy]axis\d*$/.test(name));
    return Object.fromEntries(names.map((name) => [name, axis(given[name], theme)]));
  }

  function layoutOf(given, theme, paper) {
    return {
      ...given,
      ...axesOf(given, theme),
      shapes: (given.shapes || []).map((shape) => ({
        ...shape, line: { color: theme.quiet, ...shape.line },
      })),
      font: { family: "system-ui, sans-serif", size: isNarrow.matches ? 11 : 12, color: theme.text },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 48, r: 12, t: isHoverless.matches && !printing ? 36 : 14, b: 40, ...given.margin },
      showlegend: false,
      hovermode: given.hovermode || (isNarrow.matches ? "closest" : "x unified"),
      hoverlabel: {
        bgcolor: theme.panel, bordercolor: theme.line, font: { color: theme.text }, namelength: -1,
      },
      dragmode: isTouch.matches ? false : "zoom",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.quiet, activecolor: theme.text },
      uirevision: "keep",
      autosize: !printing,
      ...(printing ? paper : {}),
    };
  }

  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: isHoverless.matches ? true : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    plotlyServerURL: "",
  };

  // ----- charts
  function drawChart(id, theme) {
    const { traces, layout } = data.charts[id];
    const shown = traces.map((trace) => painted(trace, theme));
    return Plotly.react(id, shown, layoutOf(layout, theme, PAPER), config);
  }

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

  function drawMap(id, theme) {
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
    return Plotly.react(id, traces, layoutOf(mapLayout(groups), theme, PAPER_MAP), config);
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
    const theme = readTheme();
    return Promise.all([
      ...Object.keys(data.charts).map((id) => drawChart(id, theme)),
      ...Object.keys(data.maps).map((id) => drawMap(id, theme)),
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
          drawMap(id, readTheme());
        });
      }
    }
    for (const query of [isDark, isNarrow]) {
      query.addEventListener("change", drawAll);
    }
    window.addEventListener("beforeprint", () => setPrinting(true));
    window.addEventListener("afterprint", () => setPrinting(false));
  }

  function setPrinting(now) {
    printing = now;
    root.dataset.theme = now ? "light" : "";
    drawAll();
  }

  // One chart after the other, so that the page can be read and scrolled meanwhile.
  async function start() {
    listen();
    const theme = readTheme();
    const draws = [
      ...Object.keys(data.charts).map((id) => () => drawChart(id, theme)),
      ...Object.keys(data.maps).map((id) => () => drawMap(id, theme)),
    ];
    for (const draw of draws) {
      await draw();
      await new Promise((done) => setTimeout(done, 0));
    }
    root.dataset.ready = "true";
  }

  start();
})();
