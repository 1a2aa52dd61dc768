"""From the engine benchmark's runs to ratios, checks and the table that is printed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.engine_cases import Case, Outcome
from bench.sampling import spread


def agreement(own: Outcome, first: Outcome, *, forwards: bool) -> dict[str, Any]:
    """Whether an arm did the work of its case's first arm: as many tokens of each answer, as many forwards if asked;
    and how many of the answers are equal token for token."""
    lengths = [len(tokens) for tokens in own.tokens] == [len(tokens) for tokens in first.tokens]
    return {
        "same_work": lengths and bool(own.tokens) and (not forwards or own.forwards == first.forwards),
        "answers_equal": sum(mine == theirs for mine, theirs in zip(own.tokens, first.tokens, strict=False)),
        "answers": len(first.tokens),
    }


def summary(cases: Sequence[Case], runs: Sequence[Mapping[str, Any]], *, exact: bool) -> dict[str, Any]:
    """One row for each case and arm. exact: answers must be equal token for token.

    sound: every ratio has a valid pair of runs, and the arms did the same work. met: no ratio misses its target.
    """
    rows, checks = [], []
    for case in cases:
        own = [run for run in runs if run["case"] == case.name]
        first = next(iter(case.arms))
        base = {run["round"]: run["seconds"] for run in own if run["arm"] == first and not run["void"]}
        for arm in case.arms:
            mine = [run for run in own if run["arm"] == arm]
            valid = [run for run in mine if not run["void"]]
            pairs = [run["seconds"] / base[run["round"]] for run in valid if run["round"] in base]
            target = case.targets.get(arm)
            ratio = with_quartiles(pairs)
            rows.append(
                {
                    "case": case.name,
                    "arm": arm,
                    "seconds": with_quartiles([run["seconds"] for run in valid]),
                    "ratio": ratio,
                    "target": target,
                    "met": None if target is None or ratio is None else ratio["median"] >= target,
                    "facts": medians([run["facts"] for run in valid]),
                    "void": len(mine) - len(valid),
                }
            )
            if arm in case.compared and mine:
                equal, answers = (sum(run[name] for run in mine) for name in ("answers_equal", "answers"))
                same = all(run["same_work"] for run in mine)
                checks.append(
                    {
                        "case": case.name,
                        "arm": arm,
                        "same_work": same,
                        "answers_equal": equal,
                        "answers": answers,
                        "passed": same and (not exact or equal == answers),
                    }
                )
    sound = bool(runs) and all(row["ratio"] for row in rows) and all(check["passed"] for check in checks)
    return {"summary": rows, "checks": checks, "sound": sound, "met": all(row["met"] is not False for row in rows)}


def with_quartiles(values: Sequence[float]) -> dict[str, float | int] | None:
    """`spread`, and the quartiles between which the middle half lies; None of nothing."""
    known = spread(values)
    if known is None:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return known | {"lower_quartile": low, "upper_quartile": high}


def medians(facts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each fact over the runs."""
    return {name: statistics.median(one[name] for one in facts) for name in (facts[0] if facts else ())}


def table(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The summary as text. Ratio: times the seconds of the case's first arm, median (lowest to highest)."""
    lines = ["", f"{'':2}{'case':48} {'arm':25} {'seconds':>9} {'ratio':>7} {'spread':>16} {'target':>7} {'void':>5}"]
    for part, results in parts.items():
        for row in results["summary"]:
            seconds, ratio, target = row["seconds"], row["ratio"], row["target"]
            shown = (
                f"{seconds['median']:.4f}" if seconds else "void",
                f"{ratio['median']:.3f}" if ratio else "void",
                f"({ratio['min']:.3f} to {ratio['max']:.3f})" if ratio else "",
                "" if target is None else f"{target:g}{' !' if row['met'] is False else ''}",
            )
            lines.append(
                f"{part} {row['case']:48} {row['arm']:25} {shown[0]:>9} {shown[1]:>7} {shown[2]:>16} {shown[3]:>7} "
                f"{row['void']:5}"
            )
        for floor in results.get("floors", ()):
            lines.append(
                f"{part} floor of {floor['rows']} x context {floor['context']}: {floor['floor_seconds']:.4f} s "
                f"(reading {floor['bytes'] / 1e9:.2f} GB {floor['memory_seconds']:.4f} s, "
                f"arithmetic {floor['arithmetic_seconds']:.4f} s)"
            )
        for check in results["checks"]:
            work = "the same" if check["same_work"] else "DIFFERS"
            lines.append(
                f"{part} check {check['case']}, {check['arm']}: work {work}, "
                f"{check['answers_equal']} of {check['answers']} answers equal token for token"
            )
        if results["skipped"]:
            lines.append(f"{part} left out for want of time: {len(results['skipped'])} rounds of a case (see the file)")
    return "\n".join(lines)
