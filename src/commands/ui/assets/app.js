// The page: the list of all autoscalers (#/), or one of them (#/NAMESPACE/KIND/NAME).

import { List } from "./list.js";
import { One } from "./one.js";
import { Stream, takeKey } from "./stream.js";
import { element, setText } from "./text.js";

const find = (id) => document.getElementById(id);
const list = new List();
const one = new One();
let stream = null;
let shown = null;

let isOpen = false;
let problems = [];

// What is wrong: with the connection to plimsoll ui, and with its own to the cluster.
function tell(id, texts) {
  const box = find(id);
  const text = texts.join("\n");
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.replaceChildren(...texts.map((problem) => element("p", {}, problem)));
}

function connected(text) {
  isOpen = text === null;
  const isLive = isOpen && problems.length === 0;
  setText(find("connection"), text ?? (isLive ? "Live" : "Not all is live"));
  find("connection").className = isLive ? "live" : "";
}

function tellProblems(texts) {
  problems = texts;
  tell("problems", texts);
  if (isOpen) connected(null);
}

const handlers = {
  open: () => {
    tell("broken", []);
    connected(null);
  },
  closed: (why, isFinal) => {
    connected(isFinal ? "Not connected" : "Not connected, trying again");
    tell("broken", [why]);
  },
};

function openList() {
  stream = new Stream("/api/autoscalers", {
    ...handlers,
    line: (line) => {
      if (line.scope) {
        list.reset();
        setText(find("scope"), line.scope);
      }
      if (line.problems) tellProblems(line.problems);
      list.change(line);
    },
  });
}

function openOne([namespace, kind, name]) {
  const query = new URLSearchParams({ namespace, kind, name });
  one.show({ namespace, kind, name });
  stream = new Stream(`/api/autoscaler?${query}`, {
    ...handlers,
    line: (line) => {
      if (line.scope) setText(find("scope"), line.scope);
      if (line.problems) tellProblems(line.problems);
      one.change(line);
    },
  });
}

// A browser has six connections to a server in all: a page that nobody sees holds none.
function close() {
  stream?.close();
  stream = null;
}

function open() {
  close();
  if (!shown || document.hidden) return;
  connected("Connecting");
  if (shown.length === 3) openOne(shown);
  else openList();
}

function route() {
  let parts = [];
  try {
    parts = location.hash.slice(2).split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    // What is no address is the list.
  }
  const isFirst = shown === null;
  shown = parts.length === 3 ? parts : [];
  find("list").hidden = shown.length === 3;
  find("one").hidden = shown.length !== 3;
  document.title = shown.length === 3 ? `${shown[2]} in ${shown[0]} - Plimsoll` : "Autoscalers - Plimsoll";
  tell("broken", []);
  tellProblems([]);
  open();
  if (!isFirst) find(shown.length === 3 ? "one-title" : "list-title").focus();
}

async function begin() {
  if (await takeKey()) {
    route();
  } else {
    tell("broken", ["Open the address that plimsoll ui printed: it has the key of this page."]);
    connected("Not connected");
  }
}

addEventListener("hashchange", begin);
document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
addEventListener("pagehide", close);
begin();
