/* When to draw. Frames arrive as fast as the model is; the screen gets the newest state when it has time. */

/**
 * Calls `draw` at most once a display frame, and after it leaves the page alone for as long as drawing took. So a slow
 * device drops frames, and reading the stream always has at least half of the time.
 */
export class Painter {
  #draw;
  #waiting = false;
  #rest = 0;

  constructor(draw) {
    this.#draw = draw;
  }

  /** Something has changed. */
  request() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => this.#tick());
  }

  #tick() {
    const began = performance.now();
    if (began < this.#rest) {
      requestAnimationFrame(() => this.#tick());
      return;
    }
    this.#waiting = false;
    this.#draw();
    const ended = performance.now();
    this.#rest = ended + (ended - began);
  }
}
