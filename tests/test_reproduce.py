"""Pages have the numbers of the raw files, verdicts follow from intervals, and the campaign goes on where it ended."""

import json

import pytest

from tests.scripts import load

claims, reproduce = load("claims"), load("reproduce")
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
    nothing = {"reproduce": {}, "exarl": {}, "results": {}}
    assert {claim.answer(nothing).verdict for claim in claims.CLAIMS} == {claims.UNTESTABLE, claims.NOT_YET}
    numbers = {claim.name.split()[1] for claim in claims.CLAIMS if claim.name.startswith("EXARL ")}
    assert {number.strip(",") for number in numbers} >= {str(number) for number in range(1, 13)}


@pytest.mark.parametrize(
    ("several", "one", "verdict"),
    [
        ([14, 15, 14, 14, 15], [10, 10, 10, 10, 10], claims.REPRODUCED),
        ([30, 31, 30, 32, 31], [10, 10, 10, 10, 10], claims.IN_KIND),
        ([8, 8, 9, 8, 8], [10, 10, 11, 10, 10], claims.CONTRADICTED),
        ([9, 14, 14, 14, 14], [10, 10, 10, 10, 10], claims.NOT_YET),
        ([14, 14, 14, 14], [10, 10, 10, 10, 10], claims.NOT_YET),
    ],
    ids=["holds the number", "direction", "other direction", "both", "four rounds"],
)
def test_intervals_decide(several, one, verdict):
    answer = claims.faster("async 8:8", "async 1:8", 1.434)
    assert answer(rates(async_8_8=several, async_1_8=one)).verdict == verdict


def test_what_was_measured_beside_other_load_does_not_count():
    found = rates(async_8_8=5 * [14.0], async_1_8=5 * [10.0])
    assert claims.faster("async 8:8", "async 1:8")(found).verdict == claims.IN_KIND
    for part in found["reproduce"]["exarl"]["parts"].values():
        part["quiet"] = False
    assert claims.faster("async 8:8", "async 1:8")(found).verdict == claims.NOT_YET


def test_more_environments_are_sooner_only_if_all_intervals_are_apart():
    def curves(*seconds):
        return raw("warpsci_2bc", {f"acrobot {10 ** (i + 1)} seed={s}": {"s": t} for i, t in enumerate(seconds) for s in range(5)})

    assert claims.sooner("acrobot")(curves(4.0, 3.0, 2.0, 1.0)).verdict == claims.IN_KIND
    assert claims.sooner("acrobot")(curves(4.0, 3.0, 2.0, None)).verdict == claims.CONTRADICTED
    assert claims.sooner("acrobot")(curves(4.0, 3.0, 2.0, 2.0)).verdict == claims.NOT_YET


def test_the_campaign_goes_on_and_marks_what_was_not_quiet(tmp_path, monkeypatch):
    asked, busy = [], iter(range(0, 10_000, 100))
    parts = {name: lambda name=name: asked.append(name) or {"value": 1.0} for name in "abc"}
    monkeypatch.setitem(reproduce.MEASUREMENTS, "throughput", reproduce.Measurement(lambda: parts, 1))
    monkeypatch.setattr(reproduce, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(reproduce, "wait_for_quiet", lambda minutes: 0.1)
    monkeypatch.setattr(reproduce, "busy_s", lambda: 0.0)
    kept = {"throughput": {"machine": reproduce.machine(), "load_before": [], "parts": {"a": PARTS}}}
    reproduce.measure(["throughput"], kept, 0.0, 1.0, False)
    assert asked == ["b", "c"]
    assert json.loads(reproduce.KEPT.read_text())["throughput"]["parts"]["c"]["quiet"]
    monkeypatch.setattr(reproduce, "busy_s", lambda: next(busy))
    assert reproduce.quietly(parts["a"])["attempts"] == reproduce.ATTEMPTS
    assert not reproduce.quietly(parts["a"])["quiet"]


def test_it_refuses_to_measure_beside_other_load(monkeypatch, capsys):
    monkeypatch.setattr(reproduce.os, "getloadavg", lambda: (3.0, 3.0, 3.0))
    with pytest.raises(SystemExit) as ended:
        reproduce.wait_for_quiet(-1.0)
    assert ended.value.code == 2
    assert "load average 3.00" in capsys.readouterr().err
