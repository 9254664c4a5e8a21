"""Pages have the numbers of the raw files, verdicts follow from intervals, and the campaign goes on where it ended."""

import json

import pytest

from tests.scripts import load

names = ("campaign", "claims", "claims_exarl", "claims_warpsci", "evidence", "reproduce")
campaign, claims, claims_exarl, claims_warpsci, evidence, reproduce = map(load, names)
PARTS = {"quiet": True, "foreign_cores": 0.0}


def raw(name, parts):
    return {"reproduce": {name: {"parts": {title: PARTS | {"values": values} for title, values in parts.items()}}}, "results": {}}


def rates(**cases):
    """Return raw numbers of sleeping ranks: CASE -> rates of the rounds, with _ for a space and a colon."""
    found = {}
    for case, values in cases.items():
        title = case.replace("_", " ", 1).replace("_", ":")
        found |= {f"{title} round={i}": {"rate": value, "unique": value} for i, value in enumerate(values)}
    return raw("exarl", found)


def test_pages_have_the_numbers_of_the_raw_files():
    assert reproduce.differences() == []


def test_a_changed_number_is_found(tmp_path, monkeypatch):
    page = tmp_path / "reproductions.md"
    page.write_text(reproduce.PAGE.read_text().replace("20 learners", "21 learners"))
    monkeypatch.setattr(reproduce, "PAGE", page)
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    monkeypatch.setattr(reproduce, "STUDIES", {})
    assert [line.split(":")[0] for line in reproduce.differences()] == ["reproductions.md, claims"]


def test_every_claim_has_a_verdict_of_the_list_without_numbers():
    nothing = {"reproduce": {}, "results": {}}
    assert {claim.answer(nothing).verdict for claim in claims.CLAIMS} == {evidence.UNTESTABLE, evidence.NOT_YET}
    numbers = {claim.name.split()[1] for claim in claims.CLAIMS if claim.name.startswith("EXARL ")}
    assert {number.strip(",") for number in numbers} >= {str(number) for number in range(1, 13)}


@pytest.mark.parametrize(
    ("several", "one", "verdict"),
    [
        ([14, 15, 14, 14, 15], [10, 10, 10, 10, 10], evidence.REPRODUCED),
        ([30, 31, 30, 32, 31], [10, 10, 10, 10, 10], evidence.IN_KIND),
        ([8, 8, 9, 8, 8], [10, 10, 11, 10, 10], evidence.CONTRADICTED),
        ([9, 14, 14, 14, 14], [10, 10, 10, 10, 10], evidence.UNDECIDED),
        ([14, 14, 14, 14], [10, 10, 10, 10, 10], evidence.NOT_YET),
    ],
    ids=["holds the number", "direction", "other direction", "both", "four rounds"],
)
def test_intervals_decide(several, one, verdict):
    answer = claims_exarl.faster("async 8:8", "async 1:8", 1.434)
    assert answer(rates(async_8_8=several, async_1_8=one)).verdict == verdict


def test_what_was_measured_beside_other_load_does_not_count():
    found = rates(async_8_8=5 * [14.0], async_1_8=5 * [10.0])
    assert claims_exarl.faster("async 8:8", "async 1:8")(found).verdict == evidence.IN_KIND
    for part in found["reproduce"]["exarl"]["parts"].values():
        part["quiet"] = False
    assert claims_exarl.faster("async 8:8", "async 1:8")(found).verdict == evidence.NOT_YET


def test_the_table_of_sleeping_ranks_has_runs_of_five_quiet_rounds():
    found = rates(async_1_1=[5.0, 3.0, 5.5, 5.0, 5.0], queue_1_1=4 * [6.0])
    for part in found["reproduce"]["exarl"]["parts"].values():
        part["values"] |= {"lag": 2.0, "learner_waiting": 0.1}
    (row,) = claims_exarl.of_page(found).splitlines()[2:]
    assert row == "| `async 1:1` | 5.00 [3.00, 5.50] | 2.0 | 10% |"


def test_speeds_are_medians_of_quiet_rounds_in_the_unit_of_the_page():
    speeds = claims.Speeds(
        (reproduce.PAGE, "-"), "fast", ("work", "thousands", "share"), {"a": (("x", "y"), ()), "b": (("z",), ("s",))}, 1e-3
    )
    found = raw("fast", {f"round {i}": {"x": {"y": 1000.0 * i}, "z": 4000.0, "s": 500.0} for i in range(5)})
    found["reproduce"]["fast"] |= {"machine": {"processor": "P", "cores": 2}, "load_before": [0.1]}
    text = speeds.table(found)
    assert "| a | 2 [0, 4] |  |\n| b | 4 [4, 4] | 0.5 [0.5, 0.5] |\n" in text and "P, 2 cores" in text
    found["reproduce"]["fast"]["parts"]["round 0"]["quiet"] = False  # four rounds are too few
    assert speeds.table(found) == "| work | thousands | share |\n|---|---|---|\n"


def test_more_environments_are_sooner_only_if_all_intervals_are_apart():
    def curves(*seconds):
        return raw("warpsci_2bc", {f"acrobot {10 ** (i + 1)} seed={s}": {"s": t} for i, t in enumerate(seconds) for s in range(5)})

    assert claims_warpsci.sooner("acrobot")(curves(4.0, 3.0, 2.0, 1.0)).verdict == evidence.IN_KIND
    assert claims_warpsci.sooner("acrobot")(curves(4.0, 3.0, 2.0, None)).verdict == evidence.CONTRADICTED
    assert claims_warpsci.sooner("acrobot")(curves(4.0, 3.0, 2.0, 2.0)).verdict == evidence.UNDECIDED


def test_the_campaign_goes_on_and_marks_what_was_not_quiet(tmp_path, monkeypatch):
    asked, busy = [], iter(range(0, 10_000, 100))
    parts = {name: lambda name=name: asked.append(name) or {"value": 1.0} for name in "abc"}
    file = tmp_path / "kept.json"
    monkeypatch.setattr(campaign, "wait_for_quiet", lambda minutes: 0.1)
    monkeypatch.setattr(campaign, "busy_s", lambda: 0.0)
    file.write_text(json.dumps({"speed": {"machine": campaign.machine(), "load_before": [], "parts": {"a": PARTS}}}))
    campaign.measure({"speed": parts}, file, 0.0, 1.0)
    assert asked == ["b", "c"]
    assert campaign.read(file)["speed"]["parts"]["c"]["quiet"]
    monkeypatch.setattr(campaign, "busy_s", lambda: next(busy))
    assert campaign.quietly(parts["a"])["attempts"] == campaign.ATTEMPTS
    assert not campaign.quietly(parts["a"])["quiet"]


def test_the_campaign_waits_once_and_begins_anew_what_is_named(tmp_path, monkeypatch):
    asked, waited, file = [], [], tmp_path / "kept.json"
    monkeypatch.setattr(campaign, "wait_for_quiet", lambda minutes: waited.append(minutes) or 0.1)
    monkeypatch.setattr(campaign, "busy_s", lambda: 0.0)
    measurements = {name: {"part": lambda name=name: asked.append(name) or {}} for name in "ab"}
    campaign.measure(measurements, file, 5.0, 1.0, about={"commit": "old"})
    campaign.measure(measurements, file, 5.0, 1.0, ["b"], {"commit": "new"})
    assert asked == ["a", "b", "b"]
    assert waited == [5.0, 5.0]
    kept = campaign.read(file)
    assert [kept[name]["commit"] for name in "ab"] == ["old", "new"]
    assert [kept[name]["load_before"] for name in "ab"] == [[0.1], [0.1]]


def test_the_campaign_goes_on_only_on_the_same_machine(tmp_path, monkeypatch, capsys):
    file = tmp_path / "kept.json"
    monkeypatch.setattr(campaign, "wait_for_quiet", lambda minutes: 0.1)
    file.write_text(json.dumps({"speed": {"machine": {"processor": "another"}, "load_before": [], "parts": {}}}))
    with pytest.raises(SystemExit) as ended:
        campaign.measure({"speed": {"a": dict}}, file, 0.0, 1.0)
    assert ended.value.code == 2
    assert "use --again" in capsys.readouterr().err


def test_it_refuses_to_measure_beside_other_load(monkeypatch, capsys):
    monkeypatch.setattr(campaign.os, "getloadavg", lambda: (3.0, 3.0, 3.0))
    with pytest.raises(SystemExit) as ended:
        campaign.wait_for_quiet(-1.0)
    assert ended.value.code == 2
    assert "load average 3.00" in capsys.readouterr().err


# Trainings ------------------------------------------------------------------------------------------------------------


def trainings(study, **cases):
    """Return raw numbers of a study: its case, with _ for a space, -> a key and the values of the seeds."""
    known, kept = claims.STUDIES[study].cases, {}
    for name, (key, values) in cases.items():
        case = name.replace("_", " ")
        overrides = known[case].overrides
        kept[case] = {str(seed): {key: value, "overrides": f"{overrides} seed={seed}"} for seed, value in enumerate(values)}
    return {"reproduce": {}, "results": {study: kept}}


@pytest.mark.parametrize(
    ("higher", "lower", "verdict"),
    [
        ([150, 151, 152, 153, 154], [100, 110, 120, 130, 140], evidence.IN_KIND),
        ([100, 110, 120, 130, 140], [150, 151, 152, 153, 154], evidence.CONTRADICTED),
        ([100, 110, 120, 130, 151], [150, 151, 152, 153, 154], evidence.UNDECIDED),
        ([150, 151, 152, 153], [100, 110, 120, 130], evidence.NOT_YET),
    ],
)
def test_returns_of_trainings_decide(higher, lower, verdict):
    found = trainings("exarl", **{"9_range": ("training/return", higher), "9_random": ("training/return", lower)})
    assert claims_exarl.learned("training/return", "9 range", "9 random")(found).verdict == verdict


def test_runs_with_other_settings_do_not_decide():
    found = trainings("covid", published=("trained - untrained/governors", [3.0] * 5))
    for run in found["results"]["covid"]["published"].values():
        run["trained - untrained/planner"] = 2.0
    assert claims_warpsci.together(found).verdict == evidence.IN_KIND
    found["results"]["covid"]["published"]["4"]["overrides"] += " total_steps=1"
    assert claims_warpsci.together(found).verdict == evidence.NOT_YET


def test_transition_states_are_the_same_within_a_cell():
    def paths(lh, er):
        found = trainings("catalysis", **{case: ("last/path/reaches_goal", [1.0] * 5) for case in ("lh", "er1", "er2")})
        for case, runs in found["results"]["catalysis"].items():
            for run in runs.values():
                cell = lh if case == "lh" else er
                run |= {"transition/cell": cell} if cell else {}
        return claims_warpsci.shared_transition_state(found).verdict

    assert paths([0, 17, 30], [19, 0, 31]) == evidence.IN_KIND  # periodic in x and y
    assert paths([0, 16, 30], [19, 0, 31]) == evidence.CONTRADICTED
    assert paths([0, 17, 30], None) == evidence.CONTRADICTED


def test_a_transition_state_is_higher_than_its_neighbours():
    of = load("catalysis_results").transition_state
    cells = [[n, 0, 0] for n in range(6)]
    assert of(cells, [0.0, 1.0, 0.5, 2.0, 2.0, -1.0]) == {"transition/cell": [3, 0, 0], "transition/energy": 2.0}
    assert of(cells, [5.0, 1.0, 0.5, 0.4, 0.3, 6.0]) == {}


def test_curves_are_thinned_and_means_are_over_steps():
    one_run = load("one_run")
    rows = [{"env_steps": 10 * n, "eval/return": float(n)} for n in range(1, 200)] + [{"env_steps": 3000}]
    steps, values = one_run.curve(rows, "eval/return")
    assert len(steps) == len(values) == one_run.POINTS and (steps[0], steps[-1]) == (10, 1990)
    uneven = [{"env_steps": 0, "x": 0.0}, {"env_steps": 1, "x": 4.0}, {"env_steps": 100, "x": 4.0}]
    assert one_run.course(uneven, "x", "mean")["mean"] == pytest.approx(3.98, abs=0.01)
    unended = [{"env_steps": 1, "train/return": 7.0, "train/episodes": 0}]
    assert one_run.course(unended, "train/return", "mean") == {} and one_run.curve(unended, "train/return") == [[], []]


def test_kept_runs_are_added_one_by_one(tmp_path, monkeypatch):
    results = load("results")
    monkeypatch.setattr(results, "KEPT", tmp_path / "results.json")
    results.KEPT.write_text('{"other": {}}')
    results.keep("study", "case", 0, {"curve/x": [[1, 2], [0.5, 1.5]], "overrides": "a=[32]"})
    results.keep("study", "case", 1, {"state": "solved"})
    kept = json.loads(results.KEPT.read_text())
    assert kept["study"]["case"] == {"0": {"curve/x": [[1, 2], [0.5, 1.5]], "overrides": "a=[32]"}, "1": {"state": "solved"}}
    assert "[0.5, 1.5]" in results.KEPT.read_text() and "other" in kept


# On a GPU -------------------------------------------------------------------------------------------------------------


def card(rates, rounds=5):
    """Return raw numbers of a card: environments -> million steps/s of A2C in each round, all alike."""
    rows = [{"work": "A2C 64-64", "n_envs": size, "training_steps_per_s": 1e6 * rate} for size, rate in rates.items()]
    rows = [row | ({"training_rounds": rounds * [row["training_steps_per_s"]]} if rounds else {}) for row in rows]
    return {"reproduce": {}, "results": {}, "gpu": {"a card": {"parts": {"bench": {"found": rows}}}}}


@pytest.mark.parametrize(
    ("rate", "rounds", "verdict"),
    [
        (9.0, 5, evidence.IN_KIND),
        (9.0, 4, evidence.NOT_YET),
        (9.0, 0, evidence.NOT_YET),
        (8.0, 5, evidence.UNTESTABLE),  # another card contradicts nothing
    ],
)
def test_the_rate_of_another_card_shows_a_claim_in_kind_by_enough_rounds(rate, rounds, verdict):
    answer = claims_warpsci.rate(8.6, "A2C 64-64", 10_000, "throughput", "x")(card({10_000: rate}, rounds))
    assert answer.verdict == verdict and f"{rate:g}" in answer.number


@pytest.mark.parametrize(
    ("rates", "rounds", "verdict"),
    [
        ((1.0, 5.0, 40.0, 200.0), 5, evidence.IN_KIND),
        ((1.0, 5.0, 40.0, 200.0), 0, evidence.NOT_YET),
        ((1.0, 5.0, 40.0, 39.0), 5, evidence.UNDECIDED),
        ((1.0, 5.0, 40.0), 5, evidence.UNTESTABLE),
    ],
)
def test_throughput_grows_on_a_card_if_every_interval_is_above_the_one_before(rates, rounds, verdict):
    found = card(dict(zip(claims_warpsci.GROWING, rates, strict=False)), rounds)
    assert claims_warpsci.growth(found).verdict == verdict
