"""From runs to ratios, and the table that is printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.sampling import spread

CELL = ("dtype", "threads", "prompt")


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Ratios to the cached decoder by cell and system, the checks, and whether all is sound.

    A ratio is between two runs of the same cell and round; void runs count in none.
    """
    asked = results["settings"]
    # A check of the size of a cell is a measurement of it too, the best there is.
    timed = [
        run
        for run in results["runs"]
        if not run["check"] or (run["new_tokens"] == asked["new_tokens"] and run["prompt"] in asked["prompts"])
    ]
    rows = []
    for cell in dict.fromkeys(tuple(run[key] for key in CELL) for run in timed):
        runs = [run for run in timed if tuple(run[key] for key in CELL) == cell]
        cached = {run["repeat"]: run["seconds"] for run in runs if run["system"] == "cached" and not run["void"]}
        for system in dict.fromkeys(run["system"] for run in runs):
            own = [run for run in runs if run["system"] == system]
            valid = [run for run in own if not run["void"]]
            seconds = [run["seconds"] for run in valid]
            ratios = [run["seconds"] / cached[run["repeat"]] for run in valid if run["repeat"] in cached]
            rows.append(
                dict(zip(CELL, cell, strict=True))
                | {
                    "system": system,
                    "ratio": spread(ratios),
                    "seconds": spread(seconds),
                    "seconds_per_forward": _per_forward(valid),
                    "tokens_per_second": own[0]["new_tokens"] / statistics.median(seconds) if seconds else None,
                    "forwards": own[0]["forwards"],
                    "forwards_measured": sum(run["forwards_measured"] for run in valid),
                    "sampled": any(run["sampled"] for run in own),
                    "steps_equal": sum(run["steps_equal"] for run in own),
                    "steps_compared": sum(run["steps_compared"] for run in own),
                    "void": len(own) - len(valid),
                }
            )
    checks = [_check(results["runs"], dtype) for dtype in _dtypes(results["runs"])]
    sound = (
        bool(rows)
        and all(check["passed"] for check in checks)
        and all(run["drafted_as_asked"] for run in results["runs"])
        and all(row["ratio"] for row in rows)
    )
    return {"summary": rows, "checks": checks, "sound": sound}


def _per_forward(runs: Sequence[dict[str, Any]]) -> float | None:
    """Median over the measured forwards, apart from the very first, in which the cached decoder reads the prompt."""
    steps = [
        seconds
        for run in runs
        for block, each in run["step_seconds"].items()
        for index, seconds in enumerate(each)
        if run["system"] != "cached" or (block, index) != ("0", 0)
    ]
    return statistics.median(steps) if steps else None


def _dtypes(runs: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(run["dtype"] for run in runs if run["check"]))


def _check(runs: Sequence[dict[str, Any]], dtype: str) -> dict[str, Any]:
    """Every forward of every system, on one task: equal forwards, and in float32 equal tokens."""
    own = [run for run in runs if run["check"] and run["dtype"] == dtype]
    forwards = {run["system"]: run["forwards_measured"] for run in own}
    tokens = {run["system"]: run["steps_equal"] == run["steps_compared"] > 0 for run in own}
    forwards_equal = len(set(forwards.values())) == 1
    return {
        "dtype": dtype,
        "prompt": own[0]["prompt"],
        "new_tokens": own[0]["new_tokens"],
        "threads": own[0]["threads"],
        "forwards": forwards,
        "forwards_equal": forwards_equal,
        "tokens_equal": tokens,
        "passed": forwards_equal and (dtype != "float32" or all(tokens.values())),
    }


def table(results: dict[str, Any]) -> str:
    """The summary as text. Ratio: times slower than the cached decoder, median (lowest to highest) of the rounds."""
    lines = [
        "",
        f"{'dtype':9} {'threads':>7} {'prompt':>6} {'system':10} {'seconds':>9} {'s/forward':>9} "
        f"{'ratio':>7} {'spread':>15} {'measured':>9} {'equal':>9}",
    ]
    for row in results["summary"]:
        ratio, seconds, each = row["ratio"], row["seconds"], row["seconds_per_forward"]
        shown = {
            "seconds": f"{seconds['median']:.2f}" if seconds else "void",
            "each": f"{each:.3f}" if each else "-",
            "ratio": f"{ratio['median']:.2f}" if ratio else "void",
            "spread": f"({ratio['min']:.2f} to {ratio['max']:.2f})" if ratio else "",
            "equal": f"{row['steps_equal']}/{row['steps_compared']}",
        }
        lines.append(
            f"{row['dtype']:9} {row['threads']:7} {row['prompt']:6} {row['system']:10} {shown['seconds']:>9} "
            f"{shown['each']:>9} {shown['ratio']:>7} {shown['spread']:>15} {row['forwards_measured']:9} "
            f"{shown['equal']:>9}"
        )
    for check in results["checks"]:
        differ = [name for name, equal in check["tokens_equal"].items() if not equal]
        lines.append(
            f"check {check['dtype']}, prompt {check['prompt']}, {check['new_tokens']} new tokens: "
            f"forwards {'equal' if check['forwards_equal'] else check['forwards']}, "
            f"tokens {'equal' if not differ else 'differ: ' + ', '.join(differ)}"
        )
    if results["skipped"]:
        lines.append(f"left out for want of time: {len(results['skipped'])} cell runs (see the file)")
    return "\n".join(lines)
