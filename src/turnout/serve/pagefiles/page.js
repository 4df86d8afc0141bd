// Requests the state from the API every two seconds, and shows changes. All content is set as text.
"use strict";

const EVERY_MS = 2000;
const KEY = "turnout-token";
const STATUSES = ["completed", "late", "failed", "silent"];
const $ = (id) => document.getElementById(id);
let selected = decodeURIComponent(location.hash.slice(1));
let shown = "";  // federation and version that the page shows
let timer = 0;

class Refused extends Error {}

async function ask(path) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store" });
  const body = await answer.json();
  if (answer.status === 401 || answer.status === 403) throw new Refused(body.detail);
  if (!answer.ok) throw new Error(body.detail);
  return body;
}

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function drawn(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const count = (n) => n.toLocaleString("en");
const share = (x) => (x === null ? "–" : x.toFixed(3));

function showNames(names) {
  $("names").replaceChildren(...names.map((name) => {
    const button = element("button", name);
    button.type = "button";
    button.ariaPressed = String(name === selected);
    button.addEventListener("click", () => { location.hash = encodeURIComponent(name); });
    return button;
  }));
}

function showTiles(one, fair) {
  const tiles = {
    "clients": count(one.n_clients), "present": count(one.n_present), "free": count(one.n_free),
    "rounds": count(one.n_rounds), "open round": one.open_round ?? "none",
    "Jain's index": share(fair.jain), "never selected": count(fair.never_chosen),
  };
  $("tiles").replaceChildren(...Object.entries(tiles).map(([name, value]) => {
    const tile = element("div");
    tile.append(element("dt", name), element("dd", value));
    return tile;
  }));
}

function bar(parts, total, label) {
  const svg = drawn("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none", role: "img",
    "aria-label": label });
  let x = 0;
  for (const [name, n] of parts) {
    const width = total ? (100 * n) / total : 0;
    if (width) svg.append(drawn("rect", { class: name, x, y: 0, width, height: 4 }));
    x += width;
  }
  return svg;
}

function roundRow(one) {
  const n = one.clients.length;
  const counts = one.result ? STATUSES.map((name) => [name, one.result.counts[name]])
    : [["missing", n]];
  const words = one.result ? counts.filter(([, k]) => k).map(([name, k]) => `${k} ${name}`).join(", ")
    : "still open";
  const row = element("tr");
  const ended = element("td", undefined, "wide");
  ended.title = words;
  ended.append(bar(counts, n, words));
  const isVoid = one.result && one.result.void;
  const chances = one.probability || [];
  const chance = chances.length
    ? `${Math.min(...chances).toPrecision(2)} – ${Math.max(...chances).toPrecision(2)}` : "–";
  row.append(
    element("td", one.round),
    element("td", new Date(1000 * one.opened_at).toLocaleTimeString()),
    element("td", isVoid ? "void" : one.state, isVoid ? "void" : ""),
    element("td", count(n)),
    ended,
    element("td", one.result ? one.result.length_s.toFixed(1) : "…"),
    element("td", chance),
  );
  return row;
}

function showRounds(rounds) {
  $("rounds").replaceChildren(...rounds.map(roundRow));
  $("no-rounds").hidden = rounds.length > 0;
}

function showFairness(fair) {
  const none = fair.choices === 0;
  $("fairness").textContent = none ? "No client has been selected yet." :
    `${count(fair.choices)} selections. Jain's index ${share(fair.jain)}, Gini ${share(fair.gini)}. ` +
    "Deciles of how often clients were selected:";
  const most = Math.max(1, ...fair.deciles);
  const svg = drawn("svg", { viewBox: "0 0 460 150", role: "img",
    "aria-label": `Deciles of counts: ${fair.deciles.join(", ")}` });
  fair.deciles.forEach((n, i) => {
    const height = (100 * n) / most;
    const x = 10 + 40 * i;
    svg.append(drawn("rect", { class: "bar", x, y: 125 - height, width: 30, height }));
    svg.append(drawn("text", { x: x + 15, y: 120 - height }, Number(n.toFixed(1))));
    svg.append(drawn("text", { x: x + 15, y: 140 }, `${10 * i} %`));
  });
  svg.append(drawn("line", { class: "axis", x1: 0, x2: 460, y1: 125, y2: 125 }));
  $("chart").replaceChildren(...(none ? [] : [svg]));
  for (const name of ["least", "most"]) {
    $(name).replaceChildren(...(none ? [] : fair[name])
      .map(([client, n]) => element("li", `${client}: ${count(n)}`)));
  }
}

async function showFederation() {
  const path = `federations/${encodeURIComponent(selected)}`;
  const one = await ask(path);
  const version = `${selected} ${one.version}`;
  if (version !== shown) {
    const [{ rounds }, fair] = await Promise.all([ask(`${path}/rounds?limit=20`), ask(`${path}/fairness`)]);
    const policy = one.policy === null ? `a limit of ${one.limit_s} s`
      : typeof one.policy === "string" ? one.policy : one.policy.kind;
    $("about").textContent = `Selector ${one.selector}, ${one.cohort_size} clients per round, policy: ${policy}, seed ${one.seed}.`;
    showTiles(one, fair);
    showRounds(rounds);
    showFairness(fair);
    shown = version;
  }
  $("federation").hidden = false;
}

async function refresh() {
  clearTimeout(timer);
  try {
    const { federations } = await ask("federations");
    $("login").hidden = true;
    if (!federations.includes(selected)) selected = federations[0] ?? "";
    showNames(federations);
    if (selected) await showFederation();
    $("federation").hidden = !selected;
    $("status").className = "";
    $("status").textContent = selected ? `Live, ${new Date().toLocaleTimeString()}.`
      : "There is no federation yet: create one with POST /federations.";
  } catch (error) {
    $("status").className = "bad";
    $("status").textContent = error instanceof Refused ? "The server requires a token." : `Not up to date: ${error.message}`;
    if (error instanceof Refused) {
      $("federation").hidden = true;
      $("names").replaceChildren();
      if ($("login").hidden) $("token").value = "";
      $("login").hidden = false;
      $("refused").textContent = sessionStorage.getItem(KEY) ? error.message : "";
    }
  }
  document.documentElement.dataset.ready = "true";
  if (!document.hidden) timer = setTimeout(refresh, EVERY_MS);
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("token").value.trim());
  refresh();
});
window.addEventListener("hashchange", () => {
  selected = decodeURIComponent(location.hash.slice(1));
  refresh();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
