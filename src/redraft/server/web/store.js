/* What the browser remembers. A browser that keeps nothing (private windows) is no error: chats then end with the tab. */

export function recall(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`redraft.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`redraft.${name}`, JSON.stringify(value));
  } catch {
    // full or forbidden
  }
}

/** The API key is kept no longer than the tab. */
export function recallKey() {
  try {
    return sessionStorage.getItem("redraft.key") ?? "";
  } catch {
    return "";
  }
}

export function rememberKey(key) {
  try {
    sessionStorage.setItem("redraft.key", key);
  } catch {
    // forbidden
  }
}
