// Hands curves (charts.py) to Plotly, in the colours of style.css; window.Plotly has to be there.

const shown = new Map();

function property(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A name as Plotly has to be given it: links, bold type and the like are markup to it. */
function named(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function layout(figure) {
  const axis = (title, log, dates = false) => ({
    title: { text: title, standoff: 6 },
    type: log ? "log" : dates ? "date" : "linear",
    gridcolor: property("--edge"),
    linecolor: property("--edge"),
    zeroline: false,
    automargin: true,
    exponentformat: "power",
    nticks: 6,
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: property("--text"), size: 12, family: "system-ui, sans-serif" },
    margin: { l: 56, r: 12, t: 8, b: 44 },
    height: 300,
    showlegend: figure.curves.length > 1,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: property("--raised"), font: { color: property("--text") } },
    xaxis: axis(figure.x, figure.log.includes("x"), figure.dates),
    yaxis: { ...axis(figure.y, figure.log.includes("y")), rangemode: figure.dates ? "tozero" : "normal" },
  };
}

/** Draw curves into an element, in place of what is there; again when light becomes dark. */
export function chart(figure, element) {
  const traces = figure.curves.map((curve) => ({
    type: "scatter",
    mode: curve.x.length < 30 ? "lines+markers" : "lines",
    name: named(curve.name),
    x: curve.x,
    y: curve.y,
    line: { color: property(`--line-${curve.colour % 8}`), width: 1.8, dash: curve.dashed ? "dot" : "solid" },
    marker: { size: 4 },
    hovertemplate: "%{y:.4g}",
  }));
  shown.set(element, figure);
  return window.Plotly.react(element, traces, layout(figure), { responsive: true, displaylogo: false, displayModeBar: false });
}

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [element, figure] of shown) if (element.isConnected) chart(figure, element);
});
