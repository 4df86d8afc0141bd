// Asks for news every second and puts them in place; what was scrolled stays where it was.
(() => {
  "use strict";
  const EVERY_MS = 1000;
  const part = document.getElementById("part");
  const lost = document.getElementById("lost");
  const run = new URLSearchParams(location.search).get("run") || "";
  let version = "";
  let charts = {};
  let ahead = 0; // seconds by which the server's clock is ahead of ours

  function spelled(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 60) return `${whole} s`;
    const minutes = Math.floor(whole / 60);
    if (minutes < 60) return `${minutes} min ${whole % 60} s`;
    const hours = Math.floor(minutes / 60);
    return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
  }

  function tick() {
    const now = Date.now() / 1000 + ahead;
    for (const one of document.querySelectorAll("[data-since]")) {
      one.textContent = spelled(now - Number(one.dataset.since));
    }
  }

  function places() {
    return new Map([...part.querySelectorAll(".scroll")].map((one) =>
      [one.getAttribute("aria-label"), one.scrollLeft]));
  }

  function show(html) {
    const before = places();
    const drawings = new Map([...part.querySelectorAll(".drawing")].map((one) => [one.id, one]));
    const focused = document.activeElement && document.activeElement.getAttribute("aria-label");
    part.innerHTML = html;
    for (const one of part.querySelectorAll(".scroll")) {
      const label = one.getAttribute("aria-label");
      one.scrollLeft = before.get(label) ?? 0;
      if (focused && focused === label) one.focus({ preventScroll: true });
    }
    // a drawing stays, with its zoom, and gets the new data
    for (const one of part.querySelectorAll(".drawing")) {
      if (drawings.has(one.id)) one.replaceWith(drawings.get(one.id));
    }
    return drawAll();
  }

  function drawAll() {
    return Promise.all(Object.entries(charts).map(([id, chart]) => figures.drawChart(id, chart)));
  }

  async function ask() {
    const query = new URLSearchParams({ run, version });
    try {
      const answer = await fetch(`/news?${query}`);
      if (!answer.ok) throw new Error(await answer.text());
      const news = await answer.json();
      ahead = news.now - Date.now() / 1000;
      if (news.html !== undefined) {
        charts = news.charts;
        await show(news.html);
        version = news.version;
        document.title = `${news.title} · turnout watch`;
      }
      lost.hidden = true;
    } catch {
      lost.hidden = false;
    }
    tick();
    document.documentElement.dataset.ready = "true";
    setTimeout(ask, EVERY_MS);
  }

  figures.redrawBy(drawAll);
  ask();
})();
