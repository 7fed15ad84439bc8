"""The measurement of the verdict: enough cases, right priors, rows that are kept, rates that are counted right."""

from __future__ import annotations

import pytest
import torch

import reprior
from reprior import priors
from reprior_bench import tasks
from reprior_bench import verdict_cases, verdicts
from reprior_bench.verdict_cases import KINDS, PLAN, Case, cases, observation_of, target_of
from reprior_bench.verdicts import by_kind, rates, read, regrade, run
from reprior.diagnostics.checks import MEANINGS, Thresholds
from reprior.networks.fit import Training
from reprior.errors import InputError


def test_there_are_enough_cases():
    found = list(cases(seed=1))
    assert len(found) >= 60
    assert len({c.key for c in found}) == len(found)
    assert {(c.task, c.regime) for c in found} == {(t, r) for t in verdict_cases.TASKS for r in ("id", "ood")}
    for task in verdict_cases.TASKS:
        assert {c.kind for c in found if c.task == task} == set(KINDS)


@pytest.mark.parametrize("name", ["two_moons", "gaussian_linear", "oup"])
def test_shift_is_measured_in_standard_deviations_of_the_prior(name):
    mean, cov = verdict_cases.moments(tasks.get(name).training_prior("ood"))
    for k in (1, 6):
        q = target_of(Case(name, "ood", f"shift{k}", 0))
        moved, wide = verdict_cases.moments(q)
        gap = moved - mean
        assert float((gap @ torch.linalg.solve(cov, gap)).sqrt()) == pytest.approx(k, rel=1e-4)
        assert torch.allclose(wide, cov, atol=1e-5)


def test_every_kind_has_a_prior_and_an_observation():
    for kind in KINDS:
        case = Case("gaussian_linear", "id", kind, 3)
        assert priors.sample(target_of(case), 5, 0).shape == (5, 6)
        assert torch.equal(observation_of(case), observation_of(case))
    assert not torch.equal(observation_of(Case("oup", "id", "none", 3)), observation_of(Case("oup", "id", "none", 4)))
    with pytest.raises(InputError, match="kind 'odd' is unknown"):
        Case("oup", "id", "odd", 0)


def test_rates_count_only_the_clear_cases():
    rows = [
        {"c2st_fast": "0.70", "verdict": "caution"},
        {"c2st_fast": "0.90", "verdict": "do not trust"},
        {"c2st_fast": "0.61", "verdict": "ok"},
        {"c2st_fast": "0.58", "verdict": "caution"},  # between: not counted
        {"c2st_fast": "0.51", "verdict": "ok"},
        {"c2st_fast": "0.52", "verdict": "caution"},
        {"c2st_fast": "", "verdict": "refused"},
    ]
    found = rates(rows)
    assert (found["high"], found["low"], found["refused"]) == (3, 2, 1)
    assert found["caught"] == pytest.approx(2 / 3)
    assert found["passed"] == pytest.approx(1 / 2)


def test_regrade_follows_thresholds_and_what_a_check_may_say():
    row = dict.fromkeys(MEANINGS, "") | {"verdict": "ok", "method": "transport", "agreement": "0.6", "k_hat": "2"}
    assert regrade(row, Thresholds(agreement=(0.61, 0.7))) == "ok"  # k-hat is not judged for transport
    assert regrade(row, Thresholds(agreement=(0.55, 0.7))) == "caution"
    assert regrade(row, Thresholds(agreement=(0.5, 0.55))) == "do not trust"
    assert regrade(row | {"method": "sir"}, Thresholds(agreement=(0.61, 0.7))) == "do not trust"
    few = dict.fromkeys(MEANINGS, "") | {"verdict": "ok", "method": "transport", "pairs": "0.1"}
    assert regrade(few, Thresholds()) == "caution"


def test_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    made = []

    def fake(case, posterior, settings):
        made.append(case.key)
        if len(made) == 5:
            raise KeyboardInterrupt
        known = {"task": case.task, "regime": case.regime, "kind": case.kind, "seed": case.seed}
        return {**known, "method": "none", "verdict": "ok", "c2st_fast": "0.5"}

    monkeypatch.setattr(verdicts, "run_case", fake)
    monkeypatch.setattr(verdicts, "get_base", lambda *a, **k: object())
    out = tmp_path / "table.csv"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, out, seed=7, names=("oup",))
    found = run(tmp_path, out, seed=7, names=("oup",))
    planned = sum(len(kinds) for kinds in PLAN.values())
    assert found["cases"] == planned
    assert found["passed"] == 1.0
    assert len(made) == planned + 1  # the interrupted one was run again, no other
    assert read(out) == []  # those of the evaluation seed
    table = by_kind(read(out, seed=7))
    assert sum(row["ok"] for row in table) == planned
    assert {row["kind"]: row["c2st_fast"] for row in table}["wide"] == "0.50 to 0.50"


def test_broken_ones_are_broken():
    # Both must move the denoised mean far beyond rounding, and leave the sound base as it was.
    prior = tasks.get("gaussian_linear").training_prior("id")
    theta = priors.sample(prior, 500, 0)
    x = tasks.get("gaussian_linear").simulate(theta, 1)
    training = Training(steps=20, batch=100, learning_rate=0.01)
    sound = reprior.train(theta, x, prior, training=training, progress=False)
    z, s = torch.zeros(50, 1, 6), torch.tensor(1.0)
    before = sound.condition(x[:1]).mean(z, s)
    shaken = verdict_cases._shaken(sound, 3)
    assert (shaken.condition(x[:1]).mean(z, s) - before).abs().max() > 1e-3
    ratio = verdict_cases._random_ratio(sound, tasks.get("gaussian_linear").target_prior("id"), 3)
    guided = ratio.guidance.guide(sound.condition(x[:1]), torch.Generator())
    assert (guided.mean(z, s) - before).abs().max() > 1e-2
    assert torch.equal(sound.condition(x[:1]).mean(z, s), before)
