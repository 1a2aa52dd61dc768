/* The settings as a form, and as the fields of a request. What was not chosen is not sent: the server's defaults hold. */

import { $, make } from "./dom.js";
import { recall, recallKey, remember, rememberKey } from "./store.js";

/** Thresholds of the modes (redraft.decoding.modes), to show them. */
export const MODES = {
  speed: { label: "Speed", threshold: 0.5, edit: 0 },
  quality: { label: "Quality", threshold: 0.7, edit: 0.5 },
  "draft-only": { label: "Draft only", threshold: 0.95, edit: "off" },
};
/** What a mode is called; one of an earlier chat may be gone. */
export const labelOf = (mode) => MODES[mode]?.label ?? mode;

const NUMBERS = { "max-tokens": "max_tokens", temperature: "temperature", seed: "seed" };
const REMEMBERED = ["system", ...Object.keys(NUMBERS), "mbe"];

export class Settings {
  #own = recall("thresholds", {}); // those that aren't the mode's

  constructor() {
    for (const [name, value] of Object.entries(recall("settings", {}))) $(name).value = value;
    const mode = recall("mode", "quality");
    for (const radio of this.#modes()) {
      if (radio.value === mode) radio.checked = true; // another than the page's may still be offered
      radio.addEventListener("change", () => this.#chooseMode());
    }
    $("key").value = recallKey();
    $("key").addEventListener("input", () => rememberKey(this.key));
    $("threshold").addEventListener("input", () => this.#choose("threshold", Number($("threshold").value)));
    $("edit").addEventListener("input", () => this.#choose("edit", Number($("edit").value)));
    $("edit-off").addEventListener("change", () => this.#choose("edit", $("edit-off").checked ? "off" : 0.5));
    $("reset").addEventListener("click", () => this.#chooseMode());
    $("settings").addEventListener("submit", (event) => event.preventDefault());
    $("settings").addEventListener("change", () => this.#remember());
    this.#show();
  }

  /** Modes that the server has besides the three: their settings by name. */
  offer(modes) {
    for (const [name, { threshold, edit_threshold: edit }] of Object.entries(modes)) {
      if (name in MODES) continue;
      MODES[name] = { label: name, threshold: threshold ?? MODES.quality.threshold, edit: edit ?? MODES.quality.edit };
      const radio = make("input");
      Object.assign(radio, { type: "radio", name: "mode", value: name });
      radio.addEventListener("change", () => this.#chooseMode());
      const label = make("label");
      label.append(radio, make("span", "", name));
      $("modes").append(label);
      if (recall("mode", "") === name) radio.checked = true;
    }
    this.#show();
  }

  get mode() {
    return this.#modes().find((radio) => radio.checked).value;
  }

  get key() {
    return $("key").value.trim();
  }

  /** The system prompt as a list of messages: of one, or none. */
  get system() {
    const content = $("system").value.trim();
    return content ? [{ role: "system", content }] : [];
  }

  /** Whether all numbers are right; the first that isn't is shown with its reason. */
  check() {
    if ($("settings").checkValidity()) return true;
    this.#open();
    $("settings").reportValidity();
    return false;
  }

  /** Fields of a request; a `mode` other than the chosen one comes with its own thresholds. */
  fields(mode = this.mode) {
    const fields = { redraft: { events: true, mode } };
    for (const [id, name] of Object.entries(NUMBERS)) {
      if (this.#number(id) !== null) fields[name] = this.#number(id);
    }
    if (this.#number("mbe")) fields.redraft.mbe_blocks = this.#number("mbe");
    if (mode === this.mode) {
      if ("threshold" in this.#own) fields.redraft.threshold = this.#own.threshold;
      if ("edit" in this.#own) fields.redraft.edit_threshold = this.#own.edit;
    }
    return fields;
  }

  /** The server wants a key, or another one. */
  wantKey() {
    $("key-row").hidden = false;
    this.#open();
    $("key").focus();
  }

  /** On narrow screens the settings are out of sight. */
  #open() {
    const narrow = getComputedStyle($("menu")).display !== "none";
    if (narrow && !$("side").matches(":popover-open")) $("side").showPopover();
  }

  #modes() {
    return [...document.querySelectorAll("input[name=mode]")];
  }

  #number(id) {
    return $(id).value === "" ? null : Number($(id).value);
  }

  #chooseMode() {
    this.#own = {};
    remember("mode", this.mode);
    this.#show();
  }

  #choose(name, value) {
    this.#own[name] = value;
    if (value === MODES[this.mode][name]) delete this.#own[name];
    this.#show();
  }

  #remember() {
    remember("settings", Object.fromEntries(REMEMBERED.map((id) => [id, $(id).value])));
  }

  #show() {
    remember("thresholds", this.#own);
    const { threshold, edit } = { ...MODES[this.mode], ...this.#own };
    const off = edit === "off";
    $("threshold").value = threshold;
    $("threshold-value").value = threshold.toFixed(2);
    $("edit").disabled = off;
    $("edit").value = off ? 1 : edit;
    $("edit-off").checked = off;
    $("edit-value").value = off ? "never" : edit.toFixed(2);
    $("reset").hidden = Object.keys(this.#own).length === 0;
  }
}
