"""Pages have the numbers of the raw files, verdicts follow from intervals, and the campaign goes on where it ended."""

import json
import re
import shlex

import pytest

from tests.report.made import made
from tests.scripts import load
from warprun.config import overrides
from warprun.config.compose import compose
from warprun.config.reading import flat_items
from warprun.config.schema import to_dict
from warprun.errors import UserError
from warprun.sweeps.launch import is_of_sweep

campaign, claims, evidence, reproduce, speed_tables = map(load, ("campaign", "claims", "evidence", "reproduce", "speed_tables"))
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
    monkeypatch.setattr(reproduce, "TABLES", {})
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
    answer = claims.faster("async 8:8", "async 1:8", 1.434)
    assert answer(rates(async_8_8=several, async_1_8=one)).verdict == verdict


def test_what_was_measured_beside_other_load_does_not_count():
    found = rates(async_8_8=5 * [14.0], async_1_8=5 * [10.0])
    assert claims.faster("async 8:8", "async 1:8")(found).verdict == evidence.IN_KIND
    for part in found["reproduce"]["exarl"]["parts"].values():
        part["quiet"] = False
    assert claims.faster("async 8:8", "async 1:8")(found).verdict == evidence.NOT_YET


def test_the_table_of_sleeping_ranks_has_runs_of_five_quiet_rounds():
    found = rates(async_1_1=[5.0, 3.0, 5.5, 5.0, 5.0], queue_1_1=4 * [6.0])
    for part in found["reproduce"]["exarl"]["parts"].values():
        part["values"] |= {"lag": 2.0, "learner_waiting": 0.1}
    (row,) = claims.of_ranks(found).splitlines()[2:]
    assert row == "| `async 1:1` | 5.00 [3.00, 5.50] | 2.0 | 10% |"


def test_speeds_are_medians_of_quiet_rounds_in_the_unit_of_the_page():
    speeds = speed_tables.Speeds(
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

    assert claims.sooner("acrobot")(curves(4.0, 3.0, 2.0, 1.0)).verdict == evidence.IN_KIND
    assert claims.sooner("acrobot")(curves(4.0, 3.0, 2.0, None)).verdict == evidence.CONTRADICTED
    assert claims.sooner("acrobot")(curves(4.0, 3.0, 2.0, 2.0)).verdict == evidence.UNDECIDED


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Return where a campaign on a quiet machine keeps its parts."""
    monkeypatch.setattr(campaign, "wait_for_quiet", lambda minutes: 0.1)
    monkeypatch.setattr(campaign, "busy_s", lambda: 0.0)
    return tmp_path / "kept.json"


def test_the_campaign_goes_on_and_marks_what_was_not_quiet(file, monkeypatch):
    asked, busy = [], iter(range(0, 10_000, 100))
    parts = {name: lambda name=name: asked.append(name) or {"value": 1.0} for name in "abc"}
    file.write_text(json.dumps({"speed": {"machine": campaign.machine(), "load_before": [], "parts": {"a": PARTS}}}))
    campaign.measure({"speed": parts}, file, 0.0, 1.0)
    assert asked == ["b", "c"] and campaign.read(file)["speed"]["parts"]["c"]["quiet"]
    monkeypatch.setattr(campaign, "busy_s", lambda: next(busy))
    part = campaign.quietly(parts["a"])
    assert part["attempts"] == campaign.ATTEMPTS and not part["quiet"]


def test_the_campaign_begins_anew_what_is_named(file):
    asked = []
    measurements = {name: {"part": lambda name=name: asked.append(name) or {}} for name in "ab"}
    campaign.measure(measurements, file, 5.0, 1.0, about={"commit": "old"})
    campaign.measure(measurements, file, 5.0, 1.0, ["b"], {"commit": "new"})
    kept = campaign.read(file)
    assert asked == ["a", "b", "b"]
    assert [(kept[name]["commit"], kept[name]["load_before"]) for name in "ab"] == [("old", [0.1]), ("new", [0.1])]


def test_the_campaign_goes_on_only_on_the_same_machine(file, capsys):
    file.write_text(json.dumps({"speed": {"machine": {"processor": "another"}, "load_before": [], "parts": {}}}))
    with pytest.raises(SystemExit, match="2"):
        campaign.measure({"speed": {"a": dict}}, file, 0.0, 1.0)
    assert "use --again" in capsys.readouterr().err


def test_it_refuses_to_measure_beside_other_load(monkeypatch, capsys):
    monkeypatch.setattr(campaign.os, "getloadavg", lambda: (3.0, 3.0, 3.0))
    with pytest.raises(SystemExit, match="2"):
        campaign.wait_for_quiet(-1.0)
    assert "load average 3.00" in capsys.readouterr().err


# Trainings ------------------------------------------------------------------------------------------------------------


def trainings(study, **cases):
    """Return raw numbers of a study: its case, with _ for a space, -> a key and the values of the seeds."""
    kept = {name.replace("_", " "): {str(seed): {key: value} for seed, value in enumerate(values)} for name, (key, values) in cases.items()}
    return {"reproduce": {}, "results": {study: kept}}


def test_returns_of_trainings_decide():
    higher, lower = ("training/return", [150, 151, 152, 153, 154]), ("training/return", [100, 110, 120, 130, 140])
    answer = claims.learned("training/return", "9 range", "9 random")
    assert answer(trainings("exarl", **{"9_range": higher, "9_random": lower})).verdict == evidence.IN_KIND
    assert answer(trainings("exarl", **{"9_range": lower, "9_random": higher})).verdict == evidence.CONTRADICTED


def test_transition_states_are_the_same_within_a_cell():
    def paths(lh, er):
        found = trainings("catalysis", **{case: ("last/path/reaches_goal", [1.0] * 5) for case in ("lh", "er1", "er2")})
        for case, runs in found["results"]["catalysis"].items():
            for run in runs.values():
                cell = lh if case == "lh" else er
                run |= {"transition/cell": cell} if cell else {}
        return claims.shared_transition_state(found).verdict

    assert paths([0, 17, 30], [19, 0, 31]) == evidence.IN_KIND  # periodic in x and y
    assert paths([0, 16, 30], [19, 0, 31]) == evidence.CONTRADICTED
    assert paths([0, 17, 30], None) == evidence.CONTRADICTED


def test_a_transition_state_is_higher_than_its_neighbours():
    of = load("compare.catalysis").transition_state
    cells = [[n, 0, 0] for n in range(6)]
    assert of(cells, [0.0, 1.0, 0.5, 2.0, 2.0, -1.0]) == {"transition/cell": [3, 0, 0], "transition/energy": 2.0}
    assert of(cells, [5.0, 1.0, 0.5, 0.4, 0.3, 6.0]) == {}


def test_curves_are_thinned_and_means_are_over_steps():
    results = load("results")
    steps, values = results.thinned(*results.points([{"env_steps": 10 * n, "eval/return": float(n)} for n in range(1, 200)], "eval/return"))
    assert len(steps) == len(values) == results.POINTS and (steps[0], steps[-1]) == (10, 1990)
    assert results.mean_of("mean", [0, 1, 100], [0.0, 4.0, 4.0])["mean"] == pytest.approx(3.98, abs=0.01)
    unended = results.points([{"env_steps": 1, "train/return": 7.0, "train/episodes": 0}], "train/return")
    assert results.mean_of("mean", *unended) == {} and results.thinned(*unended) == [[], []]


def test_the_runs_of_a_sweep_take_the_place_of_those_that_are_kept(tmp_path, monkeypatch):
    results, page = load("results"), tmp_path / "page.md"
    monkeypatch.setattr(results, "KEPT", tmp_path / "results.json")
    results.KEPT.write_text('{"other": {}, "comparisons": {"DQN": {"7": {}}}}')
    page.write_text("<!-- results comparisons -->\n<!-- end -->\n")
    monkeypatch.setitem(results.TABLES, "comparisons", results.TABLES["comparisons"]._replace(page=page))
    about = {"cpu": "P", "cores": 2} | dict.fromkeys(("python", "warprun", "torch", "numba", "numpy"), "1")
    for seed, returns in enumerate(([100.0, 210.0], [220.0, 190.0])):
        run = made(tmp_path / "sweep" / f"000{seed}", returns, settings={"seed": seed, "env.solved_at": 200.0})
        (run / "versions.json").write_text(json.dumps(about))
        (run / "status.json").write_text(json.dumps({"state": "finished", "env_steps": 2000, "wall_s": 2.0}))
    jobs = [{"run": f"000{seed}", "overrides": ["agent=dqn", f"seed={seed}"]} for seed in range(2)]
    (tmp_path / "sweep" / "plan.json").write_text(json.dumps({"jobs": jobs}))
    monkeypatch.setattr("sys.argv", ["results.py", "comparisons", "DQN", str(tmp_path / "sweep")])
    results.main()
    kept = json.loads(results.KEPT.read_text())
    assert kept["other"] == {} and list(kept["comparisons"]["DQN"]) == ["0", "1"]
    assert kept["comparisons"]["DQN"]["1"]["curve/eval/return"] == [[1000, 2000], [220.0, 190.0]]
    assert kept["comparisons"]["DQN"]["1"]["overrides"] == "agent=dqn seed=1"
    assert kept["comparisons"]["DQN"]["1"]["bar"] == 200.0  # which other tables show
    assert "| DQN | 200 | 2/2 | 1,500 [1,000, 2,000] | 200.0 [190.0, 210.0] | – |" in page.read_text()


NOT_COMPARED = ("name", "seed", "run_dir", "origin", "env.module", "concurrency.threads")


def composed(words):
    """Return the settings of a run that say what is trained, as text."""
    return {key: value for key, value in flat_items(to_dict(compose(words))) if not key.startswith(NOT_COMPARED)}


def commands(page):
    """Yield the settings of every job of the sweeps that a page shows for its numbers."""
    for block in re.findall(r"^```shell\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            words = [word for word in shlex.split(line, comments=True) if not is_of_sweep(word)]
            if words[:2] == ["warprun", "-m"]:
                yield from overrides.runs([word for word in words[2:] if not word.startswith(("seed=", "device="))])


@pytest.mark.by_default(3)
@pytest.mark.parametrize("study", [study for study in load("result_tables").TABLES if study not in ("pbt", "minatar")])
def test_a_page_has_the_commands_that_train_the_runs_of_its_table(study):
    """The settings of every case, as they are recorded, are those of a job. (Searches have another command, MinAtar needs a package.)"""
    fixed, kept = load("common").FIXED, reproduce.raw()["results"][study]
    shown = load("result_tables").TABLES[study]
    try:
        jobs = [composed(words) for words in commands(shown.page)]
        for case, seeds in kept.items():
            recorded = next(iter(seeds.values())).get("overrides", "")
            if "seed=" not in recorded or "references" in study or "regulators" in study:
                continue  # a reference, which is no run
            agents = [agent for agent in ("a2c", "ppo") if f"agent={agent} " in recorded and "tuned=none" in recorded]
            words = [word for agent in agents for word in fixed[agent].split()] + recorded.split()
            assert composed([word for word in words if not word.startswith("name=")]) in jobs, case
    except UserError as error:
        assert any(word in str(error) for word in ("gymnasium", "warprun data")), error


# On a GPU -------------------------------------------------------------------------------------------------------------

IN_KIND, NOT_YET, UNTESTABLE, UNDECIDED = evidence.IN_KIND, evidence.NOT_YET, evidence.UNTESTABLE, evidence.UNDECIDED


def card(rates, rounds):
    """Return raw numbers of a card: environments -> million steps/s of A2C in each round, all alike."""
    rows = [{"work": "A2C 64-64", "n_envs": size, "training_steps_per_s": 1e6 * rate} for size, rate in rates.items()]
    rows = [row | ({"training_rounds": rounds * [row["training_steps_per_s"]]} if rounds else {}) for row in rows]
    return {"reproduce": {}, "results": {}, "gpu": {"a card": [{"parts": {"bench": {"found": rows}}}]}}


@pytest.mark.parametrize(("rate", "rounds", "verdict"), [(9.0, 5, IN_KIND), (9.0, 4, NOT_YET), (9.0, 0, NOT_YET), (8.0, 5, UNTESTABLE)])
def test_the_rate_of_another_card_shows_a_claim_in_kind_by_enough_rounds_and_contradicts_nothing(rate, rounds, verdict):
    answer = claims.rate(8.6, "A2C 64-64", 10_000, "throughput", "x")(card({10_000: rate}, rounds))
    assert answer.verdict == verdict and f"{rate:g}" in answer.number


@pytest.mark.parametrize(
    ("last", "rounds", "verdict"),
    [([40.0, 200.0], 5, IN_KIND), ([40.0, 200.0], 0, NOT_YET), ([40.0, 39.0], 5, UNDECIDED), ([40.0], 5, UNTESTABLE)],
)
def test_throughput_grows_on_a_card_if_every_interval_is_above_the_one_before(last, rounds, verdict):
    assert claims.growth(card(dict(zip(claims.GROWING, [1.0, 5.0, *last], strict=False)), rounds)).verdict == verdict
