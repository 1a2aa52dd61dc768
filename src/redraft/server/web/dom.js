/* Small helpers for elements. Text of a model only ever becomes a text node. */

export const $ = (id) => document.getElementById(id);

/** A new element with a class and text. */
export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

export function button(text, onClick, className = "quiet") {
  const element = make("button", className, text);
  element.type = "button";
  element.addEventListener("click", onClick);
  return element;
}

/** Makes `parent` have `count` children, built by `build` where there are too few. */
export function resize(parent, count, build) {
  while (parent.childElementCount > count) parent.lastElementChild.remove();
  while (parent.childElementCount < count) parent.append(build());
}

/** Writes a property only when it changes, since the browser can't know that nothing did. */
export function put(element, name, value) {
  if (element[name] !== value) element[name] = value;
}

/** For screen readers: adds to what is read out, or begins anew. */
export function speak(text, { afresh = false } = {}) {
  if (afresh) $("spoken").replaceChildren();
  if (text) $("spoken").append(make("span", "", text));
}
