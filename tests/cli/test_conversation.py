"""The commands of a chat, one by one."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from redraft.cli.conversation import COMMANDS, SETTINGS, Conversation, is_command, obey
from redraft.errors import InvalidInput
from redraft.types import SamplingParams


def conversation() -> Conversation:
    turns = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Grüße"}]
    return Conversation("nano", messages=turns)


def test_what_is_a_command() -> None:
    assert is_command("/help") and is_command("/nonsense")
    assert not is_command("//help") and not is_command("help")


def test_help_names_every_command() -> None:
    said = obey(conversation(), "/help")
    assert all(f"/{name}" in said for name in COMMANDS)


def test_mode() -> None:
    talk = conversation()
    assert obey(talk, "/mode") == "mode quality"
    assert obey(talk, "/mode draft-only") == "mode draft-only"
    assert talk.params == SamplingParams(mode="draft-only")
    with pytest.raises(InvalidInput, match="speed, quality, draft-only"):
        obey(talk, "/mode warp")
    assert talk.params.mode == "draft-only"


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        ("threshold 0.4", "threshold", 0.4),
        ("edit-threshold off", "edit_threshold", "off"),
        ("edit_threshold=0", "edit_threshold", 0.0),
        ("max_tokens=40", "max_tokens", 40),
        ("ignore_eos true", "ignore_eos", True),
        ("stop 5", "stop", ("5",)),
        ("stop =", "stop", ("=",)),
        ('stop ["a", "b c"]', "stop", ("a", "b c")),
        ('stop " "', "stop", (" ",)),
        ("stop_token_ids 5", "stop_token_ids", (5,)),
        ("stop_token_ids [5, 6]", "stop_token_ids", (5, 6)),
        ("logit_bias 5:-2.5 6:1", "logit_bias", {5: -2.5, 6: 1.0}),
    ],
)
def test_set(typed: str, name: str, value: object) -> None:
    talk = conversation()
    assert name in obey(talk, f"/set {typed}")
    assert getattr(talk.params, name) == value
    assert obey(talk, f"/set {name}") == "all settings have their defaults"
    assert talk.params == SamplingParams()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("warp 9", "unknown setting 'warp'"),
        ("n 2", "unknown setting 'n'"),
        ("threshold high", "threshold must be"),
        ("threshold NaN", "threshold must be"),
        ("top_k 1.5", "top_k must be"),
        ("seed {}", "seed must be"),
        ("stop [1]", "stop must be"),
        ("stop_token_ids a", "stop_token_ids must be"),
        ("logit_bias 5", "ID:VALUE"),
        ('logit_bias {"5": 1}', "ID:VALUE"),
        ("ignore_eos yes", "ignore_eos must be"),
    ],
)
def test_what_cannot_be_set_changes_nothing(typed: str, said: str) -> None:
    talk = conversation()
    with pytest.raises(InvalidInput, match=said):
        obey(talk, f"/set {typed}")
    assert talk.given == {}


def test_all_fields_but_those_of_several_answers_can_be_set() -> None:
    assert set(SETTINGS) == {field.name for field in fields(SamplingParams)} - {"n", "logprobs"}


def test_system_and_new_and_history() -> None:
    talk = conversation()
    obey(talk, "/system Be brief.")
    assert talk.whole[0] == {"role": "system", "content": "Be brief."}
    assert obey(talk, "/history").splitlines() == ["system: Be brief.", "user: Hi!", "assistant: Grüße"]
    obey(talk, "/new")
    assert talk.whole == [{"role": "system", "content": "Be brief."}]
    obey(talk, "/system")
    assert talk.whole == []
    assert obey(talk, "/history") == "nothing was said yet"


def test_a_saved_conversation_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    talk = conversation()
    obey(talk, "/system Be brief.")
    assert "3 messages" in obey(talk, f"/save {path}")
    assert json.loads(path.read_text(encoding="utf-8")) == {"messages": talk.whole}
    talk.messages.append({"role": "user", "content": "More."})
    obey(talk, f"/save {path}")  # its own file may be written again
    again = Conversation("nano", system="another")
    assert "4 messages" in obey(again, f"/load {path}")
    assert again.whole == talk.whole and again.system == "Be brief."


def test_a_saved_conversation_can_be_trained_on(tmp_path: Path) -> None:
    from redraft.training.data.rows import Chat, kind_of, parse

    path = tmp_path / "talk.jsonl"
    obey(conversation(), f"/save {path}")
    raw = json.loads(path.read_text(encoding="utf-8"))
    row = parse(raw, kind_of(raw))
    assert isinstance(row, Chat) and row.learnt == (1,)


def test_a_file_of_others_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(InvalidInput, match="exists"):
        obey(conversation(), f"/save {path}")
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"messages": []}', '{"messages": [{"role": "pirate", "content": "Arr"}]}', '{"a": 1}']
)
def test_what_is_no_conversation_is_not_loaded(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    talk = conversation()
    with pytest.raises(InvalidInput, match=r"bad\.jsonl must hold"):
        obey(talk, f"/load {path}")
    assert len(talk.messages) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nonsense", "/help"),
        ("/", "/help"),
        ("/save", "file name"),
        ("/load", "file name"),
        ("/trace", "file name"),
        ("/trace out", "nothing was answered"),
        ("/load /no/such/file", "cannot read"),
        ("/save /no/such/folder/file", "cannot write"),
        ("/new now", "takes nothing"),
    ],
)
def test_commands_that_cannot_be_carried_out(line: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        obey(conversation(), line)


def test_nothing_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nothing was said"):
        obey(Conversation("nano"), f"/save {tmp_path / 'x'}")
    assert not list(tmp_path.iterdir())


def test_quit_is_the_end() -> None:
    with pytest.raises(EOFError):
        obey(conversation(), "/quit")


def test_a_mode_of_its_own_is_resolved_for_who_answers() -> None:
    conversation = Conversation("nano", modes={"code": {"threshold": 0.4, "mbe_blocks": 1}})
    assert obey(conversation, "/mode code") == "mode code"
    conversation.set("max_tokens", "9")
    assert conversation.request == {"threshold": 0.4, "mbe_blocks": 1, "max_tokens": 9}
    assert conversation.params == SamplingParams(threshold=0.4, mbe_blocks=1, max_tokens=9)
    with pytest.raises(InvalidInput, match="mode must be one of speed, quality, draft-only, code"):
        obey(conversation, "/mode fast")
    assert obey(conversation, "/mode speed") == "mode speed" and conversation.params.mode == "speed"
