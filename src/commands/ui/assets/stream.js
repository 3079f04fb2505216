// Reads a stream of JSON lines, and opens it again when it breaks.

const STORED = "plimsoll-key";
// The server sends a line every 10 s at least.
const SILENCE_MS = 30_000;
const LONGEST_WAIT_MS = 10_000;

// The key comes in the fragment of the address, which browsers send to nobody, and leaves the address at once.
export function takeKey() {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (key) {
    localStorage.setItem(STORED, key);
    history.replaceState(null, "", "#/");
  }
  return localStorage.getItem(STORED) !== null;
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
    let wait = 250;
    while (!signal.aborted) {
      try {
        const lines = await this.#read(signal);
        if (lines > 1) wait = 250;
        if (!signal.aborted) this.#on.closed("The connection was closed.");
      } catch (error) {
        if (signal.aborted) return;
        if (error.fatal) {
          this.#on.closed(error.message, true);
          return;
        }
        this.#on.closed("plimsoll ui does not answer: was it stopped?");
      }
      await pause(wait, signal);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    }
  }

  async #read(signal) {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
      const response = await fetch(this.#path, {
        headers: { Authorization: `Bearer ${localStorage.getItem(STORED) ?? ""}` },
        cache: "no-store",
        signal: AbortSignal.any([signal, silence.signal]),
      });
      if (!response.ok) {
        const error = new Error((await response.text()).slice(0, 1000));
        error.fatal = response.status < 500;
        throw error;
      }
      this.#on.open();
      let rest = "";
      let lines = 0;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return lines;
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        const parts = (rest + value).split("\n");
        rest = parts.pop();
        for (const part of parts) {
          lines += 1;
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
