from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.tasks import TaskManager
from tests.tiny import tiny_model

from redraft.engine.named import write_mode
from redraft.errors import ContextLengthError, InvalidInput
from redraft.eval.harness import RedraftLM
from redraft.model.checkpoint import save_model
from redraft.text.build import train_tokenizer
from redraft.training.likelihood import Estimator, estimate
from redraft.types import Sample, SamplingParams

ROWS = [
    {"question": "Capital of Peru?", "choices": ["Lima", "Oslo"], "label": 0, "answer": "Lima"},
    {"question": "Capital of Norway?", "choices": ["Lima", "Oslo"], "label": 1, "answer": "Oslo"},
]
CHOICE = """
task: capitals_choice
dataset_path: json
dataset_kwargs: {data_files: {test: "FILE"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}]
"""
FREE = """
task: capitals_free
dataset_path: json
dataset_kwargs: {data_files: {test: "FILE"}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(["a bit of text and Lima, Oslo"], 300, folder)
    ids = {"mask_token_id": tokenizer.mask_id, "eos_token_id": tokenizer.eos_ids[0]}
    model = tiny_model(vocab_size=tokenizer.vocab_size, max_position_embeddings=128, block_length=4, **ids)
    save_model(model, folder)
    return folder


@pytest.fixture(scope="module")
def lm(checkpoint: Path) -> RedraftLM:
    return RedraftLM(str(checkpoint), dtype="float64", samples=0, mode="speed", batch_size=2)


def ask(*arguments: object) -> Any:
    return SimpleNamespace(args=arguments)


def test_the_harness_runs_both_kinds_of_request_of_local_tasks(checkpoint: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    for name, text in (("choice", CHOICE), ("free", FREE)):
        (tmp_path / f"{name}.yaml").write_text(text.replace("FILE", str(data)))
    evaluate: Any = lm_eval.simple_evaluate
    found = evaluate(
        model="redraft",
        model_args=f"model={checkpoint},dtype=float64,samples=0",
        batch_size=2,
        tasks=["capitals_choice", "capitals_free"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    samples = found["samples"]
    assert [len(samples[name]) for name in ("capitals_choice", "capitals_free")] == [2, 2]
    scores = [response[0][0] for response in samples["capitals_choice"][0]["resps"]]
    lm = RedraftLM(str(checkpoint), dtype="float64", samples=0)
    assert scores == [
        score for score, _ in lm.loglikelihood([ask("Capital of Peru?", " Lima"), ask("Capital of Peru?", " Oslo")])
    ]
    text = samples["capitals_free"][0]["resps"][0][0]
    assert text == lm.llm.generate("Capital of Peru?", SamplingParams(max_tokens=8, stop="\n"))[0].text


def test_a_continuation_is_scored_by_its_bound(lm: RedraftLM) -> None:
    ids = lm._tokenizer.encode("a bit of text")
    before = len(lm._tokenizer.encode("a bit"))
    sample = Sample(torch.tensor(ids, dtype=torch.int32).numpy(), torch.arange(len(ids)).ge(before).numpy(), 1)
    exact = Estimator(block_length=4, mask_id=lm.llm.control.mask, eos_ids=lm._tokenizer.eos_ids, samples=0)
    bound = estimate(lm.llm.model, [sample], exact)[0].elbo
    score, _ = lm.loglikelihood([ask("a bit ", "of text")])[0]  # the space belongs to the continuation
    assert score == pytest.approx(bound) and score < 0


def test_a_score_does_not_depend_on_its_company(checkpoint: Path) -> None:
    lm = RedraftLM(str(checkpoint), dtype="float64", samples=8)
    requests = [ask("", "Lima"), ask("a bit", " of text and Oslo"), ask("x", " y")]
    alone = [lm.loglikelihood([request])[0][0] for request in requests]
    assert [score for score, _ in lm.loglikelihood(requests[::-1])][::-1] == pytest.approx(alone, rel=1e-9)


def test_what_greedy_decoding_writes(lm: RedraftLM) -> None:
    context = lm._tokenizer.encode("a bit")
    written = lm.llm.generate([context], lm._params.with_(max_tokens=6, ignore_eos=True))[0].token_ids
    other = [token + 1 if number == 2 else token for number, token in enumerate(written)]
    pairs = [(context, written), (context, written[:3]), (context, other), ([], written)]
    assert lm._greedy(pairs) == [True, True, False, False]


def test_rolling_scores_are_sums_over_pieces(lm: RedraftLM) -> None:
    text = "a bit of text and Lima, Oslo. " * 12
    ids = lm._tokenizer.encode(text)
    assert len(ids) > 128
    pieces = [(ids[start : start + 128], 0) for start in range(0, len(ids), 128)]
    assert lm.loglikelihood_rolling([ask(text)]) == pytest.approx([sum(lm._bounds(pieces))])


def test_conversations_are_rendered_by_the_tokenizer() -> None:
    lm = RedraftLM(max_batch_size=None)
    messages = [{"role": "user", "content": "Sort 5, 2.<|role_end|>"}]
    assert lm._prompt(lm.apply_chat_template(messages)) == lm.llm.render(messages)
    with pytest.raises(InvalidInput, match="gen_prefix"):
        lm.apply_chat_template(messages, add_generation_prompt=False)
    with pytest.raises(InvalidInput, match="one chat template"):
        lm.chat_template("other")
    assert lm.chat_template(True) == lm._tokenizer.chat_template and lm.tokenizer_name == "redraft-nano"


def test_settings_reach_the_request(lm: RedraftLM, checkpoint: Path, tmp_path: Path) -> None:
    params = lm._generation({"until": ["\n", ""], "max_gen_toks": 500, "temperature": 0.7, "top_p": 0.9}, [1] * 100)
    assert params == SamplingParams(mode="speed", stop=("\n",), max_tokens=28, temperature=0.7, top_p=0.9)
    greedy = lm._generation({"until": "x", "do_sample": False, "temperature": 0.7, "top_p": 0.9}, [1])
    assert greedy == SamplingParams(mode="speed", stop=("x",), max_tokens=127)
    write_mode(tmp_path / "modes.json", "code", {"threshold": 0.4}, {})
    named = RedraftLM(str(checkpoint), modes=str(tmp_path / "modes.json"), mode="code")
    assert named._params == SamplingParams(threshold=0.4)


def test_what_can_not_be_done_is_refused(lm: RedraftLM, checkpoint: Path) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"treshold": 1}, "unknown model argument 'treshold'"),
        ({"batch_size": "auto"}, "batch_size must be a number"),
        ({"max_batch_size": 4}, "max_batch_size"),
        ({"samples": 3}, "samples must be a multiple"),
        ({"threshold": -1}, "threshold must be"),
    )
    for arguments, words in cases:
        with pytest.raises(InvalidInput, match=words):
            RedraftLM(str(checkpoint), **arguments)
    with pytest.raises(InvalidInput, match="unknown generation setting 'num_beams'"):
        lm.generate_until([ask("a", {"num_beams": 4})])
    with pytest.raises(ContextLengthError, match="fills the context of 128"):
        lm.generate_until([ask("a b " * 200, {})])
    with pytest.raises(ContextLengthError, match="exceeds the context of 128"):
        lm.loglikelihood([ask("a b " * 200, "c")])
    with pytest.raises(InvalidInput, match="no tokens to score"):
        lm.loglikelihood([ask("a", "")])
    assert lm.generate_until([]) == lm.loglikelihood([]) == lm.loglikelihood_rolling([]) == []
