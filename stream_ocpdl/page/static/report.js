// Fills the places of a report with pictures. Stands behind atoms.js and charts.js in one script: a file has no imports.

const given = JSON.parse(document.getElementById("data").textContent);

function panel(place, title, ...lines) {
  const node = html("section", "panel");
  if (title) node.append(html("strong", "", title));
  for (const line of lines) if (line) node.append(html("div", "faint", line));
  document.getElementById(place).append(node);
  const inside = html("div", "");
  node.append(inside);
  return inside;
}

for (const atom of given.atoms) drawAtom(atom, panel("atoms", atom.name, atom.use, atom.remark));
// All places first: a curve is as wide as its place is when it is drawn.
const places = given.charts.map((figure) => panel("charts", figure.title, figure.note));
given.charts.forEach((figure, i) => chart(figure, places[i]));
for (const view of given.codes) draw(view, panel("codes", ""));
document.documentElement.dataset.drawn = "yes";
