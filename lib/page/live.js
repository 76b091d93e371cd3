// SPDX-License-Identifier: Apache-2.0
// The live page: reads /live/events and draws each snapshot. Uses fetch(), because EventSource cannot send an API key.
// Texts of the cluster become text nodes, never markup. Widths are set through the DOM, since the page's content
// security policy allows no style attributes.
"use strict";
(() => {
  const KEY = "forepack-operator-key", HISTORY = 300, SILENCE_MS = 10000, SVG = "http://www.w3.org/2000/svg";
  const $ = (id) => document.getElementById(id);
  const state = { points: [], fields: [], snapshots: [], stop: null, bins: new Map() };

  // --- text

  const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const number = (v) => whole.format(v);
  const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });
  const plural = (n, word) => number(n) + " " + word + (n === 1 ? "" : "s");
  const percent = (v) => (100 * v).toFixed(v > 0 && v < 0.0995 ? 1 : 0) + " %";
  const rate = (v) => (v < 10000 ? number(v) : short.format(v));

  function milliseconds(v) {
    if (v < 10) return [v.toFixed(1), "ms"];
    if (v < 1000) return [v.toFixed(0), "ms"];
    return [(v / 1000).toFixed(v < 10000 ? 2 : 1), "s"];
  }

  function duration(s) {
    if (s < 1) return (1000 * s).toFixed(0) + " ms";
    if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
    if (s < 3600) return (s / 60).toFixed(0) + " min";
    return s < 86400 ? Math.floor(s / 3600) + " h " + Math.floor((s / 60) % 60) + " min" : Math.floor(s / 86400) + " d " + Math.floor((s / 3600) % 24) + " h";
  }

  const wholeSeconds = (n) => (n < 60 ? n + " s" : duration(n));

  // --- elements

  function element(name, attributes, ...children) {
    const e = document.createElement(name);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    e.append(...children);
    return e;
  }

  function shape(name, attributes) {
    const e = document.createElementNS(SVG, name);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    return e;
  }

  // Draws a share as a bar. With `scarce`, a full bar means trouble.
  function meter(share, text, scarce) {
    const bar = element("b", scarce && share > 0.9 ? { class: "high" } : {});
    bar.style.width = 100 * Math.min(1, Math.max(0, share)) + "%";
    return element("span", { class: "meter" }, element("i", { "aria-hidden": "true" }, bar), element("span", {}, text));
  }

  function say(text, kind) {
    if ($("state").textContent !== text) $("state").textContent = text;
    $("state").dataset.state = kind;
  }

  // --- figures

  const FIGURES = [
    { name: "Time to first token, p50", field: "ttft_p50_ms", text: milliseconds, none: "no first token in the last 5 s" },
    { name: "Time to first token, p99", field: "ttft_p99_ms", text: milliseconds, none: "no first token in the last 5 s" },
    { name: "Output tokens", field: "output_tokens_per_s", text: (v) => [rate(v), "/s"] },
    { name: "Prompt tokens", field: "prompt_tokens_per_s", text: (v) => [rate(v), "/s"] },
    { name: "Kept share of scored prompts", field: "kept_share", text: (v) => [(100 * v).toFixed(0), "%"], most: 1, none: "no prompt was scored in the last 5 s" },
    { name: "Requests waiting", field: "waiting", text: (v) => [rate(v), ""] },
  ];

  function figureCreate(figure) {
    figure.value = element("div", { class: "value" });
    figure.range = element("div", { class: "range" });
    figure.svg = shape("svg", { class: "spark", viewBox: "0 0 300 44", preserveAspectRatio: "none", role: "img" });
    $("figures").append(element("div", { class: "card figure" }, element("h3", {}, figure.name), figure.value, figure.svg, figure.range));
  }

  // Draws a line for each stretch of known values. The time axis ends now, and grows from one minute to five.
  function sparkPaths(values, top) {
    const length = Math.max(60, values.length), x = (i) => (300 * (i + length - values.length + 1)) / length, y = (v) => 42 - (40 * v) / top;
    let line = "", area = "", start = -1;
    for (let i = 0; i <= values.length; i++) {
      const known = i < values.length && values[i] !== null;
      if (known) line += (start < 0 ? "M" : "L") + x(i).toFixed(1) + " " + y(values[i]).toFixed(1);
      if (known && start < 0) start = i;
      if (known || start < 0) continue;
      if (start === i - 1) line += "h0.8"; // a single point is visible too
      area += "M" + x(start).toFixed(1) + " 43";
      for (let k = start; k < i; k++) area += "L" + x(k).toFixed(1) + " " + y(values[k]).toFixed(1);
      area += "L" + x(i - 1).toFixed(1) + " 43Z";
      start = -1;
    }
    return [line, area];
  }

  function figureDraw(figure) {
    const at = state.fields.indexOf(figure.field), values = state.points.map((p) => p[at]);
    const known = values.filter((v) => v !== null), last = values.length ? values[values.length - 1] : null;
    const write = (v) => figure.text(v).join(" ").trim();
    const from = (v, to) => (figure.text(v)[1] === figure.text(to)[1] ? figure.text(v)[0] : write(v));
    const [value, unit] = last === null ? ["–", ""] : figure.text(last);
    figure.value.replaceChildren(value, element("small", {}, unit));
    const most = known.length ? Math.max(...known) : 0, least = known.length ? Math.min(...known) : 0;
    const span = write(least) !== write(most) ? from(least, most) + " to " + write(most) : "steady";
    const range = known.length ? span + ", last " + wholeSeconds(values.length) : figure.none;
    figure.range.textContent = last === null && figure.none ? figure.none : range;
    figure.svg.setAttribute("aria-label", figure.name + ": now " + (last === null ? "unknown" : write(last)) + ", " + range);
    const [line, area] = sparkPaths(values, figure.most || most || 1);
    figure.svg.replaceChildren(shape("path", { class: "area", d: area }), shape("path", { class: "base", d: "M0 43H300" }), shape("path", { class: "line", d: line }));
  }

  // --- bins

  const BAR = 16, HANG_MAX = 40, BINS = 8;
  const FILL = "forepack bench serve --prompt-tokens 200,500,1000,1500 --max-tokens 32 --prefill on --keep-rate 0.3 --concurrency 16 --requests 1000 --load-seed $RANDOM";
  const GROUPS = [
    { field: "score_bins", role: "speculator", name: "Scored by speculators", none: "No speculator has scored a prompt yet. Each bin of prompts that speculators score will appear here. Requests with prefill “auto” or “on” are scored." },
    { field: "prefill_bins", role: "worker", name: "Prefilled by worker groups", none: "No prompt has been packed yet. Each bin of prompts that worker groups prefill will appear here." },
  ];

  function groupCreate(group) {
    group.about = element("p", { class: "dim small" });
    group.list = element("div");
    group.hint = element("p", { class: "dim small hint" });
    group.card = element("div", { class: "card group" }, element("header", {}, element("h3", {}, group.name), group.about), group.list, group.hint);
    group.drawn = new Map();
    $("bins").append(group.card);
  }

  function title(text) {
    const t = shape("title", {});
    t.textContent = text;
    return t;
  }

  // Returns the path of the pruned tokens below the bar, where a token has the same area as in the bar. The figure is
  // open at the bottom if there are more tokens than it shows.
  function droppedPath(x, width, height, closed) {
    const top = BAR + 2.5;
    return "M" + x + " " + top + "v" + height + (closed ? "h" + width : "m" + width + " 0") + "v" + -height;
  }

  // Draws a prompt of a bin. The array has the tokens of the prompt, its kept tokens (0: not scored), and its rows in
  // the bin.
  function drawPrompt(svg, [tokens, kept, rows], x, width) {
    const pruned = kept > 0 && kept < tokens, hang = pruned ? Math.min(HANG_MAX, (BAR * (tokens - kept)) / Math.max(1, rows)) : 0;
    const inner = Math.max(0.5, width - (width > 3 ? 1 : 0));
    const g = shape("g", {});
    if (pruned) {
      g.append(shape("rect", { class: "kept-base", x, y: 0, width: inner, height: BAR }));
      g.append(shape("rect", { class: "kept-hatch", x, y: 0, width: inner, height: BAR }));
      if (inner > 3) g.append(shape("rect", { class: "kept-edge", x: x + 0.5, y: 0.5, width: inner - 1, height: BAR - 1 }));
      if (inner > 2) g.append(shape("path", { class: "dropped", d: droppedPath(x + 0.5, inner - 1, hang, hang < HANG_MAX) }));
    } else {
      g.append(shape("rect", { class: "whole", x, y: 0, width: inner, height: BAR }));
    }
    const cached = !pruned && rows < tokens ? ", " + number(rows) + " to compute" : "";
    g.append(title("prompt of " + plural(tokens, "token") + (pruned ? ", " + number(kept) + " kept" : "") + cached));
    svg.append(g);
    return pruned && inner > 2 ? hang + 3 : 0;
  }

  function binDraw(bin, width, budget) {
    const scale = width / budget, room = bin.token_budget * scale;
    const svg = shape("svg", { width, role: "img", "aria-label": "Bin of " + plural(bin.n, "prompt") + " with " + number(bin.rows) + " of " + number(bin.token_budget) + " rows, sent to " + bin.node_id });
    svg.append(shape("rect", { class: "room", x: 0, y: 0, width: room, height: BAR }));
    let x = 0, rows = 0, hang = 0;
    for (const prompt of bin.prompts) {
      const w = Math.min(prompt[2] * scale, Math.max(0, room - x));
      hang = Math.max(hang, drawPrompt(svg, prompt, x, w));
      x += w;
      rows += prompt[2];
    }
    if (bin.n > bin.prompts.length) {
      const more = shape("rect", { class: "many", x, y: 0, width: Math.min((bin.rows - rows) * scale, Math.max(0, room - x)), height: BAR });
      more.append(title(plural(bin.n - bin.prompts.length, "more prompt")));
      svg.append(more);
    }
    svg.setAttribute("height", BAR + hang);
    return svg;
  }

  function binRow(group, bin, width, budget) {
    const key = bin.id + " " + width + " " + budget;
    const row = group.drawn.get(key) || { age: element("span") };
    if (!row.node) row.node = element("div", { class: "bin" }, element("div", { class: "name" }, element("span", {}, bin.node_id), row.age), binDraw(bin, width, budget));
    const long = bin.rows > bin.token_budget;
    row.age.textContent = plural(bin.n, "prompt") + " · " + (long ? "over " + Math.ceil(bin.rows / bin.token_budget) + " passes" : percent(bin.rows / bin.token_budget) + " full") + " · " + duration(bin.age_ms / 1000) + " ago";
    return [key, row];
  }

  // Says why the bars are few or nearly empty, and how to fill them.
  function hintDraw(group, recent) {
    const rows = recent.reduce((sum, bin) => sum + bin.rows, 0), tokens = ([n, kept]) => (kept > 0 ? kept : n);
    const prompts = recent.reduce((sum, bin) => sum + bin.prompts.reduce((all, prompt) => all + tokens(prompt), 0), 0);
    const cached = rows < prompts / 4, few = group.role === "worker" && recent.length < BINS;
    const why = cached ? "These bins are short because the prefix cache has most rows of their prompts. " : "";
    group.hint.hidden = !cached && !few;
    group.hint.replaceChildren(why + "To see full bins, send prompts that no cache has: ", element("code", {}, FILL));
  }

  function groupDraw(group, snapshot) {
    const bins = snapshot[group.field], used = snapshot.nodes.some((n) => n.role === group.role) || bins.bins > 0;
    group.card.hidden = !used && group.role === "speculator";
    group.about.textContent = bins.bins ? plural(bins.bins, "bin") + ", " + plural(bins.items, "prompt") + ", " + percent(bins.tokens / bins.capacity_tokens) + " full" : "";
    hintDraw(group, bins.recent);
    if (!bins.recent.length) {
      group.list.replaceChildren(element("p", { class: "empty" }, group.none));
      return;
    }
    const width = Math.floor(group.list.clientWidth), budget = Math.max(...bins.recent.map((b) => b.token_budget));
    const rows = bins.recent.map((bin) => binRow(group, bin, width, budget));
    group.drawn = new Map(rows);
    group.list.replaceChildren(...rows.map(([, row]) => row.node));
  }

  // --- tables

  function cell(content, kind) {
    return element("td", kind ? { class: kind } : {}, content);
  }

  function head(text) {
    return element("th", { scope: "row", title: text }, text);
  }

  function queueDraw(queue) {
    const names = { high: "High priority", normal: "Normal", low: "Low priority" };
    const rows = Object.entries(queue.classes).reverse().map(([name, c]) => {
      const share = Math.max(c.waiting / c.capacity_requests, c.waiting_tokens / c.capacity_tokens);
      return element("tr", {}, head(names[name] || name), cell(number(c.waiting)), cell(number(c.waiting_tokens)), cell(meter(share, percent(share), true)));
    });
    $("queue").replaceChildren(...rows);
  }

  // Returns the share of the nodes' attached time that passes took.
  function utilisation(pool, before) {
    const attached = before ? pool.attached_s - before.attached_s : 0;
    return attached > 0.5 ? Math.min(1, (pool.busy_s - before.busy_s) / attached) : null;
  }

  function poolsDraw(snapshot) {
    const names = { worker: "Worker groups", speculator: "Speculators" }, before = state.snapshots[0].pools;
    const rows = Object.entries(snapshot.pools).map(([role, p]) => {
      const all = snapshot.nodes.filter((n) => n.role === role).length, used = utilisation(p, before[role]);
      const queue = p.queue_s === null ? "–" : duration(p.queue_s);
      return element("tr", {}, head(names[role] || role), cell(p.nodes + " of " + all), cell(number(p.waiting)), cell(queue), cell(used === null ? "…" : meter(used, percent(used))));
    });
    $("pools").replaceChildren(...rows);
  }

  // Returns the work of a node since an earlier snapshot, or null if the node was not attached then or has attached
  // again.
  function growth(node, before, seconds) {
    const old = before && before.nodes.find((n) => n.node_id === node.node_id && n.role === node.role);
    if (!old || !seconds || node.pass_us < old.pass_us || node.tokens_in < old.tokens_in) return null;
    return { busy: Math.min(1, (node.pass_us - old.pass_us) / 1e6 / seconds), prompt: (node.tokens_in - old.tokens_in) / seconds, output: (node.tokens_out - old.tokens_out) / seconds };
  }

  function nodeRow(node, before, seconds) {
    const g = growth(node, before, seconds), kv = node.kv_blocks ? (node.kv_blocks - node.kv_blocks_free) / node.kv_blocks : null;
    const kind = node.state === "ready" ? "good" : node.state === "draining" ? "warn" : "bad";
    const name = head(node.node_id);
    name.title = node.node_id + " on " + node.host + ", " + plural(node.ranks, "rank") + (node.stages > 1 ? " in " + node.stages + " stages" : "");
    return element("tr", {}, name, cell(node.role, "text extra"), cell(element("span", { class: "state", "data-state": kind }, node.state), "text"),
      cell(g ? meter(g.busy, percent(g.busy)) : "…"), cell(number(node.running) + " of " + number(node.max_seqs), "extra"),
      cell(kv === null ? "–" : meter(kv, percent(kv), true)), cell(g ? rate(g.prompt) : "…", "extra"), cell(g ? rate(g.output) : "…", "extra"));
  }

  // A row of a node that loads its weights and takes no requests yet.
  function loadingRow(node) {
    const name = head(node.node_id);
    name.title = node.node_id + " on " + node.host + ", " + plural(node.ranks, "rank");
    return element("tr", {}, name, cell(node.role, "text extra"), cell(element("span", { class: "state", "data-state": "warn" }, "loading " + node.percent + " %"), "text"),
      cell("–"), cell("–", "extra"), cell("–"), cell("–", "extra"), cell("–", "extra"));
  }

  function nodesDraw(snapshot) {
    const before = state.snapshots[0], seconds = snapshot.point[0] - before.point[0];
    const order = (n) => (n.role === "worker" ? "1" : "0") + n.node_id;
    const nodes = [...snapshot.nodes].sort((a, b) => order(a).localeCompare(order(b), "en", { numeric: true }));
    const shown = nodes.length + snapshot.loading.length, all = snapshot.n_nodes + snapshot.n_loading;
    $("no-nodes").hidden = shown > 0;
    $("node-table").hidden = shown === 0;
    $("node-rows").replaceChildren(...nodes.map((n) => nodeRow(n, before, seconds)), ...snapshot.loading.map(loadingRow));
    $("more-nodes").hidden = all <= shown;
    $("more-nodes").textContent = plural(all - shown, "more node") + " not shown";
  }

  function totalsDraw(t) {
    const parts = [[t.done, "done"], [t.failed, "failed"], [t.cancelled, "cancelled"], [t.refused, "refused"], [t.replays, "replayed"], [t.degraded, "prefilled whole for want of a speculator"]];
    const said = parts.filter(([n], i) => n || i === 0).map(([n, word]) => number(n) + " " + word).join(", ");
    $("totals").textContent = "Since the router started: " + plural(t.requests, "request") + ", " + said + "; " + number(t.prompt_tokens) + " prompt tokens and " + number(t.completion_tokens) + " output tokens.";
  }

  function draw() {
    const snapshot = state.snapshots[state.snapshots.length - 1];
    if (!snapshot) return;
    $("main").hidden = false;
    const working = snapshot.queue.waiting + snapshot.queue.running > 0;
    if (snapshot.draining) say("draining", "warn");
    else if (snapshot.ready) say(working ? "serving" : "ready", "good");
    else say("not ready: " + (snapshot.n_loading ? "nodes load their weights" : snapshot.n_nodes ? "no worker group takes requests" : "no node is attached"), "warn");
    $("about").textContent = snapshot.model + " · version " + snapshot.version + " · up " + wholeSeconds(snapshot.uptime_s);
    document.title = (working ? number(snapshot.queue.running) + " running" : snapshot.ready ? "ready" : "not ready") + " · Forepack";
    FIGURES.forEach(figureDraw);
    GROUPS.forEach((group) => groupDraw(group, snapshot));
    queueDraw(snapshot.queue);
    poolsDraw(snapshot);
    nodesDraw(snapshot);
    totalsDraw(snapshot.totals);
  }

  // --- events

  function receive(name, data) {
    if (name === "history") {
      state.points = data.points;
      state.fields = data.fields;
      state.snapshots = [];
      return;
    }
    if (name !== "snapshot") return;
    const last = state.points[state.points.length - 1];
    if (!last || last[0] < data.point[0]) state.points.push(data.point);
    state.points = state.points.slice(-HISTORY);
    state.snapshots = [...state.snapshots, data].slice(-6);
    document.body.classList.remove("stale");
    draw();
  }

  // Server-sent events end in an empty line.
  async function read(body, alive) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      text += value;
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const event = /^event: (.*)\ndata: (.*)$/.exec(text.slice(0, end));
        if (event) receive(event[1], JSON.parse(event[2]));
      }
    }
  }

  function askKey(text) {
    sessionStorage.removeItem(KEY);
    if (text) $("key-text").textContent = text;
    $("key").hidden = false;
    $("main").hidden = $("forget").hidden = true;
    say("key needed", "warn");
    $("key-input").focus();
  }

  // Reads events until the stream ends. Returns false if there is no point in trying again.
  async function listen(signal, alive) {
    const key = sessionStorage.getItem(KEY);
    const answer = await fetch("live/events", { headers: key ? { Authorization: "Bearer " + key } : {}, cache: "no-store", signal });
    if (answer.status === 401) return askKey(key ? "The router does not know this key." : ""), false;
    if (answer.status === 403) return askKey("This key is not an operator’s."), false;
    if (!answer.ok) {
      const body = await answer.json().catch(() => null);
      throw new Error(body && body.error ? body.error.message : "the router answered with " + answer.status);
    }
    $("key").hidden = true;
    $("forget").hidden = !key;
    await read(answer.body, alive);
    throw new Error("the router ended the stream");
  }

  async function connect() {
    if (state.stop) return;
    const stop = (state.stop = new AbortController());
    for (let pause = 1; !stop.signal.aborted; pause = Math.min(10, 2 * pause)) {
      const started = Date.now();
      const attempt = new AbortController();
      const end = () => attempt.abort(stop.signal.reason);
      stop.signal.addEventListener("abort", end);
      let timer;
      const alive = () => {
        clearTimeout(timer);
        timer = setTimeout(() => attempt.abort(new Error("the router is silent")), SILENCE_MS);
      };
      alive();
      try {
        if (!(await listen(attempt.signal, alive))) break;
      } catch (error) {
        if (stop.signal.aborted) break;
        if (Date.now() - started > 5000) pause = 1;
        say(error instanceof TypeError ? "not connected: the router does not answer" : "not connected: " + error.message, "bad");
        document.body.classList.add("stale");
      } finally {
        clearTimeout(timer);
        stop.signal.removeEventListener("abort", end);
      }
      await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
    }
    if (state.stop === stop) state.stop = null;
  }

  function disconnect() {
    if (state.stop) state.stop.abort();
    state.stop = null;
  }

  FIGURES.forEach(figureCreate);
  GROUPS.forEach(groupCreate);
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = $("key-input").value.trim();
    $("key-input").value = "";
    if (!/^[!-~]+$/.test(key)) { // fetch() would refuse the header
      askKey("A key is printable ASCII without blanks.");
      return;
    }
    sessionStorage.setItem(KEY, key);
    $("key").hidden = true;
    say("connecting", "");
    connect();
  });
  $("forget").addEventListener("click", () => {
    disconnect();
    askKey("The key was forgotten.");
  });
  // Stops while the page is hidden, so that it costs the router nothing. The router's history fills the gap later.
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  let resizing = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(draw);
  });
  connect();
})();
