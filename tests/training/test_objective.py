"""Noise, streams, drafts: what the objective trains on, and its gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import tiny_model
from tests.training.test_layout import EOS, MASK, MODEL, conversation

from redraft.errors import ConfigError
from redraft.model.network import LLaDA2
from redraft.training.draft import DraftConfig
from redraft.training.layout import Layout, lay_out
from redraft.training.noise import NoiseConfig, Noisy, add_noise
from redraft.training.objective import DraftAndEdit, Draws, ObjectiveConfig, Prepared
from redraft.types import Sample

REPLACEMENTS = np.arange(40)
DRAWS = Draws(seed=3, step=5, mask_id=MASK, eos_ids=(EOS,), block_length=4, replacements=REPLACEMENTS)
NO_DRAFT = DraftConfig(share=0.0)


def samples(count: int = 6) -> list[Sample]:
    rng = np.random.default_rng(0)
    return [conversation(rng, [(3 + i, 10), (2, 3)][: 1 + i % 2], index=100 + i) for i in range(count)]


def laid_out(documents: list[Sample] | None = None, copies: int = 1) -> Layout:
    return lay_out(documents or samples(), 4, (EOS,), copies=copies)


def noise(layout: Layout, step: int = 5, **config: Any) -> Noisy:
    return add_noise(layout, NoiseConfig(**config), seed=3, step=step, mask_id=MASK, replacements=REPLACEMENTS)


def prepared(model: LLaDA2, config: ObjectiveConfig, documents: list[Sample] | None = None) -> Prepared:
    return DraftAndEdit(config, fill=4).prepare(model, documents or samples(), DRAWS)


def loss_of(model: LLaDA2, config: ObjectiveConfig, item: Prepared) -> torch.Tensor:
    return DraftAndEdit(config, fill=4).loss(model, item, item.counts)[0]


@pytest.mark.parametrize("merge", [0.0, 0.7])
def test_noise_does_not_depend_on_the_forward(merge: float) -> None:
    config: dict[str, Any] = {"merge": merge, "levels": "stratified"}
    whole = laid_out(copies=2)
    together = noise(whole, **config)
    for document, sample in zip(whole.documents, samples(), strict=True):
        alone = noise(laid_out([sample], copies=2), **config)
        for name in ("tokens_MN", "masked_MN", "ratio_MN"):
            assert torch.equal(getattr(together, name)[:, document.noisy], getattr(alone, name))
        run = together.run_MN[:, document.noisy]
        assert torch.equal(run - run[:, :1], alone.run_MN)


def test_noise_changes_with_the_step_and_the_copy() -> None:
    layout = laid_out(copies=2)
    first, second = noise(layout), noise(layout, step=6)
    assert not torch.equal(first.masked_MN, second.masked_MN)
    assert not torch.equal(first.masked_MN[0], first.masked_MN[1])


def test_the_prompt_stays_clean() -> None:
    layout = laid_out()
    out = noise(layout, ratio_min=1.0, ratio_max=1.0)
    assert torch.equal(out.masked_MN[0], layout.supervised_N)
    assert torch.equal(out.tokens_MN[0][~layout.supervised_N], layout.target_N[~layout.supervised_N])


def test_shares_of_masks_and_replacements() -> None:
    big = [Sample(np.full(4000, 45, np.int32), np.ones(4000, bool), i) for i in range(4)]
    out = noise(laid_out(big), ratio_min=0.3, ratio_max=0.3, full=0.0, replace_max=0.4)
    masked = out.masked_MN.float().mean().item()
    wrong = ((out.tokens_MN != 45) & ~out.masked_MN).sum().item() / (~out.masked_MN).sum().item()
    assert masked == pytest.approx(0.3, abs=0.02) and wrong == pytest.approx(0.2, abs=0.02)
    assert not ((out.tokens_MN == MASK) & ~out.masked_MN).any()


def test_complementary_copies_mask_every_position_once() -> None:
    layout = laid_out(copies=4)
    out = noise(layout, complementary=True, full=0.3)
    for pair in (0, 2):
        assert torch.equal(out.masked_MN[pair] ^ out.masked_MN[pair + 1], layout.supervised_N)
        ratio = out.ratio_MN[pair : pair + 2, layout.supervised_N]
        torch.testing.assert_close(ratio.sum(0), torch.ones_like(ratio[0]), rtol=0, atol=2e-3)
    with pytest.raises(ConfigError, match="even"):
        noise(laid_out(copies=3), complementary=True)


def test_a_stratified_document_has_one_ratio_in_each_part_of_the_band() -> None:
    layout = laid_out([conversation(np.random.default_rng(0), [(0, 16)])], copies=2)
    out = noise(layout, levels="stratified", full=0.0, ratio_min=0.2, ratio_max=1.0)
    ratios = sorted({round(float(r), 12) for r in out.ratio_MN.flatten()})
    assert len(ratios) == 8
    assert [int((ratio - 0.2) / 0.8 * 8) for ratio in ratios] == list(range(8))


def test_antithetic_copies_mirror_each_other_and_a_sequence_has_one_ratio() -> None:
    layout = laid_out([conversation(np.random.default_rng(0), [(0, 16)])], copies=2)
    mirrored = noise(layout, levels="antithetic", full=0.0, ratio_min=0.2, ratio_max=1.0).ratio_MN
    torch.testing.assert_close(mirrored.sum(0), torch.full((16,), 1.2, dtype=torch.float64))
    alike = noise(layout, ratio_per="sequence").ratio_MN
    assert all(len(set(copy.tolist())) == 1 for copy in alike) and alike[0, 0] != alike[1, 0]


def test_merged_runs_stay_in_their_span_and_only_their_last_block_has_masks() -> None:
    documents = [conversation(np.random.default_rng(i), [(0, 18), (3, 17)], index=i) for i in range(20)]
    layout = laid_out(documents, copies=2)
    out = noise(layout, merge=1.0, merge_blocks=3, ratio_min=1.0)
    lengths = set()
    for copy in range(2):
        for document in layout.documents:
            run = out.run_MN[copy, document.noisy]
            span = torch.from_numpy(document.span_U)[layout.unit_N[document.noisy] - layout.unit_N[document.noisy][0]]
            for first in run.unique():
                inside = run == first
                assert len(span[inside].unique()) == 1
                unit = layout.unit_N[document.noisy][inside]
                lengths.add(len(unit.unique()))
                masked = out.masked_MN[copy, document.noisy][inside]
                assert not masked[unit < unit.max()].any() and masked[unit == unit.max()].all()
    assert lengths == {1, 2, 3}


def test_the_streams_split_the_supervised_positions() -> None:
    model, config = tiny_model(**MODEL), ObjectiveConfig(copies=2, mtf=NO_DRAFT)
    item = prepared(model, config)
    _, sums = DraftAndEdit(config, fill=4).loss(model, item, item.counts)
    assert item.counts["draft"] == int(item.rounds[0].masked_MN.sum()) > 0
    assert item.counts["draft"] + item.counts["edit"] == 2 * int(item.layout.supervised_N.sum())
    assert sums["wrong"] > 0 and sums["draft_loss"] > 0 and sums["edit_loss"] > 0


@pytest.mark.parametrize("changes", [{}, {"weighting": "elbo", "confidence": 0.3}, {"balance_weight": 0.7}])
def test_the_sums_of_forwards_add_up(changes: dict[str, Any]) -> None:
    model = tiny_model(**MODEL)
    config = ObjectiveConfig(copies=2, mtf=DraftConfig(share=0.7), **changes)
    objective = DraftAndEdit(config, fill=4)
    whole = prepared(model, config)
    parts = [prepared(model, config, part) for part in (samples()[:2], samples()[2:])]
    assert whole.counts == {name: sum(part.counts[name] for part in parts) for name in whole.counts}
    loss, sums = objective.loss(model, whole, whole.counts)
    pieces = [objective.loss(model, part, whole.counts) for part in parts]
    assert float(loss.detach()) == pytest.approx(sum(float(piece.detach()) for piece, _ in pieces), rel=1e-9)
    for name, value in sums.items():
        assert value == pytest.approx(sum(piece[name] for _, piece in pieces), rel=1e-9)
    assert objective.report(sums, whole.counts)["loss"] == pytest.approx(float(loss.detach()), rel=1e-9)


def test_elbo_weights_are_one_over_t() -> None:
    model, config = tiny_model(**MODEL), ObjectiveConfig(weighting="elbo", edit_weight=0.0, mtf=NO_DRAFT)
    item = prepared(model, config)
    noisy, where = item.rounds[0], item.layout.supervised_MN
    from redraft.training.forward import noisy_hidden

    logits = model.head(noisy_hidden(model, item.layout, noisy))[where]
    loss = torch.nn.functional.cross_entropy(logits, item.layout.target_MN[where], reduction="none")
    expected = (loss / noisy.ratio_MN[where])[noisy.masked_MN[where]].sum() / where.sum()
    assert float(loss_of(model, config, item).detach()) == pytest.approx(float(expected.detach()), rel=1e-9)


@pytest.mark.parametrize(
    "config",
    [
        ObjectiveConfig(copies=2, noise=NoiseConfig(merge=0.7, levels="antithetic")),
        ObjectiveConfig(copies=2, weighting="elbo", confidence=0.5, noise=NoiseConfig(complementary=True)),
        ObjectiveConfig(mtf=DraftConfig(share=1.0, rounds=3, train_rounds="all"), draft_weight=0.3, edit_weight=2.0),
        ObjectiveConfig(copies=2, mtf=DraftConfig(share=1.0, train_rounds="all"), balance_weight=3.0),
    ],
)
def test_the_gradient_is_that_of_finite_differences(config: ObjectiveConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    smaller: dict[str, Any] = {"num_hidden_layers": 2}
    model = tiny_model(**MODEL | smaller)
    item = prepared(model, config, samples(3))
    loss_of(model, config, item).backward()
    rng, step = np.random.default_rng(0), 1e-6
    chosen = [(p, int(rng.integers(p.numel()))) for p in model.parameters() if p.grad is not None]
    routes = _fixed_routes(model, monkeypatch, lambda: loss_of(model, config, item))
    for parameter, i in chosen:
        flat = parameter.data.view(-1)
        before, values = flat[i].item(), []
        for sign in (1, -1):
            flat[i] = before + sign * step
            routes.rewind()
            values.append(float(loss_of(model, config, item).detach()))
        flat[i] = before
        assert parameter.grad is not None
        exact = parameter.grad.view(-1)[i].item()
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(exact, abs=2e-6, rel=1e-4)


class _fixed_routes:
    """Records the experts that each forward chooses, and then replays them: routing isn't differentiable."""

    def __init__(self, model: LLaDA2, monkeypatch: pytest.MonkeyPatch, run: Any):
        from redraft.model.router import Router

        self.seen: list[torch.Tensor] = []
        self.at: int | None = None
        choose = Router._grouped

        def remembered(router: Router, biased: torch.Tensor) -> torch.Tensor:
            if self.at is None:
                self.seen.append(choose(router, biased))
                return self.seen[-1]
            self.at += 1
            return self.seen[self.at - 1]

        monkeypatch.setattr(Router, "_grouped", remembered)
        with torch.no_grad():
            run()
        self.at = 0

    def rewind(self) -> None:
        self.at = 0


def test_a_draft_fills_some_masks_with_the_models_own_tokens() -> None:
    model = tiny_model(**MODEL)
    plain = prepared(model, ObjectiveConfig(mtf=NO_DRAFT)).rounds[0]
    sure = DraftConfig(share=1.0, threshold_min=0.99, threshold_max=0.99)
    item = prepared(model, ObjectiveConfig(mtf=sure))
    drafted, unit_N = item.rounds[0], item.layout.unit_N
    filled = plain.masked_MN & ~drafted.masked_MN
    assert torch.equal(plain.tokens_MN[~filled], drafted.tokens_MN[~filled])
    assert not (drafted.tokens_MN[filled] == MASK).any()
    # A threshold that nothing passes still fills the surest position of every block that has a mask.
    for unit in range(int(unit_N.max()) + 1):
        here = unit_N == unit
        assert int(filled[0, here].sum()) == int(plain.masked_MN[0, here].any())


def test_no_gradient_flows_through_the_draft_and_none_before_its_start() -> None:
    model = tiny_model(**MODEL)
    early = prepared(model, ObjectiveConfig(mtf=DraftConfig(share=1.0, start=6))).rounds[0]
    assert torch.equal(early.masked_MN, prepared(model, ObjectiveConfig(mtf=NO_DRAFT)).rounds[0].masked_MN)
    prepared(model, ObjectiveConfig(mtf=DraftConfig(share=1.0)))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_all_rounds_or_the_last_carry_loss() -> None:
    model = tiny_model(**MODEL)
    mtf = DraftConfig(share=1.0, rounds=3)
    last = prepared(model, ObjectiveConfig(mtf=mtf))
    every = prepared(model, ObjectiveConfig(mtf=replace(mtf, train_rounds="all")))
    assert len(last.rounds) == 1 and len(every.rounds) == 3
    assert torch.equal(every.rounds[2].tokens_MN, last.rounds[0].tokens_MN)
    assert every.counts["masked"] == sum(int(noisy.masked_MN.sum()) for noisy in every.rounds)


@pytest.mark.parametrize(
    ("section", "values", "says"),
    [
        (ObjectiveConfig, {"copies": 0}, "copies"),
        (ObjectiveConfig, {"weighting": "1/t"}, "flat"),
        (ObjectiveConfig, {"balance_weight": -0.1}, "objective.balance_weight must be at least 0"),
        (ObjectiveConfig, {"kind": "preference", "balance_weight": 0.1}, "no effect with objective.kind"),
        (ObjectiveConfig, {"draft_weight": 0.0, "edit_weight": 0.0}, "both"),
        (ObjectiveConfig, {"copies": 3, "noise": NoiseConfig(complementary=True)}, "even"),
        (ObjectiveConfig, {"copies": 1, "noise": NoiseConfig(levels="antithetic")}, "antithetic needs an even"),
        (NoiseConfig, {"ratio_min": 0.9, "ratio_max": 0.1}, "min <= max"),
        (NoiseConfig, {"levels": "even"}, "stratified"),
        (NoiseConfig, {"merge_blocks": 1}, "at least 2"),
        (DraftConfig, {"train_rounds": "first"}, "last"),
        (DraftConfig, {"rounds": 0}, "rounds >= 1"),
    ],
)
def test_settings_out_of_range_are_refused(section: Any, values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        section(**values)
