"""From training steps to ratios, utilisation and the table that is printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.sampling import spread

CELL = ("size", "dtype", "threads")
BASES = {"diffusers": ("redraft", "redraft-m2t")}  # what an arm's time is divided by; "redraft" where nothing is said
LOSS_TOLERANCE = 1e-4  # relative, in float32
MTF_TARGET = 1.4
TRAINING = 6  # operations of a parameter and position: 2 forward, 4 backward


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Rows by cell and arm, the checks, and whether all is sound. Void runs count in no figure of time."""
    rows, checks = [], []
    for cell in dict.fromkeys(tuple(run[key] for key in CELL) for run in results["runs"]):
        runs = [run for run in results["runs"] if tuple(run[key] for key in CELL) == cell]
        named: dict[str, Any] = dict(zip(CELL, cell, strict=True))
        by_arm = {arm: [run for run in runs if run["arm"] == arm] for arm in dict.fromkeys(run["arm"] for run in runs)}
        rows += [named | _row(results, named, arm, by_arm) for arm in by_arm]
        if "public" in by_arm:
            checks.append(named | _same_loss(by_arm, cell[1]))
    sound = bool(rows) and all(check["passed"] for check in checks)
    return {"summary": rows, "checks": checks, "sound": sound and all(all(row["ratios"].values()) for row in rows)}


def _row(
    results: dict[str, Any], cell: dict[str, Any], arm: str, by_arm: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    valid = {name: {run["repeat"]: run["seconds"] for run in runs if not run["void"]} for name, runs in by_arm.items()}
    bases = [base for base in BASES.get(arm, ("redraft",)) if base in by_arm]
    ratios = {
        base: spread([seconds / valid[base][i] for i, seconds in valid[arm].items() if i in valid[base]])
        for base in bases
    }
    seconds = spread(list(valid[arm].values()))
    one, size = by_arm[arm][0], results["sizes"][cell["size"]]
    per_second = 1 / seconds["median"] if seconds else None
    memory = [item for item in results["memory"] if item["arm"] == arm and all(item[k] == cell[k] for k in CELL)]
    return {
        "arm": arm,
        "seconds": seconds,
        "ratios": ratios,
        "document_tokens_per_second": per_second and size["document_tokens"] * per_second,
        "positions": one["positions"],
        "positions_per_second": per_second and one["positions"] * per_second,
        "scored": one["scored"],
        "loss": one["loss"],
        "gradient_norm": one["norm"],
        "utilisation": _utilisation(results["peaks"], size, one, cell["threads"], per_second),
        "memory": {key: memory[0][key] for key in ("before", "peak")} if memory else None,
        "void": len(by_arm[arm]) - len(valid[arm]),
    }


def _utilisation(
    peaks: Sequence[dict[str, Any]], size: dict[str, Any], run: dict[str, Any], threads: int, per_second: float | None
) -> dict[str, dict[str, float]] | None:
    """Share of each peak. `all`: 6 operations for every active parameter of a matrix product and position; `needed`:
    the head's at the scored positions only."""
    if per_second is None:
        return None
    layers, head = size["active_layer_parameters"], size["head_parameters"]
    work = {
        "all": TRAINING * run["positions"] * (layers + head),
        "needed": TRAINING * (run["positions"] * layers + run["scored"] * head),
    }
    best = {p["dtype"]: 0.0 for p in peaks}
    for peak in peaks:
        if peak["threads"] == threads:
            best[peak["dtype"]] = max(best[peak["dtype"]], peak["gflops"] * 1e9)
    return {name: {dtype: value * per_second / peak for dtype, peak in best.items()} for name, value in work.items()}


def _same_loss(by_arm: dict[str, list[dict[str, Any]]], dtype: str) -> dict[str, Any]:
    """The same step in every run of both trainers: in float32 their losses must agree."""
    ours = [run["loss"] for run in by_arm["redraft"]]
    theirs = [run["loss"] for run in by_arm["public"]]
    apart = max(abs(a - b) / abs(a) for a in ours for b in theirs)
    norms = [statistics.median(run["norm"] for run in by_arm[arm]) for arm in ("redraft", "public")]
    return {
        "loss_difference": apart,
        "gradient_norm_difference": abs(norms[0] - norms[1]) / norms[0],
        "passed": apart <= LOSS_TOLERANCE or dtype != "float32",
    }


def table(results: dict[str, Any]) -> str:
    """The summary as text. Ratios: times slower than redraft, median (lowest to highest) of the rounds."""
    lines = []
    for cell in dict.fromkeys(tuple(row[key] for key in CELL) for row in results["summary"]):
        rows = [row for row in results["summary"] if tuple(row[key] for key in CELL) == cell]
        size = results["sizes"][cell[0]]
        lines += [
            "",
            f"{cell[0]}: {size['parameters'] / 1e6:.1f}M parameters, {size['documents']} documents, "
            f"{size['document_tokens']} tokens; {cell[1]}, {cell[2]} thread{'s' * (cell[2] > 1)}",
            f"{'trainer':12} {'seconds':>8} {'tokens/s':>9} {'positions/s':>12} {'memory GB':>10}  slower than",
        ]
        lines += [_line(row) for row in rows]
        used = next((row["utilisation"] for row in rows if row["arm"] == "redraft"), None)
        for name, shares in (used or {}).items():
            where = "at every position" if name == "all" else "where its loss is"
            each = ", ".join(f"{share:.0%} of the {dtype} peak" for dtype, share in shares.items())
            lines.append(f"utilisation of redraft, the head counted {where}: {each}")
    for check in results["checks"]:
        lines.append(
            f"check {check['size']} {check['dtype']}: losses of redraft and public differ by "
            f"{check['loss_difference']:.1e}, gradient norms by {check['gradient_norm_difference']:.1e}"
            f"{'' if check['passed'] else ': TOO MUCH'}"
        )
    best: dict[tuple[str, int], float] = {}
    for peak in results["peaks"]:
        key = peak["dtype"], peak["threads"]
        best[key] = max(best.get(key, 0.0), peak["gflops"])
    lines += [f"peak {dtype}, {threads} threads: {rate:.0f} GFLOP/s" for (dtype, threads), rate in best.items()]
    if results["skipped"]:
        lines.append(f"left out for want of time: {len(results['skipped'])} (see the file)")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    seconds, memory = row["seconds"], row["memory"]
    shown = [f"{row['arm']:12}"]
    shown.append(f"{seconds['median']:8.2f}" if seconds else f"{'void':>8}")
    shown.append(f"{row['document_tokens_per_second']:9.0f}" if seconds else f"{'-':>9}")
    shown.append(f"{row['positions_per_second']:12.0f}" if seconds else f"{'-':>12}")
    shown.append(f"{memory['peak'] / 1e9:10.2f}" if memory else f"{'-':>10}")
    ratios = [
        f"{base} {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})" if ratio else f"{base} void"
        for base, ratio in row["ratios"].items()
        if base != row["arm"]
    ]
    if row["arm"].startswith("mtf") and row["ratios"].get("redraft"):
        ratios.append(f"(target {MTF_TARGET})")
    return " ".join((*shown, " " + ", ".join(ratios))).rstrip()
