// The overview of a run: figures, the run on one clock, where the time went, who waits for whom, disruptions, profiles.

import { button, card, empty, fill, h, setText } from "../../common/dom.js";
import { ledgerBars } from "../draw/bars.js";
import { createHostMap } from "../draw/host_map.js";
import { appendDelay } from "../draw/live_points.js";
import { tableTwin } from "../../common/table_twin.js";
import { curveTrack, eventsTrack, heatTrack, ledgerTrack } from "../draw/track_kinds.js";
import { createTracks } from "../draw/tracks.js";
import { clockText } from "../draw/time_axis.js";
import { formatBytes, formatCount, formatDay, formatDuration, formatWhole } from "../../common/format.js";
import { runPath } from "../router.js";
import { endOf } from "../run_time.js";
import { endedGroups, groupList, newestStacks } from "./groups.js";
import { provers } from "./proof.js";
import { tiles } from "./tiles.js";
import { chooseTracks } from "./track_choice.js";

const SHOWN_MS = 1900; // Figures that change more often are not read, and each change of them is a frame to draw.
const LATE_MS = 3000; // They change in one frame with the end of the clock, at an event; without one, after this time.
const APPEND_SECONDS = 10;
const LEDGER_SECONDS = 30;
const GROWN_PIXELS = 4; // a ledger or rows of hosts are read again when they have grown by so much
const FEW_DISRUPTIONS = 4;
const LIVE = new Set(["running", "stuck", "silent"]);
const STUCK = new Set(["stuck", "silent"]);

/** Show the page. */
export async function show(page, api, state) {
  const base = `/api/runs/${encodeURIComponent(state.run)}`;
  const prove = provers(api, base);
  let run = await api.json(base);
  const figures = h("section.tiles", { "aria-label": "Figures" });
  const clock = createClock(api, base, state, () => run);
  const stacks = h("div", { hidden: true });
  const time = h("div");
  const disruptions = h("div");
  const profiles = h("div");
  const left = h("div.stack", null, time);
  const right = h("div.stack", null, stacks, disruptions);
  const halves = [left, right];
  fill(page, h("div.stack", null, figures, clock.element, h("div.overview-halves", null, halves)));
  let map = null;
  let stacksVersion = null;
  let timer = 0;
  let tilesKey = "";
  let shownMs = 0;
  let isClosed = false;
  clock.start();
  render();
  clock.settled().then(() => { // Not awaited: until the page is returned, it cannot be closed.
    if (isClosed) return;
    showTiles();
    document.documentElement.dataset.ready = "overview";
    loadStacks();
  });

  function render() {
    showTiles();
    fill(time, timeCard(run, prove));
    fill(profiles, profilesCard(run));
    fill(disruptions, disruptionsCard(run, (span) => clock.tracks.setSpan(span), prove));
    disruptions.hidden = !run.disruptions?.length;
    const half = run.state !== "stuck" && (run.disruptions?.length ?? 0) < FEW_DISRUPTIONS ? right : left;
    if (profiles.parentElement !== half) half.append(profiles);
    profiles.hidden = !run.sessions?.length;
  }

  function showTiles() {
    clearTimeout(timer);
    timer = 0;
    shownMs = performance.now();
    const built = tiles(run, { typicalStep: clock.typical("step_time"), prove });
    const key = built.map((each) => each.textContent).join("\n");
    if (key !== tilesKey) fill(figures, built);
    tilesKey = key;
  }

  async function loadStacks() {
    let found = null;
    try {
      found = await newestStacks(api, base);
    } catch {
      return; // The stacks page says why.
    }
    if (isClosed || !found.groups?.length || stacksVersion === `${found.at} ${found.sentence}`) return;
    stacksVersion = `${found.at} ${found.sentence}`;
    map?.close();
    const place = h("div.map-place");
    const link = h("a", { href: runPath(run.id, "stacks") }, "Stacks →");
    fill(stacks, card("Who waits for whom", { right: link, second: found.at ? clockText(found.at) : null }, place,
      groupList([...found.groups, ...endedGroups(found.ended ?? [])], { isShort: true })));
    stacks.hidden = false;
    map = createHostMap(place);
    map.show(found.hosts);
  }

  function take(newer) {
    run = newer;
    render();
    clock.update();
    if (STUCK.has(run.state) || !stacks.hidden) loadStacks();
  }

  return {
    update({ kind, data }) {
      if (kind === "run") {
        take(data);
      } else if (kind === "changed") {
        const fields = (data.rows ?? []).find(({ id }) => id === run.id);
        if (data.now) run.now = data.now;
        Object.assign(run, fields);
        if (performance.now() - shownMs >= SHOWN_MS) {
          showTiles();
          clock.extend(run.now);
        } else if (fields) {
          timer ||= setTimeout(showTiles, LATE_MS);
        }
      } else if (kind === "metrics" && data[run.id]) {
        const rows = data[run.id];
        for (const metric of run.metrics_list ?? []) {
          metric.points = Math.max(metric.points, rows[metric.name] ?? 0);
        }
        clock.append(Object.keys(rows));
      }
    },
    close() {
      isClosed = true;
      clearTimeout(timer);
      clock.close();
      map?.close();
    },
  };
}

/** The card of the tracks. */
function createClock(api, base, state, getRun) {
  const second = h("span.second", { role: "status" });
  const all = button("All", () => tracks.setSpan(null), { hidden: true, class: "button small", title: "Show all (0)" });
  const step = (direction, key, words) => h("button.key", {
    type: "button", title: `${words} (${key})`, "aria-label": words, on: { click: () => tracks.stepAttempt(direction) },
  }, h("kbd", null, key));
  const twin = tableTwin(() => tracks.tracks().filter((track) => track.table).map((track) => ({
    title: track.name === "Hosts" ? "Rows of hosts" : track.name, table: () => track.table(),
  })));
  const hint = h("span.clock-hint", null, "drag to zoom, ", step(-1, "[", "The attempt before"),
    step(1, "]", "The attempt after"), " by attempt");
  const place = h("div.clock-tracks");
  const element = card("The run on one clock", { right: [all, hint, twin.button] }, place, twin.panel);
  element.querySelector("h2").append(second);
  let tracks = null;
  let ledgerTimer = 0;
  let appendTimer = 0;
  const pending = new Set();

  function start() {
    const run = getRun();
    const began = run.totals?.began ?? run.started ?? run.now;
    const whole = [began, Math.max(clockEnd(run), began + 0.1)];
    const [from, to] = [state.number("from"), state.number("to")];
    const origin = run.started ?? 0;
    const span = from !== null && to !== null && to > from ? [origin + from, origin + to] : null;
    tracks = createTracks(place, { whole, span, attempts: run.attempt_list ?? [], onSpan });
    const shared = { api, base, isAll: () => tracks.isAll() };
    const titles = new Map((run.ledger ?? []).map(({ bucket, title }) => [bucket, title]));
    tracks.add(ledgerTrack({ ...shared, titles, attempts: () => getRun().attempt_list ?? [] }));
    const { curves, rows } = chooseTracks(run.metrics_list ?? [], { isLive: LIVE.has(run.state) });
    for (const metric of curves) tracks.add(curveTrack({ ...shared, metric }));
    if (rows.length) tracks.add(heatTrack({ ...shared, metrics: rows, chosen: state.get("rows"), onChoose }));
    tracks.add(eventsTrack({ events: () => getRun().events ?? [] }));
    tracks.board.addEventListener("settled", showSpan);
    showSpan();
  }

  function onChoose(name) {
    state.set({ rows: name });
    tracks.refresh("heat");
  }

  function onSpan(span) {
    const origin = getRun().started ?? 0;
    const seconds = (time) => (span === null ? null : Number((time - origin).toFixed(3)));
    state.set({ from: span && seconds(span[0]), to: span && seconds(span[1]) });
    showSpan();
  }

  function showSpan() {
    const [from, to] = tracks.span();
    const isAll = tracks.isAll();
    all.hidden = isAll;
    const length = formatDuration(to - from);
    setText(second, isAll ? length : `${clockText(from, to - from < 3600)}, ${length}`);
  }

  async function appendAll() {
    appendTimer = 0;
    const names = [...pending];
    pending.clear();
    const grown = tracks.tracks().filter((track) => track.append && names.includes(track.metric));
    const isAppended = await Promise.all(grown.map((track) => track.append(tracks.view()).catch(() => true)));
    grown.forEach(({ key }, at) => (isAppended[at] ? tracks.requestDraw(key) : tracks.refresh(key)));
    laterLedger();
  }

  function pixelSeconds() {
    const { from, to, width } = tracks.view();
    return (to - from) / (width || 1);
  }

  function laterLedger() {
    const seconds = Math.min(300, Math.max(LEDGER_SECONDS, GROWN_PIXELS * pixelSeconds()));
    ledgerTimer ||= setTimeout(() => {
      ledgerTimer = 0;
      if (!tracks.isAll() || document.hidden) return;
      for (const track of tracks.tracks()) if (track.read && !track.append) tracks.refresh(track.key);
    }, 1000 * seconds);
  }

  return {
    element,
    start,
    /** Return the median of a curve that is shown; null where there is none. */
    typical: (name) => tracks.tracks().find(({ metric }) => metric === name)?.typical?.() ?? null,
    get tracks() {
      return tracks;
    },
    settled: () => new Promise((resolve) => {
      tracks.board.addEventListener("settled", resolve, { once: true });
      setTimeout(resolve, 5000);
    }),
    /** Take what a new answer of the run's overview changed: attempts, events, metrics that are new. */
    update() {
      const run = getRun();
      tracks.setAttempts(run.attempt_list ?? []);
      tracks.extend(clockEnd(run));
      laterLedger();
      tracks.requestDraw();
    },
    extend(now) {
      if (!tracks || getRun().ended !== null || !LIVE.has(getRun().state)) return;
      tracks.extend(endOf(getRun(), now) ?? now);
      showSpan();
    },
    append(names) {
      for (const name of names) pending.add(name);
      appendTimer ||= setTimeout(appendAll, appendDelay(pixelSeconds(), APPEND_SECONDS));
    },
    close() {
      clearTimeout(ledgerTimer);
      clearTimeout(appendTimer);
      tracks?.close();
    },
  };
}

/** Return where the tracks end; a silent run has nothing to show after its last sign. */
function clockEnd(run) {
  return endOf(run, run.now) ?? run.now;
}

function timeCard(run, prove) {
  if (!run.ledger?.some(({ seconds }) => seconds > 0)) {
    return card("Where the time went", {}, empty(null, run.ledger_help ?? "Goodput was not measured in this run."));
  }
  const proved = (content, { bucket, title }) => prove(content, `bucket:${bucket}`, `${title}: its longest pieces`);
  const notes = (run.ledger_notes ?? []).map((note) => h("p.second", null, note));
  return card("Where the time went", {}, ledgerBars(run.ledger, proved),
    notes.length > 0 && h("div.ledger-notes", null, notes));
}

function disruptionsCard(run, choose, prove) {
  const rows = run.disruptions ?? [];
  if (!rows.length) return null;
  const cost = run.totals?.disruption_seconds;
  const second = cost ? `${formatWhole(rows.length)}, cost ${formatDuration(cost)}` : formatWhole(rows.length);
  const attempts = new Map((run.attempt_list ?? []).map((attempt) => [attempt.number, attempt]));
  const show = (row) => h("button.link", {
    type: "button", title: "Show on the clock", on: { click: () => showAround(row) },
  }, row.attempt);
  const showAround = ({ at, cost_seconds: lost }) => {
    const margin = Math.max((lost ?? 0) * 0.5, 60);
    choose([at - margin, at + (lost ?? 0) + margin]);
  };
  return card("Disruptions", { second }, h("div.scroll-x", null, h("table.table.disruptions", null,
    h("thead", null, h("tr", null, ["Attempt", "What happened", "By"].map((text) => h("th", { scope: "col" }, text)),
      ["Steps lost", "Cost"].map((text) => h("th.number", { scope: "col" }, text)))),
    h("tbody", null, rows.map((row) => h("tr", null,
      h("td", null, attempts.has(row.attempt) ? show(row) : row.attempt),
      h("td", null, h("div.anywhere", null, row.what), h("div.second", null, formatDay(row.at))),
      h("td.second", null, row.by),
      h("td.number", null, formatWhole(row.steps_lost)),
      h("td.number", null, prove(formatDuration(row.cost_seconds), row.explain, row.what))))))));
}

function profilesCard(run) {
  const sessions = run.sessions ?? [];
  if (!sessions.length) return null;
  return card("Profiles", { second: formatWhole(sessions.length) }, h("ul.session-list", null, sessions.map((session) =>
    h("li", null,
      h("a.mono", { href: runPath(run.id, "profiles", session.id) }, session.id),
      h("span.number", null, session.bytes ? formatBytes(session.bytes) : ""),
      h("span.second", null, sessionFacts(session)),
      session.problem && h("span.problem", null, session.problem)))));
}

function sessionFacts({ kind, hosts }) {
  return [kind, hosts && formatCount(hosts, "host")].filter(Boolean).join(", ");
}
