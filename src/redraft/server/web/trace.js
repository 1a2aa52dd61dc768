/* Recordings as files that `redraft replay` shows. */

const FORMAT = 1;

/** The lines of a trace file: a header, then one frame a step. */
export function traceText(recording) {
  const { model, version, specialIds, prompt, params } = recording.request;
  const header = { redraft_trace: FORMAT, version, model, prompt, raw: false, special_ids: specialIds, params };
  const last = recording.frames.length - 1;
  const lines = recording.frames.map((frame, i) => line(frame, i === last ? recording.finish : null));
  return [header, ...lines].map((record) => JSON.stringify(record) + "\n").join("");
}

/** Hands the file to the browser. */
export function download(recording, name) {
  const address = URL.createObjectURL(new Blob([traceText(recording)], { type: "application/jsonl" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function line(frame, finish) {
  const record = {
    step: frame.step,
    block: frame.block,
    seconds: frame.time,
    tokens: frame.ids,
    texts: frame.texts,
    confidence: frame.confidence,
    masked: frame.masked,
    drafted: frame.drafted,
    prompt: frame.prompt,
    edited: Object.fromEntries(Object.entries(frame.edited).map(([position, [old]]) => [position, old])),
    deleted: frame.deleted.length,
    inserted: frame.inserted.length,
    frozen: frame.frozen,
    text_delta: frame.text,
  };
  if (!finish) return record;
  const { reason, tokens, forwards, edits, promptTokens, seconds } = finish;
  return { ...record, finish: { reason, tokens, forwards, edits, prompt_tokens: promptTokens, seconds } };
}
