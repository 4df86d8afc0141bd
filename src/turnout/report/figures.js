// What pages with figures share: charts as data, painted by the theme of the page.
const figures = (() => {
  "use strict";
  const root = document.documentElement;
  const hidden = new Set(); // numbers of the selectors that are not shown
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
    const colour = typeof named === "string" ? named : theme.series[(named ?? selector) % 8];
    const dash = DASHES[Math.floor((selector ?? 0) / 8) % 3];
    const shown = { ...trace, visible: !hidden.has(selector) };
    switch (role) {
      case "band":
        return { ...shown, fillcolor: faded(colour, 0.16), line: { width: 0 } };
      case "bound":
        return { ...shown, line: { color: colour, width: 2, dash: "dot" } };
      case "box":
        return { ...shown, fillcolor: faded(colour, 0.35), line: { color: colour, width: 1.5 } };
      case "kinds":
        return { ...shown, ...kindsOf(trace, theme) };
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

  // A map of kinds: one colour for each whole number, and its name under the pointer.
  function kindsOf({ z, meta: { kinds, rows } }, theme) {
    const colours = kinds.map(([, kind]) => typeof kind === "number" ? theme.series[kind] : theme[kind]);
    return {
      zmin: -0.5, zmax: kinds.length - 0.5, xgap: 1, ygap: 1,
      colorscale: colours.flatMap((colour, i) =>
        [[i / kinds.length, colour], [(i + 1) / kinds.length, colour]]),
      text: z.map((row, i) => row.map((kind) => `${rows[i]}: ${kinds[kind][0]}`)),
      hovertemplate: "%{text}, round %{x}<extra></extra>",
    };
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

  function layoutOf(given, theme, paper = PAPER) {
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

  function drawChart(id, { traces, layout }) {
    const theme = readTheme();
    const shown = traces.map((trace) => painted(trace, theme));
    const paper = traces.some((trace) => trace.type === "heatmap") ? PAPER_MAP : PAPER;
    return Plotly.react(id, shown, layoutOf(layout, theme, paper), config);
  }

  // Draw all again when the theme or the width changes, and for paper.
  function redrawBy(drawAll) {
    const print = (now) => {
      printing = now;
      root.dataset.theme = now ? "light" : "";
      drawAll();
    };
    for (const query of [isDark, isNarrow]) query.addEventListener("change", drawAll);
    window.addEventListener("beforeprint", () => print(true));
    window.addEventListener("afterprint", () => print(false));
  }

  return { PAPER_MAP, config, drawChart, hidden, isNarrow, layoutOf, readTheme, redrawBy };
})();
