/* What is known of an answer after some of its steps: fed with frames (canvas events), drawn by others. */

/** The state after the frames that were fed. `blocks`: index -> {frame, edited: positions that were ever edited}. */
export class Picture {
  text = "";
  blocks = new Map();
  latest = null;
  steps = 0;
  edits = 0;
  seconds = 0;

  feed(frame) {
    const edited = this.blocks.get(frame.block)?.edited ?? new Set();
    Object.keys(frame.edited).forEach((position) => edited.add(Number(position)));
    this.blocks.set(frame.block, { frame, edited });
    this.latest = frame;
    this.text += frame.text;
    this.steps += 1;
    this.edits += Object.keys(frame.edited).length + frame.deleted.length + frame.inserted.length;
    this.seconds = frame.time;
  }

  /** Blocks in the order of the text. */
  get ordered() {
    return [...this.blocks.keys()].sort((a, b) => a - b).map((block) => this.blocks.get(block));
  }

  /** Generated tokens: what is neither prompt nor mask. */
  get tokens() {
    let count = 0;
    for (const { frame } of this.blocks.values()) count += frame.ids.length - frame.prompt.length - frame.masked.length;
    return count;
  }
}

/** All frames of one answer. finish: {reason, tokens, forwards, edits, promptTokens, seconds} once it is whole. */
export class Recording {
  frames = [];
  live = new Picture();
  specialTexts = new Set(); // how control tokens are written
  finish = null;

  /** request: {model, version, specialIds, prompt, params}, what a trace file says of it. */
  constructor(request) {
    this.request = request;
  }

  add(frame) {
    this.frames.push(frame);
    this.live.feed(frame);
    frame.ids.forEach((id, i) => this.request.specialIds.includes(id) && this.specialTexts.add(frame.texts[i]));
  }

  end({ reason, usage }) {
    this.finish = {
      reason,
      tokens: usage.completion_tokens,
      forwards: usage.redraft.forwards,
      edits: usage.redraft.edits,
      promptTokens: usage.prompt_tokens,
      seconds: this.live.seconds,
    };
  }

  get whole() {
    return this.finish !== null;
  }

  /** The picture after the first `count` frames. */
  at(count) {
    const picture = new Picture();
    this.frames.slice(0, count).forEach((frame) => picture.feed(frame));
    return picture;
  }

  /** Steps, tokens, rates and edits of a picture; those of the whole answer once all of it is shown. */
  figures(picture) {
    const ended = this.finish && picture.steps === this.frames.length;
    const { forwards, tokens, edits, seconds } = ended ? this.finish : { ...counts(picture) };
    return { forwards, tokens, edits, tpf: forwards ? tokens / forwards : 0, tps: seconds ? tokens / seconds : 0 };
  }
}

function counts(picture) {
  return { forwards: picture.steps, tokens: picture.tokens, edits: picture.edits, seconds: picture.seconds };
}
