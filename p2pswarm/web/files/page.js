// The page of a run. It reads the node's stream and draws; it sends nothing and changes nothing.
//
// Whatever peers say is shown by textContent alone, and first goes through `plain`. Elements are
// made by `draw` from names that stand in this file. Nothing comes from another place.
const LINES_MAX = 1000; // events that are kept; the list shows as many
const TEXT_MAX = 500; // characters of one text
const QUIET_MS = 15000; // the node sends something each second
const CURVES_MS = 30000; // what is drawn meanwhile is replaced by the node's own, thinned curve
const RETRY_MS = 1000, RETRY_MAX_MS = 10000;
const VIEWERS_MAX = 16; // that the node lets follow
const DAY_S = 72000; // what is older has its date
const CENTURY_S = 100 * 365 * 86400;
const LOOK_S = 600; // who was away for less does not ask what has happened
const SVG = "http://www.w3.org/2000/svg";
const PARTS = { "/": "run", "/you": "you", "/why": "why", "/cost": "cost" };
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

const page = {
  shown: null, // the newest snapshot
  at: 0, // when it came, on this machine's clock
  heard: Date.now(),
  lines: [],
  n: 0, // of the newest line
  curves: { loss: [], held_out: [], tokens_per_s: [] },
  source: null,
  process: null, // of the node: another one counts its lines anew
  polls: false, // it is asked again and again, and has no stream
  retry: RETRY_MS,
  refused: "",
  now: Date.now() / 1000, // the node's clock
};
const $ = (id) => document.getElementById(id);

// Text and numbers

function plain(value, most = TEXT_MAX) {
  const text = String(value ?? "").slice(0, most + 1).replace(HIDDEN, "?");
  return text.length > most ? text.slice(0, most - 1).replace(/[\ud800-\udbff]$/, "") + "…" : text;
}

function number(value, digits = 0) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  const [whole, part] = Math.abs(value).toFixed(digits).split(".");
  const spaced = whole.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return (value < 0 ? "−" : "") + spaced + (part ? "." + part : "");
}

function short(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  for (const [size, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]])
    if (Math.abs(value) >= size) return number(value / size, value / size < 10 ? 2 : 1) + unit;
  return number(value, value < 10 && value % 1 ? 2 : 0);
}

function span(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 120) return Math.round(s) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  if (s < 2 * 31536000) return Math.round(s / 86400) + " days";
  return number(s / 31536000) + " years";
}

function seconds(s) {
  if (typeof s !== "number") return "–";
  return s < 1 ? `${number(1000 * s)} ms` : `${number(s, s < 100 ? 1 : 0)} s`;
}

const ago = (at) => (typeof at === "number" ? span(page.now - at) : "–");
const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const date = (at, more) => new Date(at * 1000).toLocaleString([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false, ...more });
const day = (at) => date(at, { weekday: "short", ...(Math.abs(at - page.now) > 300 * 86400 ? { year: "numeric" } : {}) });
const when = (at) => (page.now - at < DAY_S ? clock(at) : date(at));
const mbit = (rate) => number((rate * 8) / 1e6, rate * 8 < 1e7 ? 1 : 0);
const count = (n, one, many = one + "s") => number(n) + " " + (n === 1 ? one : many);

// Drawing: a tree of [tag, attributes, ...children] is laid over what is there, so that a pointer
// that rests on a number keeps its explanation.

function draw(parent, children) {
  const specs = children.filter((each) => each !== null && each !== undefined && each !== false && each !== "");
  specs.forEach((spec, i) => {
    const there = parent.childNodes[i];
    if (!Array.isArray(spec)) {
      const text = plain(spec);
      if (there && there.nodeType === Node.TEXT_NODE) {
        if (there.data !== text) there.data = text;
      } else place(parent, there, document.createTextNode(text));
      return;
    }
    const [tag, attributes, ...inner] = spec;
    let node = there;
    if (!node || node.nodeType !== Node.ELEMENT_NODE || node.localName !== tag) {
      const svg = tag === "svg" || parent.namespaceURI === SVG;
      node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
      place(parent, there, node);
    }
    dress(node, attributes || {});
    draw(node, inner);
  });
  while (parent.childNodes.length > specs.length) parent.lastChild.remove();
}

function place(parent, there, node) {
  if (there) parent.replaceChild(node, there);
  else parent.appendChild(node);
}

// A curve is numbers of ours, a dozen characters for each of its points: half of one is drawn wrong.
function dress(node, attributes) {
  for (const name of node.getAttributeNames())
    if (!(name in attributes) && name !== "style") node.removeAttribute(name);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "width%") node.style.width = Math.max(0, Math.min(100, value)).toFixed(1) + "%";
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, name === "d" ? value : plain(value, 4000));
  }
}

const fact = (name, value, title = "") => ["span", title ? { title } : {}, name + " ", ["b", {}, value]];

// What each number means: shown by a pointer that rests on it, and at the foot of the page.

const MEANING = {
  "step": "Steps whose commit is decided, of those that the run shall have. From the trainer's commits.",
  "loss": "Mean loss of the newest step's tokens, in nats per token. Each server of the last stage computes it.",
  "held out": "The same on text that is never trained on.",
  "tokens/s": "Tokens of the last ten steps by the time that they took. 0 if the newest step is older than three usual steps.",
  "possible": "The slowest stage: its ready servers' 1 / (forward + backward), added up, times the tokens of a microbatch.",
  "done": "From the speed of the last half hour and of the whole run. The spread comes from how much that has varied.",
  "rate": "Microbatches a second that are counted. Each server tells it once a second.",
  "queue": "Mean wait of a microbatch before it is computed.",
  "free": "Memory of the device that is free.",
  "mbit": "What its links to the next stage (↑) and to the stage before (↓) carry while they are busy.",
  "path": "How its links lead: direct; mapped, by a port of the router; punched, through the NAT; relayed, by another node.",
  "counted": "Microbatches of committed steps that every stage counts, each once.",
  "again": "Attempts that were given up, and sent again. They count once.",
  "void": "Microbatches in sums that were lost with their servers. They were computed anew.",
  "cost": "What each machine's owner says that it costs, by the time that it was there: nobody has checked it. A million tokens without what is wasted.",
  "equal": "Servers whose weights and moments are those of their stage, by SHA-256, of those that told it.",
  "record": "The hash chain of decided steps: its length, and the first digits of its newest record.",
};

// The stream

function follow() {
  const source = new EventSource("/stream?after=" + page.n);
  page.source = source;
  source.addEventListener("view", (message) => {
    const shown = JSON.parse(message.data);
    const anew = page.process !== null && page.process !== shown.process;
    page.process = shown.process;
    page.retry = RETRY_MS;
    take(shown, false);
    if (anew) begin();
  });
  source.addEventListener("line", (message) => {
    page.heard = Date.now();
    const n = Number(message.lastEventId);
    if (n <= page.n) return;
    page.n = n;
    page.lines.push(JSON.parse(message.data));
    if (page.lines.length > LINES_MAX) page.lines.splice(0, page.lines.length - LINES_MAX);
  });
  source.onerror = () => {
    source.close();
    ask("/view").then((shown) => take(shown, true), (error) => (page.refused = error.message));
    setTimeout(follow, page.retry);
    page.retry = Math.min(RETRY_MAX_MS, page.retry * 2);
  };
}

function take(shown, polls) {
  page.shown = shown;
  page.polls = polls;
  page.at = page.heard = Date.now();
  page.refused = "";
  extend(shown.run);
  render();
}

// Another process of the node: what is here of the one before is not of its lines and numbers.
function begin() {
  page.source.close();
  page.lines = [];
  page.n = 0;
  listed = "";
  page.curves = { loss: [], held_out: [], tokens_per_s: [] };
  curves().then(follow);
}

async function ask(path) {
  const answer = await fetch(path, { credentials: "same-origin", cache: "no-store" }).catch(() => {
    throw new Error("the node does not answer: it may have ended, or this machine has no way to it");
  });
  if (!answer.ok) throw new Error(plain(await answer.text(), 300));
  return answer.json();
}

async function curves() {
  try {
    page.curves = { ...page.curves, ...(await ask("/curves")) };
  } catch (error) {
    page.refused = error.message;
  }
}

function extend(run) {
  const add = (name, step, value) => {
    const points = page.curves[name];
    const last = points[points.length - 1];
    if (typeof value !== "number" || (last && last[0] >= step)) return;
    points.push([step, run.at, value]);
    if (points.length > 4096) points.splice(0, 1024); // until the node's own curve comes
  };
  add("loss", run.step, run.loss);
  add("tokens_per_s", run.step, run.tokens_per_s);
}

// The top line

const STATES = {
  training: ["●", "good", "training"],
  starting: ["◌", "busy", "starting"],
  waiting: ["◐", "busy", "waiting for servers"],
  stalled: ["▲", "bad", "stands still"],
  ended: ["■", "good", "over"],
  failed: ["✕", "bad", "failed"],
};

const stateOf = (run) => STATES[run.state] || ["●", "", run.state];

function troubles(run) {
  const found = [];
  if (run.state === "failed") found.push(run.ended);
  for (const stage of run.stages)
    if (!stage.ready && run.state !== "ended" && run.step)
      found.push(`stage ${stage.stage} has no server${stage.since ? " since " + ago(stage.since) : ""}`);
  if (run.state === "stalled")
    found.push(`the last commit was ${ago(run.committed)} ago, a step usually takes ${span(run.usual_step_s)}`, ...(run.waits && run.waits.now ? [plain(run.waits.now.why)] : []));
  if (run.exactness.compared > run.exactness.equal)
    found.push(`${count(run.exactness.compared - run.exactness.equal, "server")} had other weights than the rest of the stage`);
  if (run.checkpoint.failure) found.push(run.checkpoint.failure);
  return found;
}

function possible(run) {
  const rates = run.stages.map(() => 0);
  for (const server of Object.values(run.servers)) {
    const took = (server.forward_s || 0) + (server.backward_s || 0);
    if (server.state === "ready" && took > 0 && server.stage in rates) rates[server.stage] += 1 / took;
  }
  const slowest = Math.min(...rates);
  return run.microbatches && Number.isFinite(slowest) ? (slowest * run.step_tokens) / run.microbatches : 0;
}

function doneText(eta) {
  if (eta.left_s > CENTURY_S) return "not within a century at this speed";
  return day(eta.at) + (eta.spread_s ? ` ± ${span(eta.spread_s)}` : "");
}

function top(run) {
  const [sign, tone, word] = stateOf(run);
  const found = troubles(run);
  const lone = run.stages.filter((stage) => stage.ready === 1).map((stage) => stage.stage);
  const verdict = found.length ? "! " + found.join("; ") : run.state === "training" ? "✓ fine" : run.ended;
  const facts = [];
  facts.push(fact("step", `${number(run.step)} / ${run.steps ? number(run.steps) : "–"}`, MEANING.step));
  if (run.loss !== null) facts.push(fact("loss", number(run.loss, 3), MEANING.loss));
  if (run.held_out !== null) facts.push(fact("held out", number(run.held_out, 3), MEANING["held out"]));
  if (run.step) {
    const over = run.state === "ended" || run.state === "failed";
    const rate = over ? `${short(run.whole_tokens_per_s)} over the whole run` : run.tokens_per_s || run.state === "training" ? short(run.tokens_per_s) : `0 (last commit ${ago(run.committed)} ago)`;
    const most = possible(run);
    facts.push(fact("tokens/s", rate + (!over && most > run.tokens_per_s ? ` of ${short(most)} possible` : ""), MEANING["tokens/s"] + " Possible: " + MEANING.possible));
  }
  if (run.eta && run.eta.at) facts.push(fact("done", doneText(run.eta), MEANING.done));
  else if (run.usual_step_s && run.steps > run.step && run.state === "training")
    facts.push(fact("done in about", span((run.steps - run.step) * run.usual_step_s), MEANING.done));
  const money = moneyLine(run.cost);
  if (money) facts.push(fact("cost", money, MEANING.cost));
  if (lone.length && run.state === "training" && run.stages.length)
    facts.push(fact("one server alone:", "stage " + lone.join(", "), "If it goes, its stage waits for another server, or goes back to the last checkpoint."));
  return [
    ["p", { class: "verdict" }, ["span", { class: tone }, sign + " " + word], run.name ? ` “${plain(run.name, 64)}”` : "", " ", ["span", { class: found.length ? "bad" : "good" }, verdict]],
    ["div", { class: "facts" }, ...facts],
  ];
}

// Without a trainer's events, a node knows its own part of a run alone: what it has not heard of is
// not missing.

const isPartial = ({ role, run }) => role !== "trainer" && role !== "watch" && !Object.values(run.nodes || {}).some((node) => node.role === "trainer");
const ELSEWHERE = ["p", { class: "soft" }, "This node knows its own part. The trainer’s page shows the whole run, and p2pswarm watch --bootstrap does from afar."];

const ownWord = (own) => (typeof own.stage === "number" ? `serves stage ${own.stage}` : plain(own.state));

function ownTop(own, run) {
  const well = typeof own.stage === "number" || own.role === "bootstrap";
  const word = ownWord(own);
  const facts = typeof own.version === "number" ? [fact("weights of step", `${number(own.version)} / ${run.steps ? number(run.steps) : "–"}`)] : [];
  return [
    ["p", { class: "verdict" }, ["span", { class: well ? "good" : "busy" }, `${well ? "●" : "◐"} ${word}`], own.run ? ` “${plain(own.run, 64)}”` : ""],
    ["div", { class: "facts" }, ...facts],
  ];
}

// The owner's page

const MARKS = { left: "↓", joined: "↑", relocated: "↔", checkpointed: "▣" };
const SIGNS = { ...MARKS, serving: "●", note: "·", waiting: "◐", ended: "■", begun: "▷", started: "▶", replayed: "↻", notsaved: "!", wentback: "↶", leads: "★", stood_by: "☆", why: "?", helped: "·" };
const WIDE = 520, HIGH = 170, LEFT = 46, FOOT = 22;

function chart(points, { logX, byTime, area, dots = [], marks = [], label }) {
  const x = (point) => (byTime ? point[1] : logX ? Math.log10(Math.max(1, point[0])) : point[0]);
  const finite = points.filter((point) => Math.abs(point[2]) < 1e18);
  const all = [...finite, ...dots];
  if (finite.length < 2) return ["figure", {}, ["figcaption", {}, label], ["p", { class: "soft" }, "nothing yet"]];
  const xs = all.map(x);
  const low = Math.min(...xs), high = Math.max(...xs);
  const values = all.map((point) => point[2]);
  let bottom = area ? 0 : Math.min(...values), ceiling = Math.max(...values);
  if (ceiling - bottom <= Math.abs(bottom) * 1e-9) ceiling = bottom + Math.max(1, Math.abs(bottom));
  const px = (v) => LEFT + ((v - low) / (high - low || 1)) * (WIDE - LEFT - 8);
  const py = (v) => 8 + (1 - (v - bottom) / (ceiling - bottom)) * (HIGH - FOOT - 8);
  const path = finite.map((point) => `${px(x(point)).toFixed(1)} ${py(point[2]).toFixed(1)}`).join("L");
  const inner = [];
  for (const part of [0, 0.5, 1]) {
    const value = bottom + part * (ceiling - bottom);
    inner.push(["line", { class: "grid", x1: LEFT, x2: WIDE - 8, y1: py(value).toFixed(1), y2: py(value).toFixed(1) }]);
    inner.push(["text", { x: 2, y: (py(value) + 4).toFixed(1) }, area ? short(value) : number(value, ceiling - bottom < 1 ? 3 : 2)]);
  }
  if (area) inner.push(["path", { class: "area", d: `M${px(low).toFixed(1)} ${py(0).toFixed(1)}L${path}L${px(x(finite[finite.length - 1])).toFixed(1)} ${py(0).toFixed(1)}Z` }]);
  inner.push(["path", { class: "one", d: "M" + path }]);
  for (const dot of dots) inner.push(["circle", { class: "two", cx: px(x(dot)).toFixed(1), cy: py(dot[2]).toFixed(1), r: 3 }, ["title", {}, `held out ${number(dot[2], 3)}, step ${number(dot[0])}`]]);
  for (const [at, sign, text] of marks)
    if (at >= low && at <= high) inner.push(["text", { class: "mark", x: px(at).toFixed(1), y: HIGH - FOOT - 2 }, sign, ["title", {}, text]]);
  const ends = byTime ? [clock(low), clock(high)] : logX ? [number(10 ** low), number(10 ** high)] : [number(low), number(high)];
  inner.push(["text", { x: LEFT, y: HIGH - 6 }, ends[0]], ["text", { x: WIDE - 8, y: HIGH - 6, "text-anchor": "end" }, ends[1]]);
  return ["figure", {}, ["figcaption", {}, label], ["svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label }, ...inner]];
}

function drawCurves(run) {
  const { loss, held_out, tokens_per_s } = page.curves;
  const marks = page.lines.filter((line) => line.event in MARKS).slice(-120).map((line) => [line.at, MARKS[line.event], `${clock(line.at)} ${plain(line.text, 120)}`]);
  draw($("curves"), [
    chart(loss, { logX: true, dots: held_out, label: `loss by step, logarithmic; ● held out` }),
    chart(tokens_per_s, { byTime: true, area: true, marks, label: "useful tokens/s; ↓ lost ↑ joined ↔ moved ▣ saved" }),
  ]);
}

function totals(run) {
  const left = Object.entries(run.totals.left).reduce((sum, [why, n]) => sum + (why === "moved" ? 0 : n), 0);
  return { at: page.now, step: run.step, joined: run.totals.joined, left, again: run.totals.again, asked: run.counts.asked, stalls: run.totals.stalls, moved: run.totals.moved };
}

let before = null; // what stood here when somebody looked last
function remember() {
  if (page.shown && page.shown.run.run && document.visibilityState === "hidden") {
    try {
      localStorage.setItem("look " + page.shown.run.run.slice(0, 64), JSON.stringify(totals(page.shown.run)));
    } catch (error) {
      console.info("nothing is kept here: " + error.name);
    }
    before = null;
  }
}

// An hour without an event is one without a step; what was before the first one is not known.
function wholeHours(run, since) {
  const known = new Map(run.hours.map((hour) => [hour.at, hour.steps]));
  const end = run.ended ? run.committed : page.now;
  const hours = [];
  const first = Math.max(Math.ceil(since / 3600) * 3600, Math.min(...known.keys()));
  for (let at = first; at + 3600 <= end && hours.length < 1000; at += 3600) hours.push({ at, steps: known.get(at) || 0 });
  return hours;
}

function night(run) {
  if (before === null) {
    before = {};
    try {
      before = JSON.parse(localStorage.getItem("look " + run.run.slice(0, 64)) || "{}");
    } catch (error) {
      before = {};
    }
  }
  const away = page.now - before.at;
  if (!(away > LOOK_S)) return [];
  const now = totals(run);
  const grown = (key) => Math.max(0, now[key] - (before[key] || 0));
  const hours = wholeHours(run, before.at);
  const slow = hours.reduce((low, hour) => (!low || hour.steps < low.steps ? hour : low), null);
  const most = Math.max(...hours.map((hour) => hour.steps), 1);
  return [
    ["b", {}, "NIGHT"], ` since you looked (${span(away)} ago): `,
    `${count(grown("left"), "machine")} gone, ${number(grown("joined"))} came, ${number(grown("moved"))} moved; `,
    `${count(grown("again"), "microbatch", "microbatches")} again of ${number(grown("asked"))}; ${count(grown("step"), "step")} done; ${count(grown("stalls"), "stall")}`,
    slow ? `; slowest hour ${clock(slow.at).slice(0, 5)}, ${number((100 * slow.steps) / most)} % of the fastest` : "",
  ];
}

const SERVER_STATES = { ready: ["●", "good"], joining: ["◐", "busy"], moving: ["↔", "busy"], lost: ["○", "soft"] };

function pathsOf(links) {
  const kinds = Object.entries(links || {}).filter(([, n]) => n);
  return kinds.map(([kind, n]) => (kinds.length > 1 ? `${n} ${kind}` : kind)).join(", ");
}

function machine(id, one, late) {
  const [sign, tone] = late ? ["▲", "bad"] : SERVER_STATES[one.state] || ["·", ""];
  const who = ["span", { class: "who" }, ["span", { class: tone }, sign + " "], ["b", {}, plain(one.name || id, 64)], one.name ? ` ${plain(id, 64)}` : "",
    one.device ? ` · ${plain(one.device, 40)}` : "", one.region ? ` · ${plain(one.region, 30)}` : ""];
  if (one.state === "lost") return ["li", { class: "gone" }, who, ["span", {}, `${one.why === "asked" ? "left" : one.why === "wrong" ? "put out" : "lost"} ${ago(one.since)} ago: ${plain(one.reason, 160) || "no reason was told"}`]];
  if (one.state === "moving") return ["li", {}, who, ["span", {}, `moves since ${ago(one.since)}`]];
  const facts = late ? [["span", { class: "bad" }, "the run waits for it"]] : [];
  if (one.state === "joining") facts.push(`joining${one.weights_share < 1 ? ` ${number(Math.floor(100 * one.weights_share))} %` : ""} since ${ago(one.since)}`);
  else facts.push(["span", { title: MEANING.rate }, `${number(one.rate_per_s, 1)}/s`]);
  if (one.figures_age_s > 30) facts.push(["span", { class: "busy" }, `figures are ${span(one.figures_age_s)} old`]);
  if (one.queue_s !== null && one.queue_s !== undefined) facts.push(["span", { title: MEANING.queue }, `queue ${span(one.queue_s)}`]);
  if (one.queued) facts.push(`${number(one.queued)} wait`);
  if (one.free_bytes) facts.push(["span", { title: MEANING.free }, `${number(one.free_bytes / 1e9, one.free_bytes < 1e10 ? 1 : 0)} GB free`]);
  if (one.up_bytes_per_s || one.down_bytes_per_s) facts.push(["span", { title: MEANING.mbit }, `↑${one.up_bytes_per_s ? mbit(one.up_bytes_per_s) : "–"} ↓${one.down_bytes_per_s ? mbit(one.down_bytes_per_s) : "–"} Mbit/s`]);
  const paths = pathsOf(one.links);
  if (paths) facts.push(["span", { title: MEANING.path }, paths]);
  if (one.unheard_s > 5) facts.push(["span", { class: "bad" }, `hears nothing from the trainer for ${span(one.unheard_s)}`]);
  if (one.price_per_hour) facts.push(["span", { title: MEANING.cost }, `${priceOf(one)}, as told`]);
  facts.push(`since ${ago(one.joined)}`);
  return ["li", {}, who, ...facts.map((each) => (Array.isArray(each) ? each : ["span", {}, each]))];
}

function blocksOf(run) {
  let first = 0;
  return run.stages.map((stage) => {
    const blocks = stage.blocks;
    if (!blocks) return "";
    const text = blocks === 1 ? `block ${first}` : `blocks ${first}–${first + blocks - 1}`;
    first += blocks;
    return text;
  });
}

function stages(run) {
  const fastest = Math.max(...run.stages.map((stage) => stage.rate_per_s || 0), 1e-9);
  const blocks = blocksOf(run);
  const servers = Object.entries(run.servers);
  const late = run.waits && run.waits.now ? run.waits.now.servers : [];
  const shown = page.shown.partial ? run.stages.filter((stage) => stage.servers.length) : run.stages;
  const rows = shown.map((stage) => {
    const own = servers.filter(([, one]) => one.stage === stage.stage);
    const words = [];
    if (stage.ready) words.push(["span", { title: MEANING.rate }, `${number(stage.rate_per_s, 1)}/s`]);
    if (stage.queue_s !== null) words.push(["span", { title: MEANING.queue }, ` · queue ${span(stage.queue_s)}`]);
    if (!stage.ready) words.push(["b", { class: "bad" }, `✕ nobody${stage.since ? " since " + ago(stage.since) : ""}: waits for a server${stage.joining ? `, ${number(stage.joining)} joining` : ""}`]);
    if (stage.slowest && stage.ready && run.state === "training") words.push(["span", { class: "busy" }, " ← the run is as fast as this"]);
    return ["div", { class: stage.ready ? "stage" : "stage empty", "data-stage": stage.stage },
      ["div", { class: "strip" }, ["span", { class: "name" }, `${stage.stage}  `, ["span", { class: "soft" }, blocks[stage.stage]]],
        ["div", { class: "bar", "aria-hidden": "true" }, ["i", { "width%": (100 * (stage.rate_per_s || 0)) / fastest }]], ["span", {}, ...words]],
      ["ul", { class: "machines" }, ...own.map(([id, one]) => machine(id, one, late.includes(id)))]];
  });
  return rows.length ? rows : [["p", { class: "soft" }, "no run yet: the stages come with its first event"]];
}

function once(run) {
  const { counts, exactness } = run;
  const same = exactness.compared ? `${exactness.equal === exactness.compared ? "✓" : "✕"} ${exactness.equal}/${exactness.compared}` : "not compared yet";
  return [["div", { class: "facts" },
    fact("counted in every stage", `${number(counts.counted)} of ${number(counts.asked)}`, MEANING.counted),
    fact("again", number(counts.replayed), MEANING.again),
    fact("void", number(counts.voided || 0), MEANING.void),
    counts.quarantined ? fact("not finite, left out", number(counts.quarantined)) : null,
    fact("weights equal", same, MEANING.equal),
    exactness.height ? fact("record", `${plain(exactness.head, 16)}… of ${number(exactness.height)}`, MEANING.record) : null,
    run.checkpoint.step !== null ? fact("saved", `step ${number(run.checkpoint.step)}, ${ago(run.checkpoint.at)} ago`) : fact("saved", "no checkpoint yet")]];
}

// The events

let listed = "";
function events() {
  const wanted = plain($("filter").value, 100).toLowerCase();
  const found = page.lines.filter((line) => !wanted || (line.text + " " + line.event).toLowerCase().includes(wanted));
  const left = page.shown ? page.shown.left_out : 0;
  const key = `${page.n} ${wanted} ${left}`;
  if (key === listed) return;
  listed = key;
  draw($("list"), [...found].reverse().map((line) => ["li", { "data-event": plain(line.event, 40) }, ["time", { title: day(line.at) }, when(line.at)], ["span", {}, SIGNS[line.event] || "·"], ["span", {}, plain(line.text)]]));
  $("shown").textContent = `${found.length} of the newest ${page.lines.length}` + (left ? `; ${number(left)} left out: too many a second` : "");
}

async function copy() {
  const text = [...$("list").children].map((row) => [...row.children].map((cell) => cell.textContent).join("  ")).join("\n");
  try {
    await navigator.clipboard.writeText(text);
    $("shown").textContent = "copied";
  } catch (error) {
    $("shown").textContent = "this browser does not allow it: select the lines, and copy them";
  }
}

// The friend's page

const bytes = (n) => short(n).replace(/ ?$/, "") + "B";

function you(own, run) {
  if (!own || !own.role) return [["p", { class: "soft" }, "this page shows a recorded or a distant run: no machine of yours is in it"]];
  const lines = [];
  const share = typeof own.share === "number" ? ` · ${number(100 * own.share)} % of its stage’s work` : "";
  if (own.role === "stage") lines.push(["p", { class: "verdict" }, own.stage === null || own.stage === undefined ? `◐ ${plain(own.state)}` : `● serving stage ${own.stage} of ${own.stages} for “${plain(own.run, 64)}”${share}`]);
  else lines.push(["p", { class: "verdict" }, own.role === "trainer" ? `★ the trainer of “${plain(own.run, 64)}”: ${plain(own.state)}` : `● ${plain(own.state)}`]);
  lines.push(["div", { class: "facts" },
    fact("this machine", plain(own.name, 64)), own.device ? fact("computes on", plain(own.device, 64)) : null,
    fact("since", ago(own.since)), fact("sent", bytes(own.up_bytes || 0), "Tensors and messages that this node has sent, counted once a second."),
    fact("received", bytes(own.down_bytes || 0)),
    typeof own.version === "number" ? fact("weights of step", number(own.version)) : null,
    typeof own.unheard_s === "number" ? fact("trainer heard", span(own.unheard_s) + " ago") : null,
    typeof own.price_per_hour === "number" ? fact("price", priceOf(own) + ", as you set it") : null]);
  const answers = [["Reachable", plain(own.reachable) || "not known yet"], ["How do I stop it?", plain(own.stop)], ["Can this program read my files?", plain(own.files)], ["Who sees this page?", "who has the link that the node printed, on this machine. It shows, and changes nothing."]];
  lines.push(["h2", {}, "Questions"], ["dl", {}, ...answers.filter(([, text]) => text).flatMap(([name, text]) => [["dt", {}, name], ["dd", {}, text]])]);
  const carried = Object.entries(own.paths || {});
  if (carried.length) lines.push(["h2", {}, "Bytes by path"], ["table", {}, ["tbody", {}, ...carried.map(([path, both]) => ["tr", {}, ["th", {}, plain(path, 20)], ["td", {}, `↑ ${bytes(both.up)}`], ["td", {}, `↓ ${bytes(both.down)}`]])]]);
  return lines;
}

// Why it is slow

function why(run) {
  if (page.shown.partial) return [ELSEWHERE];
  const rows = [];
  if (run.why) rows.push(["p", {}, ["b", {}, "Servers stay where they are: "], plain(run.why)]);
  const waits = run.waits || { now: null, stalls: [] };
  rows.push(["h2", {}, "Waits"]);
  if (run.state === "waiting") rows.push(["p", { class: "bad" }, `▲ waits for a server of stage ${run.waiting.stages.join(", ")} since ${ago(run.waiting.since)}`]);
  if (run.state === "stalled") rows.push(["p", { class: "bad" }, `▲ step ${number(run.step + 1)} takes ${ago(run.committed)}, usually ${span(run.usual_step_s)}`]);
  if (waits.now) rows.push(["p", { class: "bad" }, `▲ ${plain(waits.now.text)} (seen ${ago(waits.now.at)} ago)`]);
  else if (run.state === "training") rows.push(["p", { class: "good" }, "✓ nobody waits for longer than usual"]);
  if (run.phases) rows.push(["h2", {}, `The seconds of step ${number(run.phases.step)}`], ...phaseRows(run), ["h2", {}, `What its end waited for, ${seconds(run.phases.took_s)} in all`], ...chainRows(run.phases));
  if (waits.stalls.length) rows.push(["h2", {}, "Who waited for whom"], ["ul", { class: "plain" }, ...[...waits.stalls].reverse().slice(0, 20).map((stall) => ["li", {}, `${when(stall.at)}  ${plain(stall.text)}`])]);
  const stalls = [...run.stalls].reverse().slice(0, 20);
  rows.push(["h2", {}, "Steps that took three times as long as usual"]);
  rows.push(stalls.length ? ["table", {}, ["tbody", {}, ...stalls.map((stall) => ["tr", {}, ["td", { class: "short" }, when(stall.since)], ["td", {}, `after step ${number(stall.step)}`], ["td", {}, span(stall.seconds) + (stall.until ? "" : ", and it goes on")], ["td", {}, plain(stall.text) || (stall.waiting.length ? `no server of stage ${stall.waiting.join(", ")}` : "")]])]] : ["p", { class: "soft" }, "none"]);
  const nodes = Object.entries(run.nodes || {});
  rows.push(["h2", {}, "Views of nodes"], ["table", {}, ["tbody", {}, ...nodes.slice(0, 256).map(([by, node]) => ["tr", {}, ["td", { class: "name" }, plain(node.name || by, 64)], ["td", { class: "short" }, plain(node.role, 20)], ["td", {}, `${count(node.events, "event")}, the newest ${ago(node.at)} ago`]])]]);
  return rows;
}

const PHASES = ["forward_s", "backward_s", "transfer_s", "waiting_s", "averaging_s", "commit_s"];

// A server for people: its short id, and the name of its machine if that is known.
function called(run, id) {
  const name = Object.hasOwn(run.servers, id) ? run.servers[id].name : "";
  return plain(id, 64) + (name ? ` (${plain(name, 64)})` : "");
}

function phaseRows(run) {
  const rows = run.phases.stages.slice(0, 256).map((row, stage) => {
    const parts = PHASES.filter((key) => row[key] > 0).map((key) => [key.replace("_s", ""), row[key]]);
    const sum = parts.reduce((all, [, value]) => all + value, 0) || 1;
    const busiest = row.busiest ? `; ${called(run, row.busiest)} waited least` : "";
    const doubt = row.doubtful ? `; ${count(row.doubtful, "server")} left out, whose claims do not fit the step` : "";
    return ["div", {}, ["p", {}, ["b", {}, `stage ${stage}`], `, ${count(row.servers, "server")}: ${parts.map(([key, value]) => `${key} ${seconds(value)}`).join(" · ") || "not measured"}${busiest}${doubt}`],
      ["div", { class: "phases", "aria-hidden": "true" }, ...parts.map(([key, value]) => ["i", { "width%": (100 * value) / sum, title: key }, key])]];
  });
  return [...rows, ["p", { class: "soft" }, "The mean of each stage's servers, as these say themselves."]];
}

// The slowest chain; of twenty stages, what took less than a fiftieth is one row.
function chainRows(phases) {
  const long = phases.chain.filter((part) => part.took_s >= phases.took_s / 50);
  const rest = phases.chain.length - long.length;
  const rest_s = phases.chain.reduce((sum, part) => sum + (long.includes(part) ? 0 : part.took_s || 0), 0);
  return [["ul", { class: "plain" }, ...long.map((part) => ["li", {}, plain(part.text)]), rest ? ["li", { class: "soft" }, `${seconds(rest_s)} in ${count(rest, "shorter part")}`] : null],
    ["p", { class: "soft" }, "By the clock of the trainer: one thing after another."]];
}

// What it costs

const COSTS = {
  total: "so far", per_hour: "now", useful_per_mtoken: "a million tokens, without what is wasted", paid_per_mtoken: "a million tokens, all that is paid",
  budget: "budget", trainer: "trainers", invited: "invited servers", others: "other servers", uncounted: "told by others beyond what counts",
  joining: "wasted while weights are fetched", idle: "wasted while nothing is computed", again: "wasted on what is computed again", after_end: "after the last step", wasted: "wasted in all",
};

const PER = { per_hour: "/h", useful_per_mtoken: "/Mtoken", paid_per_mtoken: "/Mtoken" };

// As `money` of the node has it: below ten cents with more digits.
const amount = (value) => number(value, value && Math.abs(value) < 0.1 ? 4 : 2);

function moneyLine(cost) {
  if (!cost || typeof cost.total !== "number") return "";
  const currency = plain(cost.currency || "", 3);
  const per = typeof cost.useful_per_mtoken === "number" ? `${amount(cost.useful_per_mtoken)} ${currency}/Mtoken useful, ` : "";
  return `${per}${amount(cost.total)} ${currency} so far${cost.budget ? ` of ${amount(cost.budget)}` : ""}`;
}

const priceOf = (one) => `${amount(one.price_per_hour)} ${plain(one.currency || "", 3)}/h`;

const NO_SUM = {
  watch: "no sum is known here: the log of the run's trainer has it, and from afar those are told whom the run's owner has invited (--invite)",
  other: "no price is known: a server tells its own with serve.price_per_hour, and a trainer with train.price_per_hour",
};

function cost(run) {
  if (page.shown.partial) return [ELSEWHERE];
  const found = [];
  const currency = run.cost ? plain(run.cost.currency, 3) : "";
  if (run.cost) found.push(["p", { class: "verdict" }, moneyLine(run.cost)]);
  if (run.eta) found.push(["p", {}, `done ${doneText(run.eta)}`]);
  if (run.cost) {
    const rows = Object.entries(COSTS).filter(([key]) => typeof run.cost[key] === "number" && (key !== "budget" || run.cost.budget));
    found.push(["table", {}, ["tbody", {}, ...rows.map(([key, text]) => ["tr", {}, ["th", {}, text], ["td", {}, `${amount(run.cost[key])} ${currency}${PER[key] || ""}`]])]]);
  }
  const priced = Object.entries(run.servers).filter(([, one]) => one.price_per_hour && one.state !== "lost");
  if (priced.length) {
    const foreign = (one) => (currency && one.currency !== currency ? `: not counted, the run counts in ${currency}` : "");
    found.push(["h2", {}, "Prices as told"], ["table", {}, ["tbody", {}, ...priced.map(([id, one]) => ["tr", {}, ["th", {}, called(run, id)], ["td", {}, priceOf(one) + foreign(one)]])]]);
  }
  if (run.cost || priced.length) found.push(["p", { class: "soft" }, "Prices are what the owners of the machines told: nobody has checked them."]);
  if (!run.cost) found.push(["p", { class: "soft" }, priced.length ? "nothing of these prices counts: they are in another currency than train.currency" : NO_SUM[page.shown.role] || NO_SUM.other]);
  return found;
}

// All of it

// To a screen reader, which would read the changing figures of the top line each second.
function say(word) {
  if ($("said").textContent !== word) $("said").textContent = word;
}

function render() {
  if (!page.shown) return;
  const { run, you: own } = page.shown;
  page.now = run.at + (Date.now() - page.at) / 1000;
  const part = PARTS[location.pathname] || "run";
  for (const name of Object.values(PARTS)) $(name).hidden = name !== part;
  $("events").hidden = part === "you" || part === "cost";
  for (const link of document.querySelectorAll("nav a"))
    if (link.dataset.part === part) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  const partial = (page.shown.partial = isPartial(page.shown));
  const sign = partial ? "●" : stateOf(run)[0];
  document.title = `${sign} ${plain(run.name || "p2pswarm", 64)} ${run.step ? number(run.step) : ""}`;
  draw($("top"), partial ? ownTop(own, run) : top(run));
  say(partial ? ownWord(own) : stateOf(run)[2]);
  for (const id of ["curves", "night", "once", "once-name"]) $(id).hidden = partial;
  if (part === "run") {
    if (!partial) drawCurves(run);
    draw($("night"), partial ? [] : night(run));
    draw($("stages"), [...(partial ? [ELSEWHERE] : []), ...stages(run)]);
    draw($("once"), partial ? [] : once(run));
  }
  if (part === "you") draw($("you"), you(own, run));
  if (part === "why") draw($("why"), why(run));
  if (part === "cost") draw($("cost"), cost(run));
  if (!$("events").hidden) events();
}

function tick() {
  const quiet = Date.now() - page.heard;
  const lost = quiet > QUIET_MS || page.refused;
  const full = !lost && page.polls && page.shown.viewers >= VIEWERS_MAX;
  $("lost").hidden = !(lost || full);
  if (full) $("lost").textContent = `! ${VIEWERS_MAX} pages follow already: this one asks every ${RETRY_MAX_MS / 1000} s, and has no new events. Close another one.`;
  if (lost) $("lost").textContent = `! nothing from the node for ${span(quiet / 1000)}: what stands below is that old. ${page.refused}`;
  render();
}

for (const link of document.querySelectorAll("nav a"))
  link.addEventListener("click", (event) => {
    event.preventDefault();
    history.pushState(null, "", link.getAttribute("href"));
    render();
  });
addEventListener("popstate", render);
addEventListener("visibilitychange", remember);
addEventListener("pagehide", remember);
$("filter").addEventListener("input", events);
$("copy").addEventListener("click", copy);
draw($("meanings"), Object.entries(MEANING).flatMap(([name, text]) => [["dt", {}, name], ["dd", {}, text]]));
curves().then(follow);
setInterval(tick, 1000);
setInterval(curves, CURVES_MS);
