// Profiles of a run: the list of sessions, and the summary of the chosen one.

import { add, card, copyable, empty, fill, h } from "../../common/dom.js";
import { formatBytes, formatCount, formatDay } from "../../common/format.js";
import { runPath } from "../router.js";

const RETRY_MS = [300, 500, 800, 1200, 2000];
const NO_PROFILE = "No profile was captured in this run yet. Capture one of all hosts while it runs, or wrap code in "
  + "`with xprof():`.";

/** Show the page. */
export async function show(page, api, state) {
  const base = `/api/runs/${encodeURIComponent(state.run)}`;
  const run = await api.json(base);
  const sessions = [...(run.sessions ?? [])].sort((one, other) => (other.time ?? 0) - (one.time ?? 0));
  if (!sessions.length && !state.session) {
    add(page, card("Profiles", {}, empty(NO_PROFILE, `mldiagnostics profile ${run.id}`)));
    document.documentElement.dataset.ready = "profiles";
    return null;
  }
  const chosen = state.session ?? sessions[0].id;
  const place = h("div.stack", null, working());
  const list = h("nav.profile-list", { "aria-label": "Profiles" },
    sessions.map((session) => sessionLink(run, session, chosen)));
  add(page, sessions.length === 0 ? place
    : h("div.profile-body", null, card("Profiles", { second: String(sessions.length) }, list), place));
  const drawing = import("../../xprofiler/profile_summary.js"); // On its way while the profile is read.
  drawing.catch(() => {}); // It is missing where xprofiler is: then there is no summary either.
  let summary = null;
  let timer = 0;
  let isClosed = false;
  await load(0);

  async function load(tries) {
    let answer;
    try {
      answer = await api.json(`${base}/profiles/${encodeURIComponent(chosen)}`);
    } catch (error) {
      answer = { state: "failed", error: error.message };
    }
    if (isClosed) return;
    if (answer.state === "working" && api.isFile) {
      answer = { ...answer, state: "failed", error: "This profile was not read yet when the file was written." };
    }
    if (answer.state === "working") {
      timer = setTimeout(() => load(tries + 1), RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]);
      return;
    }
    summary?.close();
    summary = null;
    const isReady = answer.state === "ready" && answer.summary;
    const module = isReady ? await drawing.catch((error) => ({ problem: error.message })) : null;
    if (isClosed) return;
    fill(place);
    if (module?.showSummary) summary = module.showSummary(place, answer.summary);
    else if (isReady) add(place, card("Summary", {}, empty(`The summary cannot be drawn: ${module.problem}`)));
    else add(place, card("Summary", {}, empty(answer.error ?? "It is not known what is in this profile.")));
    add(place, hostsCard(answer.session), xprofCard(answer.xprof));
    document.documentElement.dataset.ready = "profiles";
  }

  return {
    close() {
      isClosed = true;
      clearTimeout(timer);
      summary?.close();
    },
  };
}

function working() {
  return card("Summary", {}, h("p.working", { role: "status" }, "Reading the profile…"));
}

function sessionLink(run, session, chosen) {
  const { kind, hosts, bytes } = session;
  const facts = [kind, hosts && formatCount(hosts, "host"), bytes && formatBytes(bytes)];
  return h("a.session", {
    href: runPath(run.id, "profiles", session.id), "aria-current": session.id === chosen ? "page" : null,
  }, h("span.mono", null, session.id), session.time && h("span.second", null, formatDay(session.time)),
  h("span.second", null, facts.filter(Boolean).join(", ")),
  session.problem && h("span.session-problem", null, session.problem));
}

function hostsCard(session) {
  const rows = session?.by_host ?? [];
  const troubled = rows.filter(({ problem }) => problem);
  if (!troubled.length) return null;
  return card("Problems by host", { second: `${troubled.length} of ${rows.length}` }, h("div.scroll-x", null,
    h("table.table", null,
      h("thead", null, h("tr", null, ["Host", "Problem"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, troubled.map(({ host, problem }) => h("tr", null, h("td", null, host),
        h("td.anywhere", null, problem)))))));
}

function xprofCard(xprof) {
  if (!xprof?.command && !xprof?.url) return null;
  return card("XProf", {}, xprof.url
    ? h("a.button", { href: xprof.url, target: "_blank", rel: "noopener" }, "Open in XProf")
    : h("div.empty", null, h("p", null, "Trace viewer, memory and graph of this profile open in XProf with:"),
      copyable(xprof.command)));
}
