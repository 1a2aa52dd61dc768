/* The conversation: turns on the page, the chats of before, and what is sent along with a message. */

import { AnswerView } from "./answer.js";
import { $, button, make, speak } from "./dom.js";
import { remark, run } from "./run.js";
import { Scrubber } from "./scrubber.js";
import { labelOf } from "./settings.js";
import { recall, remember } from "./store.js";
import { download } from "./trace.js";

const KEPT = 50; // chats
const TITLE = 60; // characters
const NEAR = 80; // pixels from the end of the page that count as being there

const EXAMPLES = [
  "There are 23 lemons in the box of Uma. Then Uma throws 12 away. How many lemons does Uma have at the end?",
  "Write a Python function run(items) that removes repeated words and returns the list. Add a docstring.",
  'Take {"title": "dance", "open": false, "cost": 16, "names": ["Sam", "Carl"]} and lower cost by 1. Write indented JSON.',
];

let following = true; // whether the end of the page is in sight

export class Chat {
  #server;
  #settings;
  #changed;
  #chats = recall("chats", []); // the newest first: {id, turns: [{asked, answered, mode, figures}]}
  #chat = fresh();
  #abort = null;

  /** changed: called when an answer begins or ends. */
  constructor(server, settings, changed) {
    this.#server = server;
    this.#settings = settings;
    this.#changed = changed;
    $("new").addEventListener("click", () => this.open(fresh()));
    $("chat").addEventListener("scroll", ({ target }) => {
      following = target.scrollHeight - target.scrollTop - target.clientHeight < NEAR;
    });
    for (const text of EXAMPLES) $("examples").append(button(text, () => this.send(text), "example"));
    this.#list();
  }

  get running() {
    return this.#abort !== null;
  }

  stop() {
    this.#abort?.abort();
  }

  /** Shows a chat, and writes to it from now on. */
  open(chat) {
    this.stop();
    this.#chat = chat;
    $("turns").replaceChildren();
    for (const turn of chat.turns) {
      const view = this.#addTurn(turn);
      view.drawPlain(turn.answered, turn.figures);
      view.tools.append(copyButton(() => turn.answered));
    }
    this.#list();
    if ($("side").matches(":popover-open")) $("side").hidePopover();
    $("message").focus();
  }

  async send(text) {
    if (this.running) return;
    const turn = { asked: text, answered: "", mode: this.#settings.mode, figures: null };
    const chat = this.#chat;
    const view = this.#addTurn(turn);
    const abort = (this.#abort = new AbortController());
    this.#changed();
    speak("", { afresh: true });
    following = true;
    follow();
    const { recording, error } = await run(view, {
      server: this.#server,
      messages: [...this.#settings.system, ...spoken(chat), { role: "user", content: text }],
      fields: this.#settings.fields(),
      signal: abort.signal,
      onText: (delta) => chat === this.#chat && speak(delta),
      onDrawn: follow,
    });
    this.#abort = null;
    turn.answered = recording.live.text;
    turn.figures = recording.figures(recording.live);
    view.note(remark(recording, error));
    if (error?.status === 401) this.#settings.wantKey();
    if (recording.frames.length) view.tools.append(...tools(recording, view));
    if (turn.answered && !chat.forgotten) this.#keep(chat, turn);
    this.#changed();
    follow();
  }

  #addTurn(turn) {
    const view = new AnswerView(labelOf(turn.mode));
    $("turns").append(make("p", "asked", turn.asked), view.element);
    $("empty").hidden = true;
    return view;
  }

  #keep(chat, turn) {
    chat.turns.push(turn);
    this.#chats = [chat, ...this.#chats.filter(({ id }) => id !== chat.id)].slice(0, KEPT);
    remember("chats", this.#chats);
    this.#list();
  }

  #forget(chat) {
    chat.forgotten = true;
    this.#chats = this.#chats.filter(({ id }) => id !== chat.id);
    remember("chats", this.#chats);
    if (chat.id === this.#chat.id) this.open(fresh());
    else this.#list();
  }

  #list() {
    $("empty").hidden = $("turns").childElementCount > 0;
    $("chats").replaceChildren(
      ...this.#chats.map((chat) => {
        const title = chat.turns[0].asked.slice(0, TITLE);
        const item = make("li");
        const opener = button(title, () => this.open(chat));
        if (chat.id === this.#chat.id) opener.setAttribute("aria-current", "true");
        const remover = button("×", () => this.#forget(chat));
        remover.setAttribute("aria-label", `Delete the chat: ${title}`);
        item.append(opener, remover);
        return item;
      }),
    );
  }
}

/** What can be done with a finished answer: going through its steps, its text, its trace. */
export function tools(recording, view) {
  const scrubber = new Scrubber([recording], ([count]) => view.draw(recording, recording.at(count), true));
  return [
    scrubber.element,
    copyButton(() => recording.live.text),
    button("Trace", () => download(recording, "trace.jsonl")),
  ];
}

function copyButton(text) {
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(text());
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  copy.hidden = !navigator.clipboard; // there is none on a page without https, except on this machine
  return copy;
}

function fresh() {
  return { id: Date.now() + Math.random(), turns: [] };
}

/** A chat as the messages of a request. */
function spoken({ turns }) {
  return turns.flatMap(({ asked, answered }) => [
    { role: "user", content: asked },
    { role: "assistant", content: answered },
  ]);
}

/** Keeps the end in sight for who is there. */
function follow() {
  if (following) $("chat").scrollTop = $("chat").scrollHeight;
}
