// Reads a stream of JSON lines, and opens it again when it breaks.

const STORED = "plimsoll-key";
// The server sends a line every 10 s at least.
const SILENCE_MS = 30_000;
const SHORTEST_WAIT_MS = 250;
// After so long, the port may be another user's: it is asked no more.
const GIVE_UP_MS = 600_000;
const LONGEST_WAIT_MS = 10_000;

function authorization(key) {
  return { Authorization: `Bearer ${key ?? ""}` };
}

// The key comes in the fragment of the address, which browsers send to nobody, and leaves the address at once. Any web
// page can lead here with a key that is none: it is tried before it replaces one that is right.
export async function takeKey() {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (key) {
    history.replaceState(null, "", "#/");
    const isRight = await fetch("/api/key", { headers: authorization(key), cache: "no-store" }).then((response) => response.ok, () => false);
    if (isRight || localStorage.getItem(STORED) === null) localStorage.setItem(STORED, key);
  }
  return localStorage.getItem(STORED) !== null;
}

// Asks the server, with the key.
export function ask(path, options) {
  return fetch(path, { ...options, headers: authorization(localStorage.getItem(STORED)), cache: "no-store" });
}

export class Stream {
  #path;
  #on;
  #abort = null;

  // `on.line(value)` for each line, `on.open()` before the first of a connection, `on.closed(why)` when it broke.
  constructor(path, on) {
    this.#path = path;
    this.#on = on;
    this.#run(this.#start());
  }

  #start() {
    this.#abort = new AbortController();
    return this.#abort.signal;
  }

  close() {
    this.#abort.abort();
  }

  async #run(signal) {
    let wait = SHORTEST_WAIT_MS;
    // When the first failure in a row was.
    let failed = null;
    while (!signal.aborted) {
      try {
        await this.#read(signal, () => { wait = SHORTEST_WAIT_MS; failed = null; });
        if (!signal.aborted) this.#on.closed("The connection was closed.");
      } catch (error) {
        if (signal.aborted) return;
        if (error.fatal) {
          this.#on.closed(error.message, true);
          return;
        }
        failed ??= Date.now();
        if (Date.now() - failed > GIVE_UP_MS) {
          this.#on.closed("plimsoll ui does not answer: start it again, and open the address that it prints.", true);
          return;
        }
        this.#on.closed(error.said ?? "plimsoll ui does not answer: was it stopped?");
      }
      await pause(wait, signal);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    }
  }

  // Reads to the end of a connection; `works()` is called once it has more than the first line.
  async #read(signal, works) {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
      const response = await ask(this.#path, { signal: AbortSignal.any([signal, silence.signal]) });
      if (!response.ok) {
        const error = new Error((await response.text()).slice(0, 1000));
        error.said = error.message;
        error.fatal = response.status < 500;
        throw error;
      }
      this.#on.open();
      let rest = "";
      let lines = 0;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        const parts = (rest + value).split("\n");
        rest = parts.pop();
        for (const part of parts) {
          lines += 1;
          if (lines === 2) works();
          this.#on.line(JSON.parse(part));
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
