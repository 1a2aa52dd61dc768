"""How often an answer's text, rendered again as a turn of its conversation, has other ids than were generated.

    python -m bench.retokenised [--prompts 30] [--seed 0] [--mode quality]

Where it differs, the engine's prefix cache ends: a client who sends ids back instead of text keeps all of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import takewhile

from redraft.engine.llm import LLM
from redraft.eval.skills import draw_tasks
from redraft.skills import SKILLS
from redraft.types import SamplingParams

FOLLOW_UP = {"role": "user", "content": "Why?"}


def kept(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids `second` begins with that are those of `first`."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def measure(llm: LLM, prompts: int, seed: int, params: SamplingParams) -> dict[str, float]:
    """Of held-out tasks, as many of each skill."""
    tasks = [task for task, _ in draw_tasks(seed, -(-prompts // len(SKILLS)))][:prompts]
    answers = llm.generate([llm.render(task.messages, list(task.tools) or None) for task in tasks], params)
    changed = tokens = lost = 0
    for task, answer in zip(tasks, answers, strict=True):
        ids = [token for token in answer.token_ids if token not in llm.control.eos]
        turns = [*task.messages, {"role": "assistant", "content": answer.text}, FOLLOW_UP]
        again = llm.render(turns, list(task.tools) or None)
        same = kept([*answer.prompt_token_ids, *ids], again) - len(answer.prompt_token_ids)
        tokens += len(ids)
        changed += same < len(ids)
        lost += len(ids) - same
    return {
        "answers": len(answers),
        "changed": changed,
        "tokens": tokens,
        "tokens_from_the_first_difference_on": lost,
        "ended_by_eos": sum(answer.finish_reason == "stop" for answer in answers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a checkpoint folder; the embedded model without it")
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", default="quality")
    arguments = parser.parse_args()
    params = SamplingParams(mode=arguments.mode)
    print(json.dumps(measure(LLM(arguments.model), arguments.prompts, arguments.seed, params)))


if __name__ == "__main__":
    main()
