// Elements and texts. All that the cluster says is untrusted: it gets into the page as text alone.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null));
  return made;
}

// Sets a text where it differs: assistive technology hears each change.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const UNITS = { n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60 };

// The number of a Kubernetes quantity ("9800m", "1Gi") or a percentage; null if it is none.
export function number(quantity) {
  const match = /^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]{0,2})%?$/.exec(quantity ?? "");
  if (!match) return null;
  const value = Number(match[1]) * (match[2] ? UNITS[match[2]] : 1);
  return Number.isFinite(value) ? value : null;
}

const written = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });

// A quantity as people read it: "9800m" is 9.8.
export function plain(quantity, unit = "") {
  const value = number(quantity);
  return (value === null ? (quantity ?? "unknown") : written.format(value)) + unit;
}

// The metric of a generated name (METRIC_HASH_NAMESPACE_AUTOSCALER), or the name as it is.
export function metricName(name) {
  return /^(.+?)_[0-9a-f]{12}_/.exec(name)?.[1] ?? name;
}

export function age(seconds) {
  const passed = Math.max(0, Math.round(Date.now() / 1000 - seconds));
  if (passed < 120) return `${passed} s ago`;
  if (passed < 7_200) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 172_800) return `${Math.floor(passed / 3_600)} h ago`;
  return `${Math.floor(passed / 86_400)} d ago`;
}

// Of the reader, unless the page has one.
const { timeZone } = document.documentElement.dataset;
const clock = new Intl.DateTimeFormat(undefined, { timeZone, hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dated = new Intl.DateTimeFormat(undefined, { timeZone, day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

// The time of day, with the date if it is not of the last twelve hours.
export function moment(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  return (Math.abs(Date.now() - date) < 43_200_000 ? clock : dated).format(date);
}

// Fills a table with a header and rows of texts or nodes.
export function fill(table, columns, rows, none) {
  const head = element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name))));
  const cells = (row) => row.map((cell) => element("td", {}, cell ?? ""));
  const body = element("tbody");
  for (const row of rows) body.append(element("tr", {}, ...cells(row)));
  if (rows.length === 0) body.append(element("tr", {}, element("td", { colspan: columns.length, class: "none" }, none)));
  table.replaceChildren(head, body);
}
