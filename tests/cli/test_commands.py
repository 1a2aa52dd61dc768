from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from fakes import FakeLLM

from redraft.cli.main import run
from redraft.cli.train import recipe_path
from redraft.engine.named import write_mode
from redraft.errors import ConfigError
from redraft.types import SamplingParams


class Stdin:
    """Standard input as the command sees it."""

    def __init__(self, content: bytes, terminal: bool = False) -> None:
        self.buffer = io.BytesIO(content)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """What stood on stderr, which must be one line of ours."""
    err = capsys.readouterr().err
    assert err.startswith("redraft: ") and err.count("\n") == 1, err
    return err


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert {"generate", "chat", "replay", "demo", "train", "env"} <= set(capsys.readouterr().out.split())
    assert run([]) == 0
    assert "Usage: redraft" in capsys.readouterr().out


def test_help_is_quick() -> None:
    """Half a second on an idle machine; processor time, since others may use the machine."""
    code = "import time\nfrom redraft.cli.main import run\nrun(['--help'])\nprint(time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert float(done.stdout.splitlines()[-1]) < 0.5


@pytest.mark.parametrize("verb", ["generate", "chat", "replay", "demo", "train", "env"])
def test_every_verb_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    assert f"Example: redraft {verb}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import redraft

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"redraft {redraft.__version__}\n"


def test_every_sampling_field_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "--help"]) == 0
    shown = capsys.readouterr().out
    for field in fields(SamplingParams):
        assert f"--{field.name.replace('_', '-')} " in shown, field.name


def test_options_become_sampling_params(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "generate hello --mode speed --threshold 0.4 --edit-threshold off --max-post-steps 3 --min-unmask 2 "
        "--temperature 0.5 --top-p 0.9 --top-k 7 --seed 11 --max-tokens 40 --stop . --stop ; "
        "--stop-token-ids 4 --stop-token-ids 5 --ignore-eos --logit-bias 4:-2.5 --logit-bias 9:100 "
        "--presence-penalty 0.5 --frequency-penalty -0.25 --stutter-penalty 3"
    )
    assert run(arguments.split()) == 0
    prompt, params = llm.asked[0]
    assert prompt == [len("hello")]
    assert params == SamplingParams(
        mode="speed",
        threshold=0.4,
        edit_threshold="off",
        max_post_steps=3,
        min_unmask=2,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        seed=11,
        max_tokens=40,
        stop=(".", ";"),
        stop_token_ids=(4, 5),
        ignore_eos=True,
        logit_bias={4: -2.5, 9: 100.0},
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        stutter_penalty=3.0,
    )
    assert capsys.readouterr().out == "Max has 5界\n"


def test_a_mode_of_its_own_is_read_from_a_file(
    llm: FakeLLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modes = tmp_path / "modes.json"
    write_mode(modes, "code", {"threshold": 0.4, "edit_threshold": 0.0}, {})
    assert run(["generate", "hello", "--mode", "code", "--modes", str(modes), "--edit-threshold", "off"]) == 0
    assert llm.asked[0][1] == SamplingParams(threshold=0.4, edit_threshold="off")
    (tmp_path / "config.json").write_text("{}")
    assert run(["generate", "hello", "--mode", "code", "--model", str(tmp_path)]) == 0  # the folder's own
    assert llm.asked[1][1] == SamplingParams(threshold=0.4, edit_threshold=0.0)
    capsys.readouterr()
    for more, words in ((["--mode", "math", "--modes", str(modes)], "draft-only, code, got 'math'"),
                        (["--modes", str(modes)], "no effect without --mode")):  # fmt: skip
        assert run(["generate", "hello", *more]) == 2
        assert words in capsys.readouterr().err


def test_options_that_are_not_given_leave_the_defaults(llm: FakeLLM) -> None:
    assert run(["generate", "hello", "--edit-threshold", "0"]) == 0
    assert llm.asked[0][1] == SamplingParams(edit_threshold=0.0)


def test_raw_prompts_skip_the_template(llm: FakeLLM) -> None:
    assert run(["generate", "hello", "--raw"]) == 0
    assert llm.asked[0][0] == "hello"


def test_json_and_stats(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "hello", "--json", "--stats"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "text": "Max has 5界",
        "token_ids": [2, 3, 4, 3, 6, 8, 1],
        "finish_reason": "stop",
        "stats": {"tokens": 7, "forwards": 5, "edits": 1, "prompt_tokens": 3, "seconds": 0.5},
    }
    assert err == "steps 5 · tokens 7 · TPF 1.40 · TPS 14 · edits 1\n"


def test_several_answers_and_their_log_probabilities(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "hello", "--n", "2", "--stats"]) == 0
    out, err = capsys.readouterr()
    assert out == "Max has 5界\n\nMax has 5界\n"
    assert err.splitlines() == ["steps 5 · tokens 7 · TPF 1.40 · TPS 14 · edits 1"] * 2
    assert run(["generate", "hello", "--json", "--logprobs", "1"]) == 0
    single = json.loads(capsys.readouterr().out)
    assert len(single["logprobs"]) == len(single["token_ids"])
    assert single["logprobs"][0] == {"token": 2, "logprob": -0.5, "top": [[2, -0.5]]}
    assert run(["generate", "hello", "--json", "--logprobs", "1", "--n", "2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"choices": [single, single]}


def test_ctrl_c_keeps_what_was_generated(llm: FakeLLM, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    llm.interrupt_at = 4
    trace = tmp_path / "t.jsonl"
    assert run(["generate", "hello", "--trace", str(trace)]) == 130
    assert capsys.readouterr().out == "Max has \n"
    assert len(trace.read_text().splitlines()) == 5
    assert run(["generate", "hello", "--json"]) == 130
    record = json.loads(capsys.readouterr().out)
    assert (record["text"], record["finish_reason"], record["token_ids"]) == ("Max has ", "abort", [2, 3, 4, 3])


def test_a_trace_that_generate_wrote_replays(llm: FakeLLM, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    assert run(["generate", "hello", "--trace", str(trace)]) == 0
    assert run(["replay", str(trace)]) == 0
    assert capsys.readouterr().out == "Max has 5界\n" * 2


@pytest.mark.parametrize("arguments", [["generate"], ["generate", "-"]])
def test_the_prompt_may_be_piped_in(arguments: list[str], llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin("héllo\n".encode()))
    assert run([*arguments, "--raw"]) == 0
    assert llm.asked[0][0] == "héllo"


def test_the_prompt_may_be_in_a_file(llm: FakeLLM, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("two\nlines\n")
    assert run(["generate", "--file", str(path), "--raw"]) == 0
    assert llm.asked[0][0] == "two\nlines"


def test_prompts_that_cannot_be_read(
    llm: FakeLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\x00")
    monkeypatch.setattr(sys, "stdin", Stdin(b"", terminal=True))
    for arguments, said in [
        (["generate"], "no prompt"),
        (["generate", "a", "--file", "b"], "not both"),
        (["generate", "--file", str(tmp_path / "missing")], "No such file"),
        (["generate", "--file", str(tmp_path)], "directory"),
        (["generate", "--file", str(binary)], "UTF-8"),
        (["generate", "a\udcff"], "UTF-8"),
        (["generate", "a", "--trace", str(tmp_path / "no" / "t.jsonl")], "cannot write trace"),
    ]:
        assert run(arguments) == 2, arguments
        assert said in complaint(capsys)
    assert not [asked for asked in llm.asked if asked[0] == "a\udcff"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nope"], "--nope"),
        (["warp"], "warp"),
        (["generate", "hi", "--mode", "warp"], "speed, quality, draft-only"),
        (["generate", "hi", "--threshold", "-1"], "threshold"),
        (["generate", "hi", "--threshold", "nan"], "threshold"),
        (["generate", "hi", "--threshold", "high"], "threshold"),
        (["generate", "hi", "--edit-threshold", "1.5"], "edit_threshold"),
        (["generate", "hi", "--edit-threshold", "on"], "edit_threshold"),
        (["generate", "hi", "--max-tokens", "0"], "max_tokens"),
        (["generate", "hi", "--top-p", "0"], "top_p"),
        (["generate", "hi", "--seed", "-1"], "seed"),
        (["generate", "hi", "--stop", ""], "stop"),
        (["generate", "hi", "--logit-bias", "5"], "ID:VALUE"),
        (["generate", "hi", "--logit-bias", "a:1"], "'a:1'"),
        (["generate", "hi", "--logit-bias", "5:much"], "'5:much'"),
        (["generate", "hi", "--logit-bias", "5:101"], "logit_bias"),
        (["generate", "hi", "--presence-penalty", "3"], "presence_penalty"),
        (["generate", "hi", "--n", "0"], "n must be"),
        (["generate", "hi", "--logprobs", "2"], "--json"),
        (["generate", "hi", "--n", "2", "--trace", "t.jsonl"], "--trace"),
        (["generate", "hi", "--threads", "0"], "threads"),
        (["generate", "hi", "--dtype", "float8"], "dtype"),
        (["generate", "hi", "--device", "abacus"], "device"),
        (["generate", "hi", "--model", "/no/such/folder"], "/no/such/folder"),
        (["replay", "/no/such/trace"], "/no/such/trace"),
        (["replay"], "TRACE"),
        (["demo", "--prompts", "0"], "prompts"),
        (["train", "none.yaml"], "none.yaml"),
        (["train"], "recipe"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert said in complaint(capsys)


def test_half_a_checkpoint_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{")
    assert run(["generate", "hi", "--model", str(tmp_path)]) == 2
    complaint(capsys)


def test_env_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["cores"] >= 1 and facts["packages"]["torch"]
    assert run(["env"]) == 0
    assert "python" in capsys.readouterr().out


def test_demo_shows_and_grades(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--seed", "5", "--prompts", "4", "--shown", "1"]) == 0
    out = capsys.readouterr().out
    assert "seed 5" in out and "speed" in out and "quality" in out and "1.40" in out
    assert [params.mode for _, params in llm.asked] == ["speed"] * 5 + ["quality"] * 4
    assert run(["demo", "--seed", "5", "--prompts", "4", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["seed"] == 5
    assert [score["prompts"] for score in record["scores"]] == [4, 4]


def test_demo_prompts_are_held_out_and_follow_the_seed() -> None:
    from redraft.cli.demo import held_out
    from redraft.skills.base import split_of

    tasks = held_out(3, 12)
    assert tasks == held_out(3, 12)
    assert tasks != held_out(4, 12)
    splits = [split_of(task.composition, task.prompt) for task in tasks]
    assert splits.count("seen") == splits.count("test") == 6


def test_recipes_are_found_by_path_and_by_name(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("seed: 1\n")
    assert recipe_path(str(own)) == own
    assert recipe_path("nano.yaml").name == "nano.yaml"
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        recipe_path("absent.yaml")
