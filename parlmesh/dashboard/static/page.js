// Keeps the page current: the server sends its body whenever it has changed, and only differences are applied, so that
// ticks, typed text, focus and opened tables stay. Without this script every page still works by reloading.
"use strict";

const main = document.getElementById("main");
const status = document.getElementById("live");
const pauseButton = document.getElementById("pause");
const themeButton = document.getElementById("theme");
let source = null;
let paused = sessionStorage.getItem("parlmesh-paused") === "yes";

// Attributes that the reader changes and the server does not know.
const OWN = new Set(["open"]);

function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !OWN.has(name) && !(old.classList.contains("chart") && name === "style")) {
      old.removeAttribute(name);
    }
  }
  if (old.classList.contains("chart")) return draw(old);
  children(old, fresh);
}

function children(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (child.id) keyed.set(child.id, child);
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const id = wanted.nodeType === Node.ELEMENT_NODE ? wanted.id : "";
    let match = id ? keyed.get(id) : null;
    // Without an id, the next node of the same kind that no other node claims.
    for (let next = place; !match && !id && next; next = next.nextSibling) {
      if (next.nodeName === wanted.nodeName && !next.id) match = next;
      else if (wanted.nodeType === Node.TEXT_NODE) break;
    }
    if (!match) {
      old.insertBefore(wanted, place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else old.insertBefore(match, place);
    morph(match, wanted);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function take(html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = `<main>${html}</main>`;
  children(main, fresh.content.firstChild);
  main.querySelectorAll(".chart:not(.drawn)").forEach(draw);
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plots = new WeakMap();

function draw(place, again) {
  const text = place.dataset.chart;
  const known = plots.get(place);
  if (known && !again && known.text === text) return;
  const data = JSON.parse(text);
  const columns = [data.x, ...data.series.map((each) => each.values)];
  const names = data.series.map((each) => each.name).join("\n");
  if (known && !again && known.names === names) {
    known.plot.setData(columns);
    plots.set(place, { ...known, text });
    return;
  }
  if (known) known.plot.destroy();
  place.classList.add("drawn");
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const right = data.series.some((each) => each.scale === "right");
  const shortened = (value) => {
    const size = Math.abs(value);
    if (size >= 1e9) return value.toExponential(2).replace("e+", "e");
    return size >= 1e6 ? `${Number((value / 1e6).toPrecision(4))}M` : size >= 1e4 ? `${Number((value / 1e3).toPrecision(4))}k` : value;
  };
  const short = (self, values) => values.map((value) => (value === null ? "" : shortened(value)));
  const steps = (self, values) => values.map((value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e3 ? `${value / 1e3}k` : value));
  const clock = (self, values, axis, space, step) => values.map((value) => new Date(value * 1e3).toISOString().slice(11, step < 60 ? 19 : 16));
  const plot = new uPlot({
    width: Math.max(200, place.clientWidth),
    height: 180,
    cursor: { y: false },
    legend: { live: false, markers: { width: 0, fill: (self, index) => self.series[index].stroke(self, index) } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "UTC"),
    scales: { x: { time: Boolean(data.time) } },
    axes: [
      { ...axis, values: data.time ? clock : steps },
      { ...axis, size: 54, values: short },
      ...(right ? [{ ...axis, scale: "right", side: 1, size: 54, values: short, grid: { show: false } }] : []),
    ],
    series: [
      { label: data.time ? "time" : "step" },
      ...data.series.map((each, index) => ({
        label: each.name,
        scale: each.scale || "y",
        stroke: colour(`--k${Math.min(index, 5)}`),
        width: 1.6,
        spanGaps: true,
        points: { show: data.x.length < 3 },
      })),
    ],
  }, columns, place);
  plots.set(place, { plot, text, names });
}

function redraw() {
  document.querySelectorAll(".chart").forEach((place) => draw(place, true));
}

function say(text, tone) {
  if (status.textContent !== text) status.textContent = text;
  status.className = `state ${tone}`;
}

function listen() {
  if (source || paused || document.hidden) return;
  source = new EventSource(document.body.dataset.live);
  source.onopen = () => say("live", "good");
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.addEventListener("end", () => location.reload());
  source.onerror = () => say("connection lost, trying again", "bad");
}

function leave() {
  if (source) source.close();
  source = null;
}

function show() {
  pauseButton.textContent = paused ? "Resume" : "Pause";
  pauseButton.setAttribute("aria-pressed", String(paused));
  if (paused) say("paused", "warn");
}

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themed() {
  themeButton.textContent = dark() ? "Light" : "Dark";
  redraw();
}

pauseButton.hidden = themeButton.hidden = false;
pauseButton.addEventListener("click", () => {
  paused = !paused;
  sessionStorage.setItem("parlmesh-paused", paused ? "yes" : "no");
  if (paused) leave();
  show();
  listen();
});
themeButton.addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  localStorage.setItem("parlmesh-theme", document.documentElement.dataset.theme);
  themed();
});
document.addEventListener("visibilitychange", () => (document.hidden ? leave() : listen()));
document.addEventListener("change", (event) => {
  const name = event.target.dataset && event.target.dataset.all;
  if (name) main.querySelectorAll(`input[name=${name}]`).forEach((box) => (box.checked = event.target.checked));
});
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(redraw, 150);
});
const theme = localStorage.getItem("parlmesh-theme");
if (theme) document.documentElement.dataset.theme = theme;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
themed();
show();
listen();
