"""The tokenizer of a checkpoint folder: text to ids and back, and prompts of chats.

Reads Hugging Face's files (`tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`,
`chat_template.jinja`) with the `tokenizers` library alone, so that transformers is never imported. Only byte-level
tokenizers are taken (every LLaDA2 has one): for these, and for no others, a text may be cut at a control string and
its parts encoded on their own without a change of ids.

*Control strings* are the special added tokens. In plain text they are ordinary characters; only a chat template may
write them as ids. Added tokens that aren't special (`<tool_call>`) are text: whoever writes them gets their id, and
they show in decoded text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers.decoders import ByteLevel

from redraft.errors import CheckpointError, InvalidInput, TemplateError
from redraft.text.template import ChatTemplate, Rendered

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA_TOKENS = ("additional_special_tokens", "extra_special_tokens")
TOKEN_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class Tokenizer:
    """A byte-level tokenizer with its control strings and chat template. Read-only, safe to share between threads.

    vocab_size: one more than the largest id. special_ids: the ids of all control strings, which
    `decode` leaves out. mask_id and eos_ids: None and empty where the checkpoint names none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        names: Mapping[str, str] | None = None,
        controls: Sequence[str] = (),
        chat_template: str | None = None,
        mask_id: int | None = None,
        eos_ids: Iterable[int] | None = None,
    ) -> None:
        """names: control strings by role, as in a tokenizer configuration (`{"eos_token": "<|end|>", …}`);
        controls: further strings to be control strings, besides those marked as special in the vocabulary.

        mask_id and eos_ids, when given, overrule those of `names`. Raises CheckpointError and TemplateError.
        """
        names = dict(names or {})
        if not isinstance(backend.decoder, ByteLevel):
            found = type(backend.decoder).__name__
            raise CheckpointError(f"tokenizer.json: the decoder must be ByteLevel, found {found}")
        for string in (*names.values(), *controls):
            if backend.token_to_id(string) is None:
                raise CheckpointError(f"tokenizer_config.json: the special token {string!r} isn't in the vocabulary")
        # A named control token that its file doesn't mark as special would be reachable from plain text.
        known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
        for string in dict.fromkeys([*names.values(), *controls]):
            if string not in known or not known[string].special:
                backend.add_special_tokens([AddedToken(string, normalized=False, special=True)])
        backend.encode_special_tokens = True  # sic: special tokens in a text are encoded as ordinary characters
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._control_ids = {token.content: index for index, token in added.items() if token.special}
        self.special_ids: frozenset[int] = frozenset(self._control_ids.values())
        self.added: Mapping[int, str] = {index: token.content for index, token in added.items()}
        self.vocab_size: int = max([backend.get_vocab_size() - 1, *added]) + 1
        self.mask_id: int | None = self._id(names, "mask_token") if mask_id is None else mask_id
        eos_id = self._id(names, "eos_token")
        self.eos_ids: tuple[int, ...] = tuple(eos_ids) if eos_ids is not None else () if eos_id is None else (eos_id,)
        self.chat_template = chat_template
        self._template = None if chat_template is None else ChatTemplate(chat_template, self._control_ids, names)

    @classmethod
    def load(cls, path: str | Path, *, mask_id: int | None = None, eos_ids: Iterable[int] | None = None) -> Tokenizer:
        """The tokenizer of a checkpoint folder.

        The mask and EOS ids are those given, else those of generation_config.json, config.json and the tokenizer's
        own configuration, in this order. Raises CheckpointError when a file is missing or broken.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such folder; expected a checkpoint with tokenizer.json")
        backend = _read_backend(folder / "tokenizer.json")
        config = _read_json(folder / "tokenizer_config.json")
        named = {**_read_json(folder / "special_tokens_map.json"), **config}
        names = {role: string for role in NAMED_TOKENS if (string := _content(named.get(role))) is not None}
        controls = [text for key in EXTRA_TOKENS for token in _list(named.get(key)) if (text := _content(token))]
        _add_tokens(backend, config.get("added_tokens_decoder"), folder)
        model_configs = [_read_json(folder / name) for name in ("generation_config.json", "config.json")]
        if mask_id is None:
            mask_id = next(iter(_ids(model_configs, "mask_token_id", "mask_id")), None)
        if eos_ids is None:
            eos_ids = _ids(model_configs, "eos_token_id", "eos_id") or None
        template = _read_template(folder, config)
        try:
            return cls(
                backend, names=names, controls=controls, chat_template=template, mask_id=mask_id, eos_ids=eos_ids
            )
        except (CheckpointError, TemplateError) as error:
            raise type(error)(f"{folder}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; a control string in it gives ordinary characters. Adds no BOS or EOS.

        Raises InvalidInput for what isn't Unicode text (a lone surrogate).
        """
        return self._encode(text).ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of ids. Bytes that aren't UTF-8 give U+FFFD; ids that are no token give nothing."""
        try:
            return self._backend.decode(list(ids), skip_special_tokens=skip_special)
        except OverflowError as error:
            raise InvalidInput("ids must be integers from 0 to 4294967295") from error

    def token(self, index: int) -> str | None:
        """The token of an id as the vocabulary spells it (byte-level characters), None where there is none."""
        return self._backend.id_to_token(index)

    def control_id(self, control: str) -> int:
        """The id of a control string. Raises InvalidInput when it is none."""
        if control not in self._control_ids:
            raise InvalidInput(f"{control!r} isn't a control string; known: {', '.join(self._control_ids) or 'none'}")
        return self._control_ids[control]

    def render_chat(
        self, messages: Messages, tools: Tools | None = None, add_generation_prompt: bool = True
    ) -> list[int]:
        """Ids of a conversation. Control strings in the contents of messages stay plain text.

        Raises InvalidInput when the messages aren't ones or the checkpoint has no chat template, and
        TemplateError when the template fails.
        """
        return self._ids_and_starts(self._render(messages, tools, add_generation_prompt))[0]

    def render_chat_with_spans(self, messages: Messages, tools: Tools | None = None) -> tuple[list[int], list[bool]]:
        """Ids of a whole conversation, and for each whether the assistant writes it: contents, and the EOS after.

        A turn is what the template adds for it after the generation prompt, up to its last EOS. Raises as
        `render_chat`, and TemplateError when the template rewrites earlier turns, so that what the model sees at a
        turn isn't the beginning of the whole (`render_documents` takes such templates).
        """
        whole = self._render(messages, tools, False)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                after, span = self._turn(messages, tools, index)
                if not whole.text.startswith(after.text):
                    raise TemplateError(f"chat template: later messages change how messages[{index}] is written")
                spans.append(span)
        return self._marked(whole, spans)

    def render_documents(
        self, messages: Messages, tools: Tools | None = None, learnt: Collection[int] | None = None
    ) -> list[tuple[list[int], list[bool]]]:
        """A conversation as training documents: (ids, whether the assistant writes the token and it is learnt).

        Every learnt turn is marked in exactly one document, and stands there behind the very prompt that generation
        would give it. A template that only appends gives one document; one that writes earlier turns differently once
        others follow (Qwen3 drops their reasoning) gives a further document for each turn that it rewrites. A document
        ends with its last learnt turn.

        learnt: indices of the assistant's messages that are learnt; None for all. Raises as `render_chat`, InvalidInput
        when no turn is learnt, and TemplateError when an answer isn't a continuation of its prompt.
        """
        turns = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        chosen = turns if learnt is None else [i for i in turns if i in learnt]
        if not chosen:
            raise InvalidInput("messages hold no turn of the assistant that is learnt")
        documents: list[tuple[Rendered, list[tuple[int, int]]]] = []
        for index in reversed(chosen):
            after, span = self._turn(messages, tools, index)
            for whole, spans in documents:
                if whole.text.startswith(after.text):
                    spans.append(span)
                    break
            else:
                documents.append((after, [span]))
        return [self._marked(whole, spans) for whole, spans in reversed(documents)]

    def _turn(self, messages: Messages, tools: Tools | None, index: int) -> tuple[Rendered, tuple[int, int]]:
        """The conversation up to and with a turn of the assistant, and the characters [start, end) that it writes."""
        if index == 0:
            raise InvalidInput("messages[0].role must be 'system' or 'user' where the assistant's turns are learnt")
        before = self._render(messages[:index], tools, True)
        after = self._render(messages[: index + 1], tools, False)
        if not after.text.startswith(before.text):
            raise TemplateError(f"chat template: the turn of messages[{index}] isn't a continuation of its prompt")
        ends = [
            end
            for start, end in after.controls
            if start >= len(before.text) and self._control_ids[after.text[start:end]] in self.eos_ids
        ]
        return after, (len(before.text), ends[-1] if ends else len(after.text))

    def _marked(self, whole: Rendered, spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[bool]]:
        """Ids, and for each whether it lies in a span. A token never crosses a span's border: generation continues
        the ids of a prompt, so an answer begins with a token of its own."""
        ids, starts = self._ids_and_starts(whole, sorted({border for span in spans for border in span}))
        return ids, [any(low <= start < high for low, high in spans) for start in starts]

    def _id(self, names: Mapping[str, str], role: str) -> int | None:
        return self._backend.token_to_id(names[role]) if role in names else None

    def _encode(self, text: str) -> tokenizers.Encoding:
        try:
            return self._backend.encode(text, add_special_tokens=False)
        except TypeError as error:
            raise InvalidInput(f"a prompt must be Unicode text, got {text[:40]!r}") from error

    def _render(self, messages: Messages, tools: Tools | None, add_generation_prompt: bool) -> Rendered:
        if self._template is None:
            raise InvalidInput("the checkpoint has no chat template; pass a plain prompt instead of messages")
        return self._template.render(messages, tools, add_generation_prompt)

    def _ids_and_starts(self, rendered: Rendered, cuts: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """Ids, and the character at which each begins: control strings as ids, the text between them encoded, in
        pieces where it is cut."""
        ids: list[int] = []
        starts: list[int] = []
        position = 0
        text = rendered.text
        borders = [*rendered.controls, *((cut, cut) for cut in cuts), (len(text), len(text))]
        for start, end in sorted(borders):
            if position < start:
                part = self._encode(text[position:start])
                ids += part.ids
                starts += [position + offset for offset, _ in part.offsets]
            if start < end:
                ids.append(self._control_ids[text[start:end]])
                starts.append(start)
            position = max(position, end)
        return ids, starts


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise CheckpointError(f"{path}: can't be read ({reason})") from error


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; expected the tokenizer.json of a fast tokenizer")
    text = _read_text(path)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for every fault of a file
        raise CheckpointError(f"{path}: not a tokenizer ({_first_line(error)})") from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file, empty where there is no file."""
    if not path.exists():
        return {}
    try:
        data = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({_first_line(error)})") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, found {type(data).__name__}")
    return data


def _read_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return _read_text(path)
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{folder / 'tokenizer_config.json'}: chat_template must be a string")
    return template


def _add_tokens(backend: tokenizers.Tokenizer, decoder: Any, folder: Path) -> None:
    """Adds the tokens that only tokenizer_config.json lists; their ids must follow those of the vocabulary."""
    if decoder is None:
        return
    source = folder / "tokenizer_config.json"
    if not isinstance(decoder, dict) or not all(re.fullmatch(r"[0-9]{1,9}", key) for key in decoder):
        raise CheckpointError(f"{source}: added_tokens_decoder must map ids to tokens")
    for index, entry in sorted((int(key), entry) for key, entry in decoder.items()):
        content = _content(entry)
        if content is None:
            raise CheckpointError(f"{source}: added_tokens_decoder[{index}] has no content")
        if backend.token_to_id(content) is None:
            flags = {name: isinstance(entry, dict) and bool(entry.get(name)) for name in TOKEN_FLAGS}
            add = backend.add_special_tokens if flags["special"] else backend.add_tokens
            add([AddedToken(content, **flags)])
        if backend.token_to_id(content) != index:
            raise CheckpointError(f"{source}: {content!r} has id {backend.token_to_id(content)}, not {index}")


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else [value]


def _ids(configs: Iterable[Mapping[str, Any]], *keys: str) -> tuple[int, ...]:
    """The first of the keys that some configuration sets, as a tuple of ids."""
    for config in configs:
        for key in keys:
            value = config.get(key)
            ids = tuple(item for item in _list(value) if isinstance(item, int) and item >= 0)
            if ids:
                return ids
    return ()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
