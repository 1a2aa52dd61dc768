/* Going through the steps of finished answers, by hand or as a replay. Several answers share one clock. */

import { button, make } from "./dom.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2];

export class Scrubber {
  element = make("div", "scrubber");
  #shown;
  #recordings;
  #moments = [];
  #range = make("input");
  #where = make("span", "where");
  #play;
  #speed = make("select");
  #timer = 0;

  /** show(counts): draws each recording after so many of its frames. */
  constructor(recordings, show) {
    this.#recordings = recordings;
    this.#shown = show;
    this.#moments = moments(recordings);
    this.#play = button("▶ Replay", () => (this.playing ? this.stop() : this.play()));
    Object.assign(this.#range, { type: "range", min: 1, max: this.#moments.length, step: 1 });
    this.#range.value = this.#moments.length;
    this.#range.setAttribute("aria-label", "Step");
    this.#range.addEventListener("input", () => {
      this.stop();
      this.#show();
    });
    this.#speed.setAttribute("aria-label", "Speed of the replay");
    for (const speed of SPEEDS) this.#speed.append(new Option(`${speed}×`, speed, speed === 0.25, speed === 0.25));
    this.element.append(this.#play, this.#speed, this.#range, this.#where);
    this.#tell();
  }

  get playing() {
    return this.#timer !== 0;
  }

  get #position() {
    return Number(this.#range.value);
  }

  /** From the step that is shown, or from the first when that is the last. */
  play() {
    if (this.#position === this.#moments.length) this.#range.value = 1;
    this.#play.textContent = "❚❚ Pause";
    let clock = this.#moments[this.#position - 1].seconds;
    let before = performance.now();
    const tick = (now) => {
      clock += (Math.max(0, now - before) / 1000) * Number(this.#speed.value);
      before = now;
      let position = this.#position;
      while (position < this.#moments.length && this.#moments[position].seconds <= clock) position += 1;
      if (position !== this.#position) {
        this.#range.value = position;
        this.#show();
      }
      if (position === this.#moments.length) this.stop();
      else this.#timer = requestAnimationFrame(tick);
    };
    this.#timer = requestAnimationFrame(tick);
    this.#show();
  }

  stop() {
    cancelAnimationFrame(this.#timer);
    this.#timer = 0;
    this.#play.textContent = "▶ Replay";
  }

  #show() {
    this.#shown(this.#moments[this.#position - 1].counts);
    this.#tell();
  }

  #tell() {
    const { counts, seconds } = this.#moments[this.#position - 1];
    const several = this.#recordings.length > 1;
    const step = `step ${this.#position} of ${this.#moments.length}`;
    const block = several ? "" : `, block ${this.#recordings[0].frames[counts[0] - 1].block}`;
    this.#where.textContent = several ? `${seconds.toFixed(2)} s` : `${this.#position} / ${this.#moments.length}`;
    this.#range.setAttribute("aria-valuetext", `${step}${block}, ${seconds.toFixed(2)} seconds`);
  }
}

/** Every step of every recording in the order of time: {seconds, counts: frames shown of each recording}. */
function moments(recordings) {
  const steps = recordings.flatMap(({ frames }, index) => frames.map((frame) => ({ index, seconds: frame.time })));
  steps.sort((a, b) => a.seconds - b.seconds);
  const counts = recordings.map(() => 0);
  return steps.map(({ index, seconds }) => {
    counts[index] += 1;
    return { seconds, counts: [...counts] };
  });
}
