/* The page: who answers, which view is shown, theme and keys. */

import { modelCard, trouble } from "./api.js";
import { Chat } from "./chat.js";
import { $ } from "./dom.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";
import { recall, remember } from "./store.js";

const THEMES = { system: "◐", light: "☀", dark: "☾" };

const settings = new Settings();
const server = {
  card: { id: "" },
  get key() {
    return settings.key;
  },
};
const views = { chat: new Chat(server, settings, showState), race: new Race(server, settings, showState) };
let view = "chat";

/** Asks who is there, and says so when the model is loaded. */
async function meet() {
  try {
    server.card = await modelCard(server.key);
    settings.offer(server.card.redraft?.modes ?? {});
    for (let why = await trouble(); why; why = await trouble()) {
      $("model").textContent = `${server.card.id}: ${why}`;
      await new Promise((done) => setTimeout(done, 2000));
    }
    $("model").textContent = server.card.id;
  } catch (error) {
    $("model").textContent = error.message;
    if (error.status === 401) settings.wantKey();
  }
}

async function send() {
  const text = $("message").value.trim();
  if (!text || !settings.check()) return;
  if (!server.card.id) meet();
  const sent = views[view].send(text);
  $("message").value = "";
  await sent;
}

function showState() {
  const { running } = views[view];
  $("go").textContent = running ? "Stop" : "Send";
  $("go").classList.toggle("running", running);
}

function showView(name) {
  view = name;
  for (const each of Object.keys(views)) {
    const chosen = each === name;
    $(each).hidden = !chosen;
    $(`tab-${each}`).setAttribute("aria-selected", chosen);
    $(`tab-${each}`).tabIndex = chosen ? 0 : -1;
  }
  $("modes").hidden = name === "race";
  $("message").placeholder = name === "race" ? "A question for both" : "Message";
  showState();
}

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = THEMES[theme];
  $("theme").setAttribute("aria-label", `Theme: ${theme === "system" ? "as the system" : theme}`);
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const theme = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  remember("theme", theme);
  showTheme(theme);
}

function keys(event) {
  const writing = event.target.matches("input:not([type=range], [type=radio], [type=checkbox]), textarea");
  if (event.key === "Escape" && views[view].running && !$("side").matches(":popover-open")) {
    views[view].stop();
    event.preventDefault();
  } else if (event.key === "/" && !writing) {
    $("message").focus();
    event.preventDefault();
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (views[view].running) views[view].stop();
  else send();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!views[view].running) send();
});
for (const name of Object.keys(views)) $(`tab-${name}`).addEventListener("click", () => showView(name));
$("views").addEventListener("keydown", (event) => {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  showView(view === "chat" ? "race" : "chat");
  $(`tab-${view}`).focus();
});
$("theme").addEventListener("click", nextTheme);
$("key").addEventListener("change", meet);
document.addEventListener("keydown", keys);

showTheme(recall("theme", "system"));
showView("chat");
meet();
