"""Noise, streams and the multi-turn draft."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.tiny import tiny_model
from tests.training.test_layout import MODEL, document

from redraft.training.layout import lay_out
from redraft.training.noise import NoiseConfig, add_noise
from redraft.training.objective import Draws, ObjectiveConfig, corrupt, stream_sums
from redraft.types import Sample

MASK, REPLACEMENTS = 49, np.arange(40)
DRAWS = Draws(seed=3, step=5, mask_id=MASK, replacements=REPLACEMENTS)


def samples(count: int = 6) -> list[Sample]:
    rng = np.random.default_rng(0)
    return [document(rng, prompt=3 + i, blocks=4, length=4, index=100 + i) for i in range(count)]


def noise(layout, config: NoiseConfig = NoiseConfig(), step: int = 5):
    return add_noise(layout, config, seed=3, step=step, mask_id=MASK, replacements=REPLACEMENTS)


def test_noise_does_not_depend_on_the_micro_batch() -> None:
    together = noise(lay_out(samples(), 4, copies=2))
    for row, sample in enumerate(samples()):
        alone = noise(lay_out([sample], 4, copies=2))
        width = alone.tokens_BMN.shape[2]
        assert torch.equal(together.masked_BMN[row, :, :width], alone.masked_BMN[0])
        supervised = lay_out([sample], 4, copies=2).supervised_BN[0]
        assert torch.equal(together.tokens_BMN[row, :, :width][:, supervised], alone.tokens_BMN[0][:, supervised])


def test_noise_changes_with_the_step_and_the_copy() -> None:
    layout = lay_out(samples(), 4, copies=2)
    first, second = noise(layout), noise(layout, step=6)
    assert not torch.equal(first.masked_BMN, second.masked_BMN)
    assert not torch.equal(first.masked_BMN[:, 0], first.masked_BMN[:, 1])


def test_the_prompt_stays_clean() -> None:
    layout = lay_out(samples(), 4)
    out = noise(layout, NoiseConfig(ratio_min=1.0, ratio_max=1.0))
    assert torch.equal(out.masked_BMN[:, 0], layout.supervised_BN)
    prompt = ~layout.supervised_BN
    assert torch.equal(out.tokens_BMN[:, 0][prompt], layout.target_BN[prompt])


def test_shares_of_masks_and_replacements() -> None:
    big = [Sample(np.full(4000, 45, np.int32), np.ones(4000, bool), i) for i in range(4)]
    layout = lay_out(big, 4)
    out = noise(layout, NoiseConfig(ratio_min=0.3, ratio_max=0.3, full=0.0, replace_max=0.4))
    masked = out.masked_BMN.float().mean().item()
    wrong = ((out.tokens_BMN != 45) & ~out.masked_BMN).sum().item() / (~out.masked_BMN).sum().item()
    assert masked == pytest.approx(0.3, abs=0.02) and wrong == pytest.approx(0.2, abs=0.02)
    assert not ((out.tokens_BMN == MASK) & ~out.masked_BMN).any()


def test_the_streams_split_the_supervised_positions() -> None:
    model = tiny_model(**MODEL)
    layout = lay_out(samples(), 4, copies=2)
    noisy = corrupt(model, layout, ObjectiveConfig(copies=2, mtf=0.0), DRAWS)
    sums = stream_sums(model, layout, noisy)
    assert sums.draft_count == int(noisy.masked_BMN.sum()) > 0
    assert sums.draft_count + sums.edit_count == 2 * int(layout.supervised_BN.sum())
    assert sums.wrong_count > 0 and sums.draft_loss > 0 and sums.edit_loss > 0


def test_the_sums_of_micro_batches_add_up() -> None:
    model = tiny_model(**MODEL)
    config = ObjectiveConfig(copies=2, mtf=0.7)
    whole = lay_out(samples(), 4, copies=2)
    together = stream_sums(model, whole, corrupt(model, whole, config, DRAWS))
    parts = []
    for part in (samples()[:2], samples()[2:]):
        layout = lay_out(part, 4, copies=2)
        parts.append(stream_sums(model, layout, corrupt(model, layout, config, DRAWS)))
    for name in ("draft_count", "edit_count", "wrong_count"):
        assert getattr(together, name) == sum(getattr(part, name) for part in parts)
    for name in ("draft_loss", "edit_loss"):
        summed = sum(float(getattr(part, name).detach()) for part in parts)
        assert float(getattr(together, name).detach()) == pytest.approx(summed, rel=1e-9)


def test_a_draft_fills_some_masks_with_the_models_own_tokens() -> None:
    model = tiny_model(**MODEL)
    layout = lay_out(samples(), 4)
    plain = corrupt(model, layout, ObjectiveConfig(mtf=0.0), DRAWS)
    drafted = corrupt(model, layout, ObjectiveConfig(mtf=1.0, mtf_threshold_min=0.99, mtf_threshold_max=0.99), DRAWS)
    filled = plain.masked_BMN & ~drafted.masked_BMN
    assert torch.equal(plain.tokens_BMN[~filled], drafted.tokens_BMN[~filled])
    assert not (drafted.tokens_BMN[filled] == MASK).any()
    # A threshold that nothing passes still fills the surest position of every block that has a mask.
    had_mask = plain.masked_BMN.unflatten(2, (-1, 4)).any(-1)
    assert torch.equal(filled.unflatten(2, (-1, 4)).sum(-1), had_mask.long())


def test_no_gradient_flows_through_the_draft_and_none_before_its_start() -> None:
    model = tiny_model(**MODEL)
    layout = lay_out(samples(), 4)
    early = corrupt(model, layout, ObjectiveConfig(mtf=1.0, mtf_start=6), DRAWS)
    assert torch.equal(early.masked_BMN, corrupt(model, layout, ObjectiveConfig(mtf=0.0), DRAWS).masked_BMN)
    corrupt(model, layout, ObjectiveConfig(mtf=1.0), DRAWS)
    assert all(parameter.grad is None for parameter in model.parameters())
