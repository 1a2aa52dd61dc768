/* One question in speed and in quality mode at the same time, side by side. */

import { AnswerView } from "./answer.js";
import { $, button, make, speak } from "./dom.js";
import { remark, run } from "./run.js";
import { Scrubber } from "./scrubber.js";
import { labelOf } from "./settings.js";
import { download } from "./trace.js";

const RACERS = ["speed", "quality"];

export class Race {
  #server;
  #settings;
  #changed;
  #abort = null;

  /** changed: called when a race begins or ends. */
  constructor(server, settings, changed) {
    this.#server = server;
    this.#settings = settings;
    this.#changed = changed;
    this.#lanes();
  }

  get running() {
    return this.#abort !== null;
  }

  stop() {
    this.#abort?.abort();
  }

  async send(text) {
    if (this.running) return;
    const views = this.#lanes();
    const requests = RACERS.map((mode) => this.#settings.fields(mode));
    const abort = (this.#abort = new AbortController());
    $("question").textContent = text;
    $("question").hidden = false;
    $("rules").hidden = true;
    $("race-tools").replaceChildren();
    this.#changed();
    speak("", { afresh: true });
    let arrived = 0;
    const results = await Promise.all(
      views.map(async (view, i) => {
        const result = await run(view, {
          server: this.#server,
          messages: [...this.#settings.system, { role: "user", content: text }],
          fields: requests[i],
          signal: abort.signal,
        });
        const { recording, error } = result;
        view.note(remark(recording, error));
        if (recording.whole && ++arrived === 1) view.label.append(make("span", "first", "first"));
        if (recording.whole) speak(inWords(labelOf(RACERS[i]), recording));
        return result;
      }),
    );
    this.#abort = null;
    if (results.some(({ error }) => error?.status === 401)) this.#settings.wantKey();
    this.#finish(views, results.map(({ recording }) => recording));
    this.#changed();
  }

  /** Empty lanes. */
  #lanes() {
    const views = RACERS.map((mode) => new AnswerView(labelOf(mode)));
    $("lanes").replaceChildren(...views.map((view) => view.element));
    return views;
  }

  #finish(views, recordings) {
    recordings.forEach((recording, i) => {
      if (recording.frames.length) {
        views[i].tools.append(button("Trace", () => download(recording, `trace-${RACERS[i]}.jsonl`)));
      }
    });
    if (!recordings.every(({ frames }) => frames.length)) return;
    const show = (counts) => views.forEach((view, i) => view.draw(recordings[i], recordings[i].at(counts[i]), true));
    $("race-tools").replaceChildren(new Scrubber(recordings, show).element);
  }
}

function inWords(label, recording) {
  const { tpf, tps, edits } = recording.figures(recording.live);
  return `${label} has finished: ${tpf.toFixed(2)} tokens per forward, ${Math.round(tps)} per second, ${edits} edits. `;
}
