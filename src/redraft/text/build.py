"""Makes a tokenizer for a small model: byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) over split words.

The pre-tokenizer cuts a text into words, single digits, and runs of everything else. A space is never glued to a
word, so that ` Max` and `Max` are the same token and a model can copy words as they are; `": "` or a line break
with its indent may become one token; numbers are spelt digit by digit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from redraft.errors import InvalidInput
from redraft.text.tokenizer import Tokenizer

PIECES = r"\p{L}[\p{L}\p{M}]*|\p{N}|[^\p{L}\p{N}]+"
EOS = "<|role_end|>"
MASK = "<|mask|>"
ROLES = tuple(f"<role>{role}</role>" for role in ("SYSTEM", "HUMAN", "ASSISTANT", "TOOL"))
CONTROLS = (*ROLES, EOS, MASK)
TEXT_TOKENS = ("<tool_call>", "</tool_call>")
SMALLEST = 256 + len(TEXT_TOKENS) + len(CONTROLS)

CHAT_TEMPLATE = r"""
{%- macro text(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content -%}
        {%- for part in content -%}{{- part.text -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- macro kind(schema) -%}
    {%- if schema.enum -%}
        {%- for value in schema.enum -%}
            {{- "" if loop.first else "|" -}}{{- value if value is string else value | tojson -}}
        {%- endfor -%}
    {%- elif schema.type is string -%}
        {{- schema.type -}}
    {%- else -%}
        {{- (schema.type or ["any"]) | join("|") -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro signature(function) -%}
    {%- set schema = function.parameters or {} -%}
    {{- function.name ~ "(" -}}
    {%- for name, value in (schema.properties or {}) | items -%}
        {{- "" if loop.first else ", " -}}
        {{- name ~ (": " if name in (schema.required or []) else "?: ") ~ kind(value) -}}
    {%- endfor -%}
    {{- ")" -}}
    {{- " - " ~ function.description if function.description else "" -}}
{%- endmacro -%}
{%- set has_system = messages[0].role == "system" -%}
{%- if tools or has_system -%}
    {{- "<role>SYSTEM</role>" -}}
    {{- text(messages[0].content) if has_system else "" -}}
    {%- if tools -%}
        {{- "\nTools:" if has_system else "Tools:" -}}
        {%- for tool in tools -%}{{- "\n" ~ signature(tool.function or tool) -}}{%- endfor -%}
    {%- endif -%}
    {{- "<|role_end|>" -}}
{%- endif -%}
{%- for message in (messages[1:] if has_system else messages) -%}
    {%- if message.role == "user" -%}
        {{- "<role>HUMAN</role>" ~ text(message.content) ~ "<|role_end|>" -}}
    {%- elif message.role == "assistant" -%}
        {{- "<role>ASSISTANT</role>" -}}
        {%- generation -%}
        {{- text(message.content) -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set call = call.function or call -%}
            {{- "\n" if message.content or not loop.first else "" -}}
            {{- '<tool_call>{"name": ' ~ call.name | tojson ~ ', "arguments": ' -}}
            {{- call.arguments if call.arguments is string else (call.arguments or {}) | tojson -}}
            {{- '}</tool_call>' -}}
        {%- endfor -%}
        {{- "<|role_end|>" -}}
        {%- endgeneration -%}
    {%- elif message.role == "tool" -%}
        {{- "<role>TOOL</role>" ~ text(message.content) ~ "<|role_end|>" -}}
    {%- elif message.role == "system" -%}
        {{- "<role>SYSTEM</role>" ~ text(message.content) ~ "<|role_end|>" -}}
    {%- else -%}
        {{- raise_exception("role must be system, user, assistant or tool, got " ~ message.role) -}}
    {%- endif -%}
{%- endfor -%}
{{- "<role>ASSISTANT</role>" if add_generation_prompt else "" -}}
""".lstrip()


def train_tokenizer(texts: Iterable[str], vocab_size: int, folder: str | Path, *, context: int = 1024) -> Tokenizer:
    """Trains a tokenizer on `texts` and writes it to `folder`, for `Tokenizer.load` and transformers alike.

    vocab_size: tokens in all, at most (fewer when the texts are too small): the 256 bytes, merges, then
    `TEXT_TOKENS` and `CONTROLS` with the last ids. context: `model_max_length`, in tokens.
    Raises InvalidInput when vocab_size can't hold the bytes and the added tokens.
    """
    if vocab_size < SMALLEST:
        raise InvalidInput(f"vocab_size must be at least {SMALLEST}, got {vocab_size}")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TEXT_TOKENS) - len(CONTROLS),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in TEXT_TOKENS])
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROLS])
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "additional_special_tokens": list(ROLES),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return Tokenizer.load(folder)
