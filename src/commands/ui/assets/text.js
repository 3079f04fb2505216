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

// Makes these the children of a node, and touches only what differs: the focus, a selection and the place of a screen
// reader stay where they are.
export function become(node, ...children) {
  const wanted = children.filter((child) => child !== undefined && child !== null && child !== "");
  const made = wanted.map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  const before = [...node.childNodes];
  made.forEach((child, at) => {
    const old = before[at];
    if (!old) node.append(child);
    else if (old.isEqualNode(child)) return;
    else if (old.nodeName !== child.nodeName) old.replaceWith(child);
    else if (old.nodeType === Node.TEXT_NODE) old.data = child.data;
    else {
      for (const { name } of [...old.attributes]) if (!child.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of child.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      become(old, ...child.childNodes);
    }
  });
  for (const old of before.slice(made.length)) old.remove();
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

const written = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });

// A quantity as people read it: "9800m" is 9.8, and "500Mi" stays as kubectl shows it.
export function plain(quantity, unit = "") {
  const value = number(quantity);
  const isShort = value === null || /[kKMGTPE]i?$/.test(quantity);
  return (isShort ? (quantity ?? "unknown") : written.format(value)) + unit;
}

export function age(seconds) {
  const passed = Math.max(0, Math.round(Date.now() / 1000 - seconds));
  if (passed < 120) return `${passed} s ago`;
  if (passed < 7_200) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 172_800) return `${Math.floor(passed / 3_600)} h ago`;
  return `${Math.floor(passed / 86_400)} d ago`;
}

// Not `hour12: false`, which makes midnight 24:00 in some languages.
const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const clock = new Intl.DateTimeFormat(undefined, TIME);
const dated = new Intl.DateTimeFormat(undefined, { ...TIME, day: "numeric", month: "short" });
const zoned = new Intl.DateTimeFormat(undefined, { ...TIME, timeZoneName: "short" });

// The time of day, with the date if it is not of the last twelve hours.
export function moment(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  return (Math.abs(Date.now() - date) < 43_200_000 ? clock : dated).format(date);
}

// The name of the reader's time zone at that time.
export function zone(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  return zoned.formatToParts(date).find((part) => part.type === "timeZoneName")?.value ?? "";
}

// The time of day in UTC, as the commands show it.
export function utc(time) {
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? "" : `${date.toISOString().slice(11, 19)} UTC`;
}

// Fills a table with a header and rows of texts or nodes. A row of `keys` keeps its node wherever it is.
export function fill(table, columns, rows, none, keys = rows.map((row, at) => String(at))) {
  const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)));
  if (!table.tHead) table.append(element("thead"), element("tbody"));
  become(table.tHead, head);
  const body = table.tBodies[0];
  const wanted = new Set(rows.length ? keys : ["none"]);
  for (const row of [...body.rows]) if (!wanted.has(row.dataset.key)) row.remove();
  if (rows.length === 0) {
    become(body, element("tr", { "data-key": "none" }, element("td", { colspan: columns.length, class: "none" }, none)));
    return;
  }
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  let place = body.firstChild;
  rows.forEach((cells, at) => {
    const row = known.get(keys[at]) ?? element("tr", { "data-key": keys[at] });
    become(row, ...cells.map((cell) => element("td", {}, cell === "" ? null : cell)));
    if (row === place) place = place.nextSibling;
    else body.insertBefore(row, place);
  });
}
