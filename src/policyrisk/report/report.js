"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);

  // ---- numbers and texts ----
  const digits = (value, count = 4) => {
    if (value === null || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    const size = Math.abs(value);
    let text = String(Number(value.toPrecision(count)));
    if (size >= 1e7 || (size > 0 && size < 1e-4)) text = value.toExponential(count - 1);
    return text.replace("-", "−").replace("e-", "e−");
  };
  // Plotly reads a few HTML tags in labels; names are shown as they are.
  const literal = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  // A coordinate's value, by its name where it is a label that has names.
  const named = (coordinate, value, count) => data.labels[coordinate][value] ?? digits(value, count);
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const percent = (share) => digits(100 * share, 3) + "%";
  const between = (low, high) => (Number.isFinite(low) ? " (" + digits(low) + " to " + digits(high) + ")" : "");
  const level = Number((100 * data.level).toPrecision(6)) + "%";

  // ---- colours, those of the style sheet: light, dark or for paper ----
  const DARK = window.matchMedia("screen and (prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const faded = (name, share) => {
    const [r, g, b] = color(name).match(/\w\w/g).map((pair) => parseInt(pair, 16));
    return `rgba(${r}, ${g}, ${b}, ${share})`;
  };
  const views = []; // what draws all plots anew, for other colours
  const drawing = (view) => { views.push(view); view(); };
  DARK.addEventListener("change", () => views.forEach((view) => view()));

  // ---- what every plot shares ----
  const FAMILY = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif';
  const font = (name) => ({ family: FAMILY, size: 13, color: color(name) });
  const CONFIG = {
    responsive: true,
    displaylogo: false,
    // Named one by one: newer versions of Plotly offer to upload a chart to a server.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    plotlyServerURL: "",
  };
  const axis = (name) => ({ title: { text: literal(name), standoff: 8 }, automargin: true, zeroline: false, ticks: "outside", ticklen: 4, tickcolor: color("edge"), gridcolor: color("grid"), fixedrange: matchMedia("(pointer: coarse)").matches });
  const ticks = (form, one) => {
    const names = data.labels[one.coordinate];
    const every = Math.ceil(names.length / 16);
    const shown = names.map((_, k) => k).filter((k) => k % every === 0);
    if (names.length) Object.assign(form, { tickmode: "array", tickvals: shown, ticktext: shown.map((k) => literal(names[k])) });
  };
  const layout = (x, y, more = {}) => ({
    font: font("ink"), margin: { l: 58, r: 12, t: 30, b: 50 }, paper_bgcolor: color("paper"), plot_bgcolor: color("paper"),
    hoverlabel: { bgcolor: color("ink"), bordercolor: color("ink"), font: font("paper"), align: "left" },
    xaxis: axis(x), yaxis: axis(y), ...more,
  });
  // On paper the style sheet scales a plot as it was on screen, for which its pictures need a view box.
  const scalable = (plot) => plot.querySelectorAll("svg.main-svg").forEach((svg) =>
    svg.setAttribute("viewBox", "0 0 " + svg.getAttribute("width") + " " + svg.getAttribute("height")));
  const draw = (plot, traces, form) => {
    const isNew = !plot.classList.contains("js-plotly-plot");
    Plotly.react(plot, traces, form, CONFIG).then(() => scalable(plot));
    if (isNew) plot.on("plotly_afterplot", () => scalable(plot));
  };
  const panel = (key, title, text) => {
    const plot = element("div", { class: "plot", id: "plot-" + key, role: "img", "aria-label": title });
    byId("panels").append(
      element("figure", { class: "panel" }, element("figcaption", {}, element("h3", {}, title), element("p", {}, text)), plot)
    );
    return plot;
  };

  // ---- maps over two coordinates ----
  const [WORST, LOSS] = data.asked ? ["Worst " + percent(data.asked[0]) + " of the returns", "Chance of a return below " + digits(data.asked[1])] : [];
  const QUANTITIES = [
    { key: "mean", title: "Mean", text: "expected reward to go", scale: "Viridis" },
    { key: "std", title: "Standard deviation", text: "how far outcomes spread", scale: "Viridis" },
    { key: "sharpe", title: "Sharpe ratio", text: "mean / standard deviation", scale: "Viridis" },
    { key: "worst", title: WORST, text: "mean of the worst returns", scale: "Viridis" },
    { key: "loss", title: LOSS, text: "share of the returns", scale: "Viridis" },
    { key: "episodes", title: "Visits", text: "episodes behind the estimate, logarithmic colours", scale: "Cividis" },
    { key: "covered", title: "Covered", text: "the target's probability there on actions that were logged", scale: "Cividis" },
    { key: "mean_error", title: "Error bar of the mean", text: "half of its " + level + " interval", scale: "Cividis" },
    { key: "std_error", title: "Error bar of the standard deviation", text: "half of its " + level + " interval", scale: "Cividis" },
  ];

  // gzip in base64, and how numbers are packed in it: all first bytes, then all second ones, …
  const unzip = (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  };
  const unpack = async (text) => {
    const planes = new Uint8Array(await unzip(text).arrayBuffer());
    const count = planes.length / 4;
    const view = new DataView(new ArrayBuffer(planes.length));
    for (let i = 0; i < planes.length; i++) view.setUint8(4 * (i % count) + Math.floor(i / count), planes[i]);
    return Float32Array.from({ length: count }, (_, i) => view.getFloat32(4 * i, true));
  };

  const cellOf = (values, at, stride) => {
    const cell = Object.fromEntries(data.maps.kinds.map((kind, k) => [kind, values[at + k * stride]]));
    const unit = data.maps.unit, spread = cell.variance >= 0 ? Math.sqrt(cell.variance) : NaN;
    cell.std = spread;
    for (const of of ["mean", "std"])
      Object.assign(cell, { [of + "_low"]: cell[of] - cell[of + "_down"], [of + "_high"]: cell[of] + cell[of + "_up"], [of + "_error"]: (cell[of + "_down"] + cell[of + "_up"]) / 2 });
    cell.sharpe = cell.mean / spread;
    cell.variance *= unit;
    for (const kind in cell) if (!["sharpe", "episodes", "covered", "loss"].includes(kind)) cell[kind] *= unit;
    return cell;
  };

  const coverage = (covered) => (data.target ? ["covered " + digits(covered, 3)] : []);
  const nothing = data.target ? "no estimate" : "not visited";
  // What a cell, or a point of a line, says when it is pointed at.
  const describe = (cell, places) => {
    const where = places.map(([one, value]) => literal(one.name) + " = " + literal(named(one.coordinate, value)));
    if (!(cell.episodes > 0)) return [...where, nothing, ...coverage(cell.covered)].join("<br>");
    const spread = cell.variance < 0
      ? ["variance " + digits(cell.variance) + " is negative: no std"]
      : ["std " + digits(cell.std) + between(cell.std_low, cell.std_high), "Sharpe " + digits(cell.sharpe) + between(cell.sharpe_low, cell.sharpe_high)];
    const tails = "worst" in cell ? ["worst " + percent(data.asked[0]) + ": " + digits(cell.worst) + between(cell.worst_low, cell.worst_high)] : [];
    if ("loss" in cell) tails.push("below " + digits(data.asked[1]) + ": " + percent(cell.loss) + (Number.isFinite(cell.loss_low) ? " (" + percent(cell.loss_low) + " to " + percent(cell.loss_high) + ")" : ""));
    if (!Number.isNaN(cell.return_low ?? NaN)) tails.push("next return, " + level + ": " + digits(cell.return_low) + " to " + digits(cell.return_high));
    return [...where, "mean " + digits(cell.mean) + between(cell.mean_low, cell.mean_high), ...spread, ...tails,
      "episodes " + digits(Math.round(cell.episodes)), ...coverage(cell.covered)].join("<br>");
  };

  const episodeTicks = ([low, high]) => {
    const values = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power++)
      for (const digit of high - low > 2.5 ? [1] : [1, 2, 5]) {
        const value = power + Math.log10(digit);
        if (value >= low - 1e-6 && value <= high + 1e-6) values.push(value);
      }
    const shown = values.length > 1 ? values : [low, high];
    return { tickvals: shown, ticktext: shown.map((value) => digits(Math.round(10 ** value))) };
  };

  const startMaps = async () => {
    const { axes, maps } = data;
    const shown = QUANTITIES.filter(({ key }) => key in maps.ranges && (key !== "covered" || data.target));
    const plots = shown.map((quantity) => panel(quantity.key, quantity.title, quantity.text));
    const unpacked = await Promise.all(maps.pairs.map((pair) => unpack(pair.data)));
    const chosen = { x: 0, y: 1, levels: axes.map((one) => one.median) };
    const controls = byId("controls");

    const pairOf = () => {
      const [first, second] = [Math.min(chosen.x, chosen.y), Math.max(chosen.x, chosen.y)];
      const index = maps.pairs.findIndex((pair) => pair.axes[0] === first && pair.axes[1] === second);
      return { first, second, pair: maps.pairs[index], values: unpacked[index] };
    };
    // Of the axes that the map does not lie over, the first ones have a slider; the rest are at their medians.
    const sliding = () => axes.map((_, k) => k).filter((k) => k !== chosen.x && k !== chosen.y).slice(0, maps.sliders);

    const view = () => {
      const { first, second, pair, values } = pairOf();
      const key = sliding().map((k) => chosen.levels[k]).join();
      const slice = pair.slices.findIndex((levels) => levels.join() === key);
      const [across, up] = [axes[first].cells.length, axes[second].cells.length];
      const stride = pair.slices.length * across * up;
      const [columns, rows] = [axes[chosen.x].cells, axes[chosen.y].cells];
      const z = shown.map(() => []);
      const texts = [];
      let [unvisited, negative] = [0, 0];
      for (let row = 0; row < rows.length; row++) {
        z.forEach((lines) => lines.push([]));
        texts.push([]);
        for (let column = 0; column < columns.length; column++) {
          const [a, b] = chosen.x === first ? [column, row] : [row, column];
          const cell = cellOf(values, slice * across * up + b * across + a, stride);
          if (!(cell.episodes > 0)) unvisited++;
          else if (cell.variance < 0) negative++;
          shown.forEach((quantity, k) => {
            const value = quantity.key === "episodes" ? Math.log10(cell.episodes) : cell[quantity.key];
            z[k][row].push(Number.isFinite(value) ? value : null);
          });
          texts[row].push(describe(cell, [[axes[chosen.x], columns[column]], [axes[chosen.y], rows[row]]]));
        }
      }
      shown.forEach((quantity, k) => {
        const [zmin, zmax] = maps.ranges[quantity.key];
        const bar = { thickness: 14, outlinewidth: 0, ticks: "outside", ticklen: 3, tickcolor: color("edge"), len: 1, x: 1.02, xpad: 4 };
        if (quantity.key === "episodes") Object.assign(bar, episodeTicks([zmin, zmax]));
        const trace = {
          type: "heatmap", x: columns, y: rows, z: z[k], hovertext: texts, hoverinfo: "text", hoverongaps: true,
          colorscale: quantity.scale, zmin, zmax, colorbar: bar, zsmooth: false,
        };
        const grounds = { plot_bgcolor: color("blank") };
        const form = layout(axes[chosen.x].name, axes[chosen.y].name, grounds);
        form.xaxis.showgrid = form.yaxis.showgrid = false;
        form.xaxis.range = extent(columns);
        form.yaxis.range = extent(rows);
        ticks(form.xaxis, axes[chosen.x]);
        ticks(form.yaxis, axes[chosen.y]);
        draw(plots[k], [trace], form);
      });
      say(unvisited, negative, rows.length * columns.length);
    };

    const extent = (cells) => {
      if (cells.length < 2) return [cells[0] - 0.5, cells[0] + 0.5];
      const last = cells.length - 1;
      return [cells[0] - (cells[1] - cells[0]) / 2, cells[last] + (cells[last] - cells[last - 1]) / 2];
    };

    const say = (unvisited, negative, cells) => {
      const held = sliding().map((k) => axes[k].name + " = " + named(axes[k].coordinate, axes[k].levels[chosen.levels[k]], 4) + (chosen.levels[k] === axes[k].median ? " (median)" : ""));
      const share = (count) => (count / cells < 0.001 ? "<0.1%" : Number((100 * count / cells).toPrecision(2)) + "%");
      const parts = [];
      if (held.length) parts.push("Shown at " + held.join(", ") + ".");
      if (unvisited) parts.push("Blank: outside the data, which say nothing there (" + share(unvisited) + " of the cells).");
      if (negative) parts.push("The standard deviation is blank where the estimated variance is negative (" + share(negative) + ").");
      parts.push("Colours run from the 1st to the 99th percentile over all views.");
      byId("view").textContent = parts.join(" ");
      byId("hint").textContent = "Point at a cell, or tap it, for its numbers" + (data.errors ? " with " + level + " intervals." : ".");
    };

    const chooser = (which, title) => {
      const select = element("select", { id: which + "-axis" });
      axes.forEach((one, k) => select.append(element("option", { value: k }, one.name)));
      select.value = chosen[which];
      select.addEventListener("change", () => {
        const other = which === "x" ? "y" : "x";
        const before = chosen[which];
        chosen[which] = Number(select.value);
        if (chosen[which] === chosen[other]) {
          chosen[other] = before;
          byId(other + "-axis").value = before;
        }
        refresh();
      });
      controls.append(element("label", {}, element("span", {}, title), select));
    };

    const sliders = axes.map((one, k) => {
      const input = element("input", { type: "range", min: 0, max: one.levels.length - 1, step: 1, id: "level-" + k });
      const output = element("output", { for: "level-" + k });
      const label = element("label", {}, element("span", {}, one.name + " at ", output), input);
      input.addEventListener("input", () => {
        chosen.levels[k] = Number(input.value);
        refresh();
      });
      return { label, input, output };
    });

    const refresh = () => {
      const moved = sliding();
      axes.forEach((one, k) => {
        const { label, input, output } = sliders[k];
        if (!moved.includes(k)) chosen.levels[k] = one.median;
        label.hidden = !moved.includes(k) || one.levels.length < 2;
        label.style.display = label.hidden ? "none" : "";
        input.value = chosen.levels[k];
        const text = named(one.coordinate, one.levels[chosen.levels[k]], 4) + (chosen.levels[k] === one.median ? " (median)" : "");
        output.textContent = text;
        input.setAttribute("aria-valuetext", text);
      });
      view();
    };

    chooser("x", "to the right");
    chooser("y", "upwards");
    sliders.forEach(({ label }) => controls.append(label));
    controls.addEventListener("submit", (event) => event.preventDefault());
    controls.hidden = axes.length < 2;
    drawing(refresh);
  };

  // ---- lines over the only coordinate ----
  const startLines = () => {
    const [one] = data.axes;
    const { values, intervals } = data.line;
    const texts = one.cells.map((at, k) => {
      const ends = Object.entries(intervals).flatMap(([key, band]) => [[key + "_low", band[0][k] ?? NaN], [key + "_high", band[1][k] ?? NaN]]);
      const cell = Object.fromEntries([...Object.entries(values).map(([key, all]) => [key, all[k]]), ...ends]);
      return describe(cell, [[one, at]]);
    });
    for (const { key, title, text } of QUANTITIES.filter((quantity) => quantity.key in values)) {
      const band = intervals[key];
      const told = key === "episodes" ? "episodes behind the estimate" : text + (band ? ", with its " + level + " interval" : "");
      const plot = panel(key, title, told);
      drawing(() => {
        const traces = [];
        if (band) {
          const edge = { x: one.cells, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
          traces.push({ ...edge, y: band[0] }, { ...edge, y: band[1], fill: "tonexty", fillcolor: faded("accent", 0.2) });
        }
        const mode = one.cells.length <= 40 ? "lines+markers" : "lines";
        traces.push({ x: one.cells, y: values[key], mode, line: { color: color("accent"), width: 2 }, marker: { size: 5 }, hovertext: texts, hoverinfo: "text", showlegend: false });
        const form = layout(one.name, title, { hovermode: "closest" });
        ticks(form.xaxis, one);
        if (key === "episodes") form.yaxis.rangemode = "tozero";
        if (key === "loss") form.yaxis.rangemode = "tozero";
        if (key === "covered") form.yaxis.range = [-0.03, 1.03];
        draw(plot, traces, form);
      });
    }
    const parts = [];
    if (values.episodes.some((count) => !(count > 0))) parts.push("Gaps: outside the data, which say nothing there.");
    if (values.std.some((std, k) => std === null && values.mean[k] !== null))
      parts.push("The standard deviation has gaps where the estimated variance is negative.");
    byId("view").textContent = parts.join(" ");
    byId("hint").textContent = "Point at a line, or tap it, for its numbers.";
  };

  // ---- the plane of mean and standard deviation ----
  const startPlane = () => {
    const { cloud, average, sample } = data;
    const texts = cloud.states.map((state, k) =>
      data.shown.map(([coordinate, name], i) => literal(name) + " = " + literal(named(coordinate, state[i], 4))).join("<br>") +
      "<br>mean " + digits(cloud.mean[k]) + "<br>std " + digits(cloud.std[k]) + "<br>episodes " + digits(Math.round(cloud.episodes[k])));
    const traces = [{
      type: "scatter", mode: "markers", name: "visited states", x: cloud.std, y: cloud.mean, hovertext: texts, hoverinfo: "text",
      marker: { size: 5, color: color("cloud"), opacity: 0.45 },
    }];
    const point = (name, { mean, std }, symbol, tone) => {
      const bar = ([value, low, high]) => ({
        type: "data", symmetric: false, visible: low !== null, thickness: 2, width: 5, color: tone,
        array: [high - value], arrayminus: [value - low],
      });
      const interval = ([value, low, high]) => digits(value) + (low === null ? "" : " (" + digits(low) + " to " + digits(high) + ")");
      traces.push({
        type: "scatter", mode: "markers", name, x: [std[0]], y: [mean[0]], error_x: bar(std), error_y: bar(mean), hoverinfo: "text",
        hovertext: [name + "<br>mean " + interval(mean) + "<br>std " + interval(std)],
        marker: { size: 12, symbol, color: tone, line: { color: color("paper"), width: 1.5 } },
      });
    };
    if (sample && sample.std[0] !== null) point(data.target ? "recorded policy's returns" : "plain sample of returns", sample, "diamond", "#e69f00");
    if (average.std[0] !== null) point(data.target ? "target, over the starts" : "policy, over its starts", average, "circle", color("point"));
    const form = layout("standard deviation", "mean", { hovermode: "closest", legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } });
    form.margin.t = 60;
    form.xaxis.rangemode = "tozero";
    draw(byId("plane"), traces, form);
  };

  // ---- the histogram of the returns ----
  const startReturns = () => {
    const { edges, terminated, cut_off: cutOff } = data.histogram;
    const middles = edges.slice(1).map((edge, k) => (edge + edges[k]) / 2);
    const bars = (name, counts, tone) => ({
      type: "bar", name, x: middles, y: counts, width: edges.slice(1).map((edge, k) => edge - edges[k]),
      marker: { color: tone, line: { width: 1, color: color("paper") } }, hoverinfo: "text", textposition: "none",
      hovertext: counts.map((count, k) => name + ": " + count + "<br>return " + digits(edges[k], 4) + " to " + digits(edges[k + 1], 4)),
    });
    const traces = [bars("terminated", terminated, color("accent"))];
    if (cutOff.some((count) => count)) traces.push(bars("cut off", cutOff, faded("accent", 0.4)));
    const form = layout("return", "episodes", { barmode: "stack", bargap: 0, hovermode: "closest", showlegend: traces.length > 1, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } });
    const { mean, std } = data.average;
    const line = { type: "line", x0: mean[0], x1: mean[0], y0: 0, y1: 1, yref: "paper", line: { color: color("warning"), width: 2 } };
    const spread = { type: "rect", x0: mean[0] - std[0], x1: mean[0] + std[0], y0: 0, y1: 1, yref: "paper", layer: "below", line: { width: 0 }, fillcolor: faded("warning", 0.14) };
    form.shapes = [...(mean[0] === null ? [] : [line]), ...(std[0] === null || mean[0] === null ? [] : [spread])];
    draw(byId("returns"), traces, form);
  };

  // ---- the distribution of the return from the starts ----
  const startTails = () => {
    const { at, share, returns, shares, quantiles, below, steps } = data.tails;
    const recorded = returns.length > 0;
    const curve = (name, x, y, line) => ({ type: "scatter", mode: "lines", name, x, y, line, hovertemplate: "%{y:.1%} of the returns are at most %{x:.5~g}<extra></extra>" });
    const model = curve(recorded ? "model" : "estimate", at, share, { shape: steps ? "hv" : "linear", width: recorded ? 1.5 : 2, dash: recorded ? "dash" : "solid", color: recorded ? color("cloud") : color("accent") });
    const interval = (low, high, show) => (low === null ? "" : " (" + show(low) + " to " + show(high) + ")");
    const marked = {
      type: "scatter", mode: "markers", name: "quantiles, " + level + " intervals", x: quantiles.map((one) => one[1]), y: quantiles.map(([q]) => q), marker: { size: 9, color: color("warning") },
      error_x: { type: "data", symmetric: false, thickness: 2, width: 5, color: color("warning"), array: quantiles.map(([, value, , , high]) => high - value), arrayminus: quantiles.map(([, value, , low]) => value - low) },
      hoverinfo: "text", hovertext: quantiles.map(([q, value, , low, high]) => percent(q) + " quantile<br>" + digits(value) + interval(low, high, digits)),
    };
    const traces = [marked, model]; // the first is named where two are pointed at
    if (recorded) traces.push(curve("recorded returns", returns, shares, { shape: "hv", width: 2, color: color("accent") }));
    const form = layout("return from the starts", "share at most this", { hovermode: "closest", legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } });
    form.yaxis.range = [-0.02, 1.04];
    const inside = at.filter((_, k) => share[k] > 0.001 && share[k] < 0.999);
    const ends = [...(inside.length ? inside : at), ...returns, ...below.map(([line]) => line)];
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    form.xaxis.range = [low - 0.04 * (high - low), high + 0.04 * (high - low)];
    form.yaxis.tickformat = ".0%";
    form.shapes = below.map(([line]) => ({ type: "line", x0: line, x1: line, y0: 0, y1: 1, yref: "paper", line: { color: color("serious"), width: 1.5, dash: "dot" } }));
    form.annotations = below.map(([line, value, , from, to]) => ({ x: line, y: 1, yref: "paper", yanchor: "top", xanchor: 2 * line < low + high ? "left" : "right", showarrow: false, text: percent(value) + interval(from, to, percent) + "<br>below " + digits(line), font: font("ink"), align: "left" }));
    draw(byId("tails"), traces, form);
  };

  // ---- the returns in the order of the episodes ----
  const startOrder = () => {
    const { at, returns, centre, running, band, time, changed } = data.order;
    const form = layout(time ? "time" : "episode", "return", { hovermode: "closest", legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } });
    form.shapes = [{ type: "rect", x0: 0, x1: 1, xref: "paper", y0: band[0], y1: band[1], layer: "below", line: { width: 0 }, fillcolor: faded("accent", 0.14) }];
    if (changed !== null) form.shapes.push({ type: "line", x0: changed, x1: changed, y0: 0, y1: 1, yref: "paper", line: { color: color("serious"), width: 2, dash: "dot" } });
    draw(byId("order"), [
      { type: "scatter", mode: "markers", name: "return", x: at, y: returns, marker: { size: 4, color: faded("cloud", 0.6) } },
      { type: "scatter", mode: "lines", name: "running mean", x: centre, y: running, line: { color: color("warning"), width: 2 } },
    ], form);
  };

  // ---- the table ----
  const startTable = () => {
    const headings = [...document.querySelectorAll("#riskiest th")];
    const body = document.querySelector("#riskiest tbody");
    headings.forEach((heading, column) => heading.firstElementChild.addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") !== "descending";
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const value = (row) => Number(row.cells[column].dataset.value);
      const rows = [...body.rows].sort((a, b) => value(a) - value(b));
      body.append(...(descending ? rows.reverse() : rows));
    }));
  };

  // ---- everything ----
  const start = async () => {
    const plotly = element("script");
    plotly.textContent = await unzip(byId("plotly").textContent).text();
    document.head.append(plotly); // the page's policy knows it by its hash
    if (data.histogram) drawing(startReturns);
    if (data.tails) drawing(startTails);
    if (data.order) drawing(startOrder);
    if (data.maps) await startMaps();
    else if (data.line) startLines();
    drawing(startPlane);
  };
  startTable();
  if (matchMedia("(max-width: 820px)").matches) // the answer first: findings by their titles
    document.querySelectorAll(".finding, .more").forEach((finding) => finding.removeAttribute("open"));
  if (window.DecompressionStream) start();
  else byId("view").textContent = "This browser is too old to draw the plots; any of 2023 or later does.";
})();
