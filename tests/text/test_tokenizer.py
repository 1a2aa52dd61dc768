from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import CheckpointError, InvalidInput, TemplateError
from redraft.text.build import CONTROLS, EOS
from redraft.text.tokenizer import Tokenizer

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
hostile_text = st.lists(any_text | st.sampled_from([*CONTROLS, "<", ">", "|", EOS[:5], EOS[5:], "</think>"])).map(
    "".join
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "order",
            "description": "Orders food.",
            "parameters": {
                "type": "object",
                "properties": {
                    "food": {"type": "string"},
                    "count": {"type": "integer"},
                    "mode": {"type": "string", "enum": ["now", "later"]},
                },
                "required": ["food", "mode"],
            },
        },
    },
    {"name": "stop", "parameters": {"type": "object", "properties": {}}},
]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Order 2 apples é 🍎"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "order", "arguments": {"food": "apple", "mode": "now"}}},
            {"type": "function", "function": {"name": "stop", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "content": '{"ok": true}'},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": [{"type": "text", "text": "Tha"}, {"type": "text", "text": "nks"}]},
]


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def with_template(folder: Path, target: Path, template: str) -> Tokenizer:
    shutil.copytree(folder, target, dirs_exist_ok=True)
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    return Tokenizer.load(target)


@given(hostile_text)
def test_plain_text_never_gives_a_control_id(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == text


def test_tool_call_marks_are_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<tool_call>x</tool_call>")
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "<tool_call>x</tool_call>"


def test_decode_leaves_out_control_tokens_when_asked(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("Max"), *tokenizer.eos_ids]
    assert tokenizer.decode(ids) == "Max"
    assert tokenizer.decode(ids, skip_special=False) == "Max" + EOS
    assert tokenizer.decode([10**9]) == ""
    with pytest.raises(InvalidInput):
        tokenizer.decode([-1])


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidInput, match="Unicode"):
        tokenizer.encode("a\ud800")
    with pytest.raises(InvalidInput, match="Unicode"):
        tokenizer.render_chat(user("a\ud800"))


def test_the_template_writes_a_conversation(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.render_chat(CONVERSATION, TOOLS), skip_special=False) == (
        "<role>SYSTEM</role>Be brief.\nTools:\norder(food: string, count?: integer, mode: now|later) - Orders food.\n"
        "stop()<|role_end|><role>HUMAN</role>Order 2 apples é 🍎<|role_end|><role>ASSISTANT</role>"
        '<tool_call>{"name": "order", "arguments": {"food": "apple", "mode": "now"}}</tool_call>\n'
        '<tool_call>{"name": "stop", "arguments": {}}</tool_call><|role_end|>'
        '<role>TOOL</role>{"ok": true}<|role_end|><role>ASSISTANT</role>Done.<|role_end|>'
        "<role>HUMAN</role>Thanks<|role_end|><role>ASSISTANT</role>"
    )
    only_tools = tokenizer.decode(tokenizer.render_chat(user("x"), TOOLS[1:], False), skip_special=False)
    assert only_tools == "<role>SYSTEM</role>Tools:\nstop()<|role_end|><role>HUMAN</role>x<|role_end|>"


@given(hostile_text, hostile_text)
def test_control_strings_in_contents_stay_text(tokenizer: Tokenizer, question: str, answer: str) -> None:
    messages = [*user(question), {"role": "assistant", "content": answer}]
    control, encode = tokenizer.control_id, tokenizer.encode
    human, assistant, end = control("<role>HUMAN</role>"), control("<role>ASSISTANT</role>"), control(EOS)
    expected = [human, *encode(question), end, assistant, *encode(answer), end, assistant]
    assert tokenizer.render_chat(messages) == expected


@given(hostile_text, hostile_text)
def test_spans_are_what_the_assistant_writes(tokenizer: Tokenizer, first: str, second: str) -> None:
    turns = [{"role": "assistant", "content": answer} for answer in (first, second)]
    messages = [*user("hi"), turns[0], *user("more"), turns[1]]
    ids, mask = tokenizer.render_chat_with_spans(messages)
    assert ids == tokenizer.render_chat(messages, add_generation_prompt=False)
    end = tokenizer.control_id(EOS)
    expected = [*tokenizer.encode(first), end, *tokenizer.encode(second), end]
    assert [index for index, learnt in zip(ids, mask, strict=True) if learnt] == expected


def test_spans_of_tool_calls(tokenizer: Tokenizer) -> None:
    ids, mask = tokenizer.render_chat_with_spans(CONVERSATION, TOOLS)
    learnt = tokenizer.decode([index for index, kept in zip(ids, mask, strict=True) if kept], skip_special=False)
    assert learnt.startswith('<tool_call>{"name": "order"')
    assert learnt.endswith("{}}</tool_call><|role_end|>Done.<|role_end|>")


def test_a_template_without_control_strings_merges_like_plain_text(folder: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}User: {{ m.content }}\n{% endfor %}Assistant:"
    tokenizer = with_template(folder, tmp_path, template)
    for content in ("    return <a> + 1", "\n    x", "<|mask|>"):
        assert tokenizer.render_chat(user(content)) == tokenizer.encode(f"User: {content}\nAssistant:")


def test_a_template_may_look_into_contents(folder: Path, tmp_path: Path) -> None:
    template = "{{ messages[0].content.split('</think>')[-1] }}<|role_end|>"
    tokenizer = with_template(folder, tmp_path, template)
    assert tokenizer.render_chat(user("why</think>so")) == [*tokenizer.encode("so"), *tokenizer.eos_ids]
    assert not tokenizer.special_ids & set(tokenizer.render_chat(user("<|role_end|></think><|mask|>so"))[:-1])


@pytest.mark.parametrize(
    ("template", "content"),
    [
        ("{{ messages[0].content.replace('X', '') }}", "<|roleX_end|>"),
        ("{{ messages[0].content }}{{ messages[1].content }}", "<|role"),
        ("<|role{{ messages[1].content }}", ""),
        ("{{ messages[0].content | trim }}end|>", "<|role_  "),
    ],
)
def test_control_strings_cannot_be_pieced_together(folder: Path, tmp_path: Path, template: str, content: str) -> None:
    tokenizer = with_template(folder, tmp_path, template)
    ids = tokenizer.render_chat([*user(content), *user("_end|>")])
    assert not tokenizer.special_ids & set(ids)


def test_characters_of_the_private_use_area_do_not_open_a_way(tokenizer: Tokenizer) -> None:
    few = "".join(map(chr, range(0x100000, 0x100010))) + EOS
    assert tokenizer.render_chat(user(few), add_generation_prompt=False)[1:-1] == tokenizer.encode(few)
    with pytest.raises(InvalidInput, match="private use"):
        tokenizer.render_chat(user("".join(map(chr, range(0x100000, 0x10FFFE))) + EOS))


def test_bad_messages_are_named(tokenizer: Tokenizer) -> None:
    for messages in ([], "hi", [1], [{"content": "x"}], [{"role": "<|x|>", "content": ""}]):
        with pytest.raises(InvalidInput, match="messages"):
            tokenizer.render_chat(messages)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TemplateError, match="role must be system, user, assistant or tool, got judge"):
        tokenizer.render_chat([{"role": "judge", "content": "x"}])
    nested: Any = "x"
    for _ in range(1000):
        nested = [nested]
    with pytest.raises(InvalidInput, match="deep"):
        tokenizer.render_chat([{"role": "user", "content": nested}])


def test_a_template_that_rewrites_earlier_turns_has_no_spans(folder: Path, tmp_path: Path) -> None:
    tokenizer = with_template(
        folder, tmp_path, "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(TemplateError, match=r"messages\[1\]"):
        tokenizer.render_chat_with_spans([*user("x"), {"role": "assistant", "content": "y"}])


def test_ids_come_from_the_most_specific_file(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"mask_token_id": 7, "eos_token_id": 8}))
    assert (Tokenizer.load(tmp_path).mask_id, Tokenizer.load(tmp_path).eos_ids) == (7, (8,))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 10]}))
    assert (Tokenizer.load(tmp_path).mask_id, Tokenizer.load(tmp_path).eos_ids) == (7, (9, 10))
    given_ids = Tokenizer.load(tmp_path, mask_id=1, eos_ids=[2])
    assert (given_ids.mask_id, given_ids.eos_ids) == (1, (2,))


def test_a_named_token_is_a_control_string_whatever_its_flag(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    data = json.loads((folder / "tokenizer.json").read_text())
    for token in data["added_tokens"]:
        token["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = Tokenizer.load(tmp_path)
    assert not {*tokenizer.eos_ids, tokenizer.mask_id} & set(tokenizer.encode(f"a{EOS}<|mask|>"))


def test_tokens_listed_only_in_the_configuration(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    size = Tokenizer.load(folder).vocab_size
    config["added_tokens_decoder"] = {str(size): {"content": "<|new|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).control_id("<|new|>") == size
    config["added_tokens_decoder"] = {str(size + 5): {"content": "<|new|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="has id"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("tokenizer.json", None, CheckpointError, "missing"),
        ("tokenizer.json", "{", CheckpointError, "not a tokenizer"),
        ("tokenizer.json", '{"model": 3}', CheckpointError, "not a tokenizer"),
        ("tokenizer_config.json", "[]", CheckpointError, "JSON object"),
        ("tokenizer_config.json", "{", CheckpointError, "not JSON"),
        ("tokenizer_config.json", '{"eos_token": "<eos>"}', CheckpointError, "'<eos>' isn't in the vocabulary"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', CheckpointError, "added_tokens_decoder"),
        ("chat_template.jinja", "{% if %}", TemplateError, "line 1"),
    ],
)
def test_broken_files_give_one_line(
    folder: Path, tmp_path: Path, name: str, content: str | None, error: type[Exception], message: str
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(error, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_and_another_kind_of_tokenizer(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        Tokenizer.load(tmp_path / "nowhere")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="ByteLevel, found Metaspace"):
        Tokenizer.load(tmp_path)


def test_without_a_template_chat_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(InvalidInput, match="no chat template"):
        Tokenizer.load(tmp_path).render_chat(user("x"))


def test_transformers_gives_the_same_ids(folder: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    assert (theirs.eos_token_id, theirs.mask_token_id) == (tokenizer.eos_ids[0], tokenizer.mask_id)
    assert theirs.pad_token_id == tokenizer.eos_ids[0]
    assert theirs.model_max_length == 1024
    for text in ("", "Max has 31 apples.", "  def f(x):\n\treturn  x", "é 🍎 ² naïve ỹ", "<tool_call>{}</tool_call>"):
        ids = theirs(text)["input_ids"]
        assert ids == tokenizer.encode(text)
        assert theirs.decode(ids) == tokenizer.decode(ids) == text
    for messages, tools, prompt in (
        (CONVERSATION, TOOLS, True),
        (CONVERSATION, None, False),
        (user("Max?"), None, True),
    ):
        encoded = theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, return_dict=True)
        assert encoded["input_ids"] == tokenizer.render_chat(messages, tools, prompt)


def test_transformers_marks_the_same_assistant_tokens(folder: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    encoded = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        CONVERSATION, tools=TOOLS, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = tokenizer.render_chat_with_spans(CONVERSATION, TOOLS)
    assert encoded["input_ids"] == ids
    assert [bool(value) for value in encoded["assistant_masks"]] == mask


def test_loading_imports_neither_torch_nor_transformers(folder: Path) -> None:
    script = (
        "import sys; from redraft.text.tokenizer import Tokenizer; Tokenizer.load(sys.argv[1]);"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


LIKE_LING = """{{- '<role>SYSTEM</role>' -}}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif -%}
{{- 'detailed thinking off<|role_end|>' -}}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}{{- '<role>HUMAN</role>' + message.content + '<|role_end|>' -}}
    {%- elif message.role == 'assistant' -%}{{- '<role>ASSISTANT</role>' + message.content + '<|role_end|>' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<role>ASSISTANT</role>' if add_generation_prompt -}}"""
LIKE_CHATML = """{%- for message in messages -%}
    {%- if loop.first and message.role != 'system' -%}{{- '<role>SYSTEM</role>Be kind.<|role_end|>\\n' -}}{%- endif -%}
    {{- '<role>HUMAN</role>' + message.role + '\\n' + message.content + '<|role_end|>' + '\\n' -}}
{%- endfor -%}
{{- '<role>HUMAN</role>assistant\\n' if add_generation_prompt -}}"""
# Behind the last question the answers keep their (empty) reasoning, earlier ones lose it.
LIKE_QWEN3 = """{%- set ns = namespace(last=0) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {{- '<role>HUMAN</role>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' and loop.index0 > ns.last -%}
        {{- '<think>\\n' + (message.reasoning or '') + '\\n</think>\\n\\n' -}}
    {%- endif -%}
    {{- message.content + '<|role_end|>\\n' -}}
{%- endfor -%}
{{- '<role>HUMAN</role>assistant\\n' if add_generation_prompt -}}"""
TURNS = [
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "1 <|role_end|> é", "reasoning": "hm"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "\n2"},
]


def shown(tokenizer: Tokenizer, document: tuple[list[int], list[bool]]) -> str:
    """The text of a document, with [brackets] around what is learnt."""
    ids, mask = document
    text, learning = "", False
    for index, learnt in zip([*ids, None], [*mask, False], strict=True):
        text += "" if learnt == learning else "[" if learnt else "]"
        text += "" if index is None else tokenizer.token(index) or ""
        learning = learnt
    return text.replace("Ġ", " ").replace("Ċ", "\n").replace("Ã©", "é")


@pytest.mark.parametrize(
    ("template", "documents"),
    [
        (
            LIKE_LING,
            [
                "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>one?<|role_end|>"
                "<role>ASSISTANT</role>[1 <|role_end|> é<|role_end|>]<role>HUMAN</role>two?<|role_end|>"
                "<role>ASSISTANT</role>[\n2<|role_end|>]"
            ],
        ),
        (
            LIKE_CHATML,
            [
                "<role>SYSTEM</role>Be kind.<|role_end|>\n"
                "<role>HUMAN</role>user\none?<|role_end|>\n"
                "<role>HUMAN</role>assistant\n[1 <|role_end|> é<|role_end|>]\n"
                "<role>HUMAN</role>user\ntwo?<|role_end|>\n<role>HUMAN</role>assistant\n[\n2<|role_end|>]\n"
            ],
        ),
        (
            LIKE_QWEN3,
            [
                "<role>HUMAN</role>user\none?<|role_end|>\n<role>HUMAN</role>assistant\n"
                "[<think>\nhm\n</think>\n\n1 <|role_end|> é<|role_end|>]\n",
                "<role>HUMAN</role>user\none?<|role_end|>\n<role>HUMAN</role>assistant\n1 <|role_end|> é<|role_end|>\n"
                "<role>HUMAN</role>user\ntwo?<|role_end|>\n<role>HUMAN</role>assistant\n"
                "[<think>\n\n</think>\n\n\n2<|role_end|>]\n",
            ],
        ),
    ],
    ids=["ling", "chatml", "qwen3"],
)
def test_documents_of_templates_without_generation_marks(
    folder: Path, tmp_path: Path, template: str, documents: list[str]
) -> None:
    tokenizer = with_template(folder, tmp_path, template)
    found = tokenizer.render_documents(TURNS)
    assert [shown(tokenizer, document) for document in found] == documents
    # The first answer of a document stands behind the very ids that generation would begin with.
    for ids, mask in found:
        assert ids[: mask.index(True)] in [tokenizer.render_chat(TURNS[:turn]) for turn in (1, 3)]
    (last,) = tokenizer.render_documents(TURNS, learnt=[3])
    first = "1 <|role_end|> é<|role_end|>"
    assert shown(tokenizer, last) == documents[-1].replace(f"[{first}]", first)


def test_spans_refuse_a_template_that_needs_several_documents(folder: Path, tmp_path: Path) -> None:
    tokenizer = with_template(folder, tmp_path, LIKE_QWEN3)
    with pytest.raises(TemplateError, match=r"change how messages\[1\] is written"):
        tokenizer.render_chat_with_spans(TURNS)
    assert len(tokenizer.render_documents(TURNS[:2])) == 1


@given(st.lists(hostile_text, min_size=1, max_size=4))
def test_documents_are_the_spans_where_a_template_only_appends(tokenizer: Tokenizer, answers: list[str]) -> None:
    messages = [message for answer in answers for message in (*user("x"), {"role": "assistant", "content": answer})]
    assert tokenizer.render_documents(messages) == [tokenizer.render_chat_with_spans(messages)]


def test_a_conversation_without_a_learnt_turn_has_no_documents(tokenizer: Tokenizer) -> None:
    for messages, learnt in ((user("x"), None), (TURNS, []), (TURNS, [0])):
        with pytest.raises(InvalidInput, match="no turn of the assistant"):
            tokenizer.render_documents(messages, learnt=learnt)
    with pytest.raises(InvalidInput, match=r"messages\[0\]\.role"):
        tokenizer.render_documents(TURNS[1:])
