/* The server's API: what is asked, and the stream that comes back. Nothing here draws. */

const BASE = new URL("v1/", document.baseURI);

/** The server refused (`status`), is not there (`status` 0), or broke off. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** What the server says of its model. */
export async function modelCard(key) {
  const response = await ask("models", { headers: headers(key) });
  return (await response.json()).data[0];
}

/** Why the server can't answer at the moment (it loads its model, say); empty when it can. */
export async function trouble() {
  try {
    await ask("../ready", {});
    return "";
  } catch (error) {
    return error.message;
  }
}

/**
 * Asks for an answer and calls `onFrame` with every canvas event as it arrives.
 * Returns {reason, usage}; throws a ServerError, or an AbortError after `signal`.
 */
export async function complete(body, { key, signal, onFrame }) {
  const response = await ask("chat/completions", {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const end = { reason: null, usage: null };
  for await (const { event, data } of serverEvents(response.body)) {
    if (data === "[DONE]") {
      if (end.reason && end.usage) return end;
      break;
    }
    const record = JSON.parse(data);
    if (event === "canvas") {
      onFrame(record);
    } else if (record.error) {
      throw new ServerError(record.error.message);
    } else {
      end.reason = record.choices[0]?.finish_reason ?? end.reason;
      end.usage = record.usage ?? end.usage;
    }
  }
  throw new ServerError("The server broke off in the middle of the answer.");
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(new URL(path, BASE), options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new ServerError("The server can't be reached.");
  }
  if (response.ok) return response;
  const said = await response.json().then((body) => body.error.message).catch(() => response.statusText);
  const wait = response.status === 429 && response.headers.get("Retry-After");
  throw new ServerError(wait ? `${said.replace(/\.$/, "")}; try again in ${wait} s` : said, response.status);
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** The messages {event, data} of a stream of server-sent events. */
async function* serverEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "";
  let data = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (data.length) yield { event, data: data.join("\n") };
        event = "";
        data = [];
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") event = text;
      if (field === "data") data.push(text);
    }
  }
}
