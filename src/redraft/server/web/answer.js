/* An answer on the page: its text, the open blocks token by token, a strip of all tokens, and its figures. */

import { make, put, resize } from "./dom.js";

const END = "∎";
const FIGURES = {
  tpf: ["TPF", "tokens per forward pass"],
  tps: ["TPS", "tokens per second"],
  edits: ["edits", "tokens that were overwritten"],
  forwards: ["forwards", "forward passes of the network"],
  tokens: ["tokens", "tokens generated"],
};

export class AnswerView {
  element = make("article", "answer");
  tools = make("div", "tools");
  #text = make("span", "frozen");
  #cells = make("span", "cells");
  #strip = make("div", "strip");
  #figures = make("dl", "figures");
  #note = make("p", "note");
  #shown = "";

  /** label: what stands before the figures. */
  constructor(label) {
    const canvas = make("div", "canvas");
    canvas.append(this.#text, this.#cells);
    for (const part of [this.#cells, this.#strip]) part.setAttribute("aria-hidden", "true");
    this.#note.setAttribute("role", "alert");
    this.#note.hidden = true;
    const meter = make("div", "meter");
    this.label = make("span", "label", label);
    meter.append(this.label, this.#figures);
    this.element.append(canvas, this.#note, this.#strip, meter, this.tools);
  }

  /** Draws the state of a recording; `still`: it is looked at and not running, so that edits stay to be read. */
  draw(recording, picture, still = false) {
    this.element.classList.toggle("still", still);
    this.#drawText(picture.text, still);
    this.#drawCells(recording, picture, still);
    this.#drawStrip(picture);
    this.#drawFigures(recording.figures(picture));
  }

  /** An answer whose steps are gone. */
  drawPlain(text, figures) {
    this.#text.textContent = text;
    this.#drawFigures(figures);
  }

  note(text) {
    this.#note.textContent = text;
    this.#note.hidden = !text;
  }

  #drawText(text, still) {
    if (text === this.#shown) return;
    if (still || !text.startsWith(this.#shown)) this.#text.replaceChildren(text);
    else this.#text.append(make("span", "fresh", text.slice(this.#shown.length)));
    this.#shown = text;
  }

  #drawCells(recording, picture, still) {
    const wanted = [];
    for (const { frame } of picture.ordered) {
      if (frame.frozen) continue;
      const prompt = new Set(frame.prompt);
      const masked = new Set(frame.masked);
      frame.ids.forEach((_, i) => prompt.has(i) || wanted.push(cell(recording, picture, frame, i, masked.has(i))));
    }
    resize(this.#cells, wanted.length, () => make("span"));
    wanted.forEach((cell, i) => drawCell(this.#cells.children[i], cell, still));
  }

  #drawStrip(picture) {
    const blocks = picture.ordered;
    resize(this.#strip, blocks.length, () => make("span", "block"));
    blocks.forEach(({ frame, edited }, index) => {
      const group = this.#strip.children[index];
      if (group.frame === frame) return;
      group.frame = frame;
      put(group, "className", frame.frozen ? "block" : "block open");
      const prompt = new Set(frame.prompt);
      const masked = new Set(frame.masked);
      resize(group, frame.ids.length - prompt.size, () => make("i"));
      let child = 0;
      frame.ids.forEach((_, i) => {
        if (prompt.has(i)) return;
        const mark = group.children[child++];
        put(mark, "className", masked.has(i) ? "masked" : edited.has(i) ? "edited" : "");
        shade(mark, frame.confidence[i]);
      });
    });
  }

  #drawFigures(figures) {
    if (!this.#figures.childElementCount) {
      for (const [name, [short, long]] of Object.entries(FIGURES)) {
        const pair = make("div", name);
        const term = make("dt", "", short);
        term.title = long;
        pair.append(make("dd"), term);
        this.#figures.append(pair);
      }
    }
    Object.keys(FIGURES).forEach((name, i) => {
      const value = figures[name];
      const text = name === "tpf" ? value.toFixed(2) : String(Math.round(value));
      put(this.#figures.children[i].firstElementChild, "textContent", text);
    });
  }
}

/** What one token of an open block looks like. */
function cell(recording, picture, frame, i, masked) {
  const key = `${frame.block}:${i}`;
  if (masked) return { key, frame, kind: "masked", text: "", confidence: 0 };
  const fresh = frame === picture.latest;
  const old = fresh ? frame.edited[i]?.[0] : undefined;
  return {
    key,
    frame,
    kind: old !== undefined ? "edited" : fresh && frame.drafted.includes(i) ? "drafted" : "settled",
    text: shown(recording, frame.texts[i]),
    confidence: frame.confidence[i],
    old: old === undefined ? undefined : shown(recording, old).trim() || "␣",
  };
}

/** A control token has a sign of its own; so has a line break, or nothing of a draft of it could be seen. */
function shown(recording, text) {
  return recording.specialTexts.has(text) ? END : text.replaceAll("\n", "↵\n");
}

function drawCell(element, cell, still) {
  const { key, frame, kind, text, confidence, old } = cell;
  const before = element.cell?.key === key ? element.cell : null;
  element.cell = cell;
  if (before?.frame === frame && before.kind === kind) return;
  // In a running answer an edit flashes until its animation ends, also when the next step has come by then.
  const flashing = !still && before?.text === text && element.classList.contains("edited");
  if (flashing && kind === "settled") return;
  put(element, "className", `cell ${kind}${text === END ? " end" : ""}`);
  if (before?.text !== text || element.firstElementChild || old !== undefined) {
    element.replaceChildren(...(old === undefined ? [] : [make("s", "", old)]), text);
  }
  shade(element, confidence);
}

/** Confidence as a number that the style sheet mixes colours by. Most of what can be told apart lies near 1. */
function shade(element, confidence) {
  const value = (confidence ** 2).toFixed(2);
  if (element.shade !== value) element.style.setProperty("--sure", (element.shade = value));
}
