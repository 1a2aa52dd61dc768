/* One answer from its request to its last frame: the stream fills a recording, and the view draws when it has time. */

import { complete, ServerError } from "./api.js";
import { Painter } from "./painter.js";
import { Recording } from "./picture.js";

/**
 * Returns the recording, whole or cut off by `signal`, and `error` where the server failed. `server`: {key, card}.
 * onText: called with the text of every block that freezes; onDrawn: after the view was drawn.
 */
export async function run(view, { server, messages, fields, signal, onText = () => {}, onDrawn = () => {} }) {
  const { redraft, ...plain } = fields;
  const recording = new Recording({
    model: server.card.id,
    version: server.card.redraft?.version ?? "",
    specialIds: server.card.redraft?.special_ids ?? [],
    prompt: messages.at(-1).content,
    params: { ...plain, ...redraft, events: undefined },
  });
  const painter = new Painter(() => {
    view.draw(recording, recording.live);
    onDrawn();
  });
  const onFrame = (frame) => {
    recording.add(frame);
    if (frame.text) onText(frame.text);
    painter.request();
  };
  let error = null;
  try {
    recording.end(await complete({ model: server.card.id, messages, ...fields }, { key: server.key, signal, onFrame }));
  } catch (problem) {
    if (problem.name !== "AbortError" && !(problem instanceof ServerError)) throw problem;
    error = problem;
  }
  painter.request();
  return { recording, error };
}

/** What to tell of how an answer ended, if anything. */
export function remark(recording, error) {
  if (error instanceof ServerError) return error.message;
  if (error) return "Stopped.";
  return recording.finish.reason === "length" ? "Cut at the most tokens that were allowed." : "";
}
