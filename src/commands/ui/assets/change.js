// "Try a change": the spec as it is edited beside the present one, on the load that Prometheus recorded.

import { ask } from "./stream.js";
import { element, setText } from "./text.js";

const find = (id) => document.getElementById(id);

export class Change {
  #named = null;
  // What is asked for now.
  #abort = null;
  // The address of the report that is shown.
  #shown = null;

  constructor() {
    find("change").addEventListener("toggle", () => { if (find("change").open && find("change-text").value === "") this.#read(); });
    find("change-form").addEventListener("submit", (event) => { event.preventDefault(); this.#try(); });
    find("change-present").addEventListener("click", () => this.#read());
    find("change-cancel").addEventListener("click", () => this.#abort?.abort());
  }

  // Begins with another autoscaler: nothing of the one before stays.
  show(named) {
    this.#named = named;
    this.#abort?.abort();
    this.#abort = null;
    this.#busy(false);
    find("change").open = false;
    find("change-text").value = "";
    find("change-carries").value = "";
    this.#tell("", "");
    this.#clear();
  }

  // Whether plimsoll ui has a Prometheus to try a change on.
  can(canTry) {
    find("change").hidden = !canTry;
    find("change-off").hidden = canTry;
  }

  #tell(state, error) {
    setText(find("change-state"), state);
    find("change-error").replaceChildren(...(error ? [element("p", {}, error)] : []));
  }

  // Shows a report in a frame that has an origin of its own: it reaches neither this page nor the key.
  #report(blob) {
    this.#clear();
    this.#shown = URL.createObjectURL(blob);
    const { namespace, name } = this.#named;
    const save = element("a", { href: this.#shown, download: `backtest-${namespace}-${name}.html` }, "Save the report");
    const frame = element("iframe", { src: this.#shown, sandbox: "allow-scripts", title: "Report on the change" });
    find("change-report").replaceChildren(element("p", {}, save), frame);
  }

  #clear() {
    find("change-report").replaceChildren();
    if (this.#shown !== null) URL.revokeObjectURL(this.#shown);
    this.#shown = null;
  }

  // The text of the spec as it is in the cluster.
  async #read() {
    await this.#ask("Reading…", {}, {}, async (response) => {
      find("change-text").value = await response.text();
      return "";
    });
  }

  async #try() {
    const began = performance.now();
    const hours = find("change-span").value;
    const carries = find("change-carries").value.trim();
    const body = find("change-text").value;
    await this.#ask("Trying it. This can take a while.", { hours, carries }, { method: "POST", body }, async (response) => {
      this.#report(new Blob([await response.arrayBuffer()], { type: "text/html" }));
      return `Tried in ${((performance.now() - began) / 1000).toFixed(1)} s. The report is below.`;
    });
  }

  // Asks the server for something, and says how it went. It ends when something else is asked for.
  async #ask(state, query, options, done) {
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    this.#busy(true);
    this.#tell(state, "");
    try {
      const path = `/api/change?${new URLSearchParams({ ...this.#named, ...query })}`;
      const response = await ask(path, { ...options, signal: abort.signal });
      if (!response.ok) throw Object.assign(new Error(), { said: (await response.text()).slice(0, 10_000) });
      const text = await done(response);
      if (this.#abort === abort) this.#tell(text, "");
    } catch (error) {
      if (this.#abort !== abort) return;
      if (abort.signal.aborted) this.#tell("Cancelled.", "");
      else this.#tell("", error.said ?? "plimsoll ui does not answer: was it stopped?");
    } finally {
      if (this.#abort === abort) {
        this.#abort = null;
        this.#busy(false);
      }
    }
  }

  #busy(isBusy) {
    find("change-cancel").hidden = !isBusy;
    find("change-progress").hidden = !isBusy;
  }
}
