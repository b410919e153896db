"""What the KV benchmarks compute from what they saw. The engines they run are tested elsewhere."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import drift, endless, quality, wall
from bench.kv_driver import CallFailed, GrowingCalls, TickCost, random_header
from bench.kv_output import NoPlot, check_plot, draw, write_csv
from bench.kv_stats import last_over_first, perplexity, tenths, trend, wall_s
from bench.quality_text import TEXT, long_text, prose
from bench.report import Figure
from bench.sharing import Holdings
from engine.kv_policy import KvPolicy, PolicyName
from engine.sim_backend import SimBackend, SimCost

FREE = SimCost(0.0, 0.0, 0.0, 0.0)
BLOCK = 32
HEADER = random_header(48, 0)


def by_name(figures: Sequence[Figure]) -> dict[str, Figure]:
    found = {figure.name: figure for figure in figures}
    assert len(found) == len(figures), "two figures have the same name"
    return found


# -- arithmetic ------------------------------------------------------------------------------------


def test_a_call_has_ten_tenths() -> None:
    """Every tick is in exactly one, in order, with its median and 99th percentile."""
    parts = tenths(range(0, 300, 3), list(range(100)))
    assert [part.age_from for part in parts] == list(range(0, 300, 30))
    assert [part.age_to for part in parts] == list(range(27, 300, 30))
    assert parts[3].p50 == 34.5
    assert parts[3].p99 == 39
    with pytest.raises(ValueError, match="9 ticks"):
        tenths(range(9), [1.0] * 9)


def test_growth_starts_where_the_window_is_full() -> None:
    """Young tenths are cheap whatever the policy: they are no baseline."""
    values = [1.0] * 30 + [2.0] * 60 + [3.0] * 10
    parts = tenths(range(100), values)
    assert last_over_first(parts, 25) == 1.5
    assert last_over_first(parts, 0) == 3.0
    assert math.isnan(last_over_first(parts, 95))


def test_a_trend_knows_noise_from_growth() -> None:
    """A line's slope is found; scatter around a constant counts as flat."""
    xs = list(range(100))
    rising = trend(xs, [5 + 0.25 * x for x in xs])
    assert rising.slope == pytest.approx(0.25)
    assert not rising.is_flat
    assert trend(xs, [5 + (-1) ** x for x in xs]).is_flat
    with pytest.raises(ValueError, match="same x"):
        trend([1, 1, 1], [1, 2, 3])


def test_perplexity_and_the_wall() -> None:
    """A token of probability 1/8 is one of eight; a pool that nobody fills is never full."""
    assert perplexity([math.log(1 / 8)] * 3) == pytest.approx(8)
    assert math.isnan(perplexity([]))
    assert wall_s(600, 120) == 5
    assert wall_s(600, 0) == math.inf


def test_copies_are_what_sharing_did_not_save() -> None:
    """Sixteen calls with a copy each share nothing; 15 headers of 31 whole blocks saved leave one."""
    assert Holdings(512, 512).copies == 16
    assert Holdings(512 - 15 * 31, 512).copies == 1


# -- the load --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["anchored", "recycle"])
def test_bounded_calls_stay_within_their_plateau(policy: PolicyName) -> None:
    """Through many windows, staggered or not, mirror and backend agree and no session holds more than it may."""
    bounded = KvPolicy(policy, 128, 64)
    backend = SimBackend(FREE, total_blocks=200, block_size=BLOCK)
    calls = GrowingCalls(backend, bounded, [HEADER] * 3)
    calls.open(stagger=20)
    costs = [calls.tick(25, 5) for _ in range(60)]
    plateau = bounded.plateau_blocks(len(HEADER), 30, BLOCK)
    assert max(cost.held_blocks for cost in costs) <= 3 * plateau
    assert costs[-1].age == len(HEADER) + 2 + 60 * 30
    assert (sum(cost.dropped for cost in costs) > 0) == (policy == "anchored")
    calls.close()
    assert backend.snapshot().held_blocks == 0


def test_unbounded_calls_grow_until_they_fail() -> None:
    """The end of the context is an error of that call, not a number among others."""
    backend = SimBackend(FREE, total_blocks=200, block_size=BLOCK, max_context=512)
    calls = GrowingCalls(backend, KvPolicy("unbounded"), [HEADER])
    calls.open()
    with pytest.raises(CallFailed, match="call-0"):
        list(map(calls.tick, [25] * 60, [5] * 60))


# -- figures ---------------------------------------------------------------------------------------


def _ticks(wall_s: float, *, count: int = 1000, shift_s: float = 0.0) -> list[TickCost]:
    """Equal ticks, 20 tokens each, with a drop in every tenth."""
    return [
        TickCost(
            20 * n,
            wall_s,
            0.01,
            0.01,
            shift_s,
            64 if n % 10 == 0 else 0,
            8 * min(40, n + 1),
        )
        for n in range(count)
    ]


def test_drift_compares_generations_that_lived_at_the_same_time() -> None:
    """The names that scripts read are there; a machine that slowed down for both is no growth."""
    slow = drift.Ticks(_ticks(0.01)[:900] + _ticks(0.03)[900:], _ticks(0.03, count=200))
    grown = drift.Ticks(_ticks(0.09), _ticks(0.03, count=200))
    moved = drift.Ticks(_ticks(0.03, shift_s=0.0004), _ticks(0.03, count=200))
    costs: dict[PolicyName, drift.Ticks] = {
        "unbounded": grown, "sliding": slow, "anchored": moved, "recycle": slow,
    }  # fmt: skip
    found = by_name(drift.figures(costs))
    assert found["anchored_p50_last_over_first"].value == 1.0
    assert found["anchored_p50_last_over_first"].met
    assert found["sliding_p50_last_over_first"].value == 1.0
    assert found["unbounded_p50_last_over_first"].value == 3.0
    assert found["unbounded over anchored: tick p50, last tenth"].value == 3.0
    assert found["shift_share_of_tick"].value == 0.04
    assert found["shift_share_of_tick"].met
    assert found["anchored: blocks per session, at most"].target == "<= 44"


def test_the_second_generation_ends_with_its_first_full_tenth() -> None:
    """1,280 tokens fill a window in 42 ticks of 30: within the fourth tenth of 130 ticks, the first of 660."""
    assert drift.young_life(130) == 65
    assert drift.young_life(660) == 132


def test_endless_compares_with_a_young_call() -> None:
    """Growth that the young call does not share is missed; what both suffer is the machine's, and met."""
    life = endless.Life.of(2000)
    life.ages[:] = range(0, 60_000, 30)
    life.young_ages[:] = life.ages % 4000
    life.rss_mib[:] = 100 + life.ages * 1e-3
    busy = 1 + life.ages / 60_000
    for column in (life.old.wall, life.young.wall, life.old.cpu, life.young.cpu, life.young.host):
        column[:] = 5 * busy
    life.old.host[:] = 5 * busy + life.ages * 1e-5
    life.blocks[:] = 40
    found = by_name(endless.figures(life, KvPolicy()))
    assert found["tick p50, over the young call's"].met
    assert found["tick p99 in CPU time, over the young call's"].met
    assert found["host time per tick less the young call's, slope"].value == "+1000.0 ± 0.0"
    assert float(found["host time per tick p50, over the young call's"].value) > 1.05
    assert not found["resident memory, last over first full tenth"].met
    assert found["resident memory, slope of the second half"].value == "+102400.0 ± 0.0"


def _run(policy: PolicyName, wall_at: float) -> wall.Run:
    """Five ticks a second; from `wall_at` on all are late and the engine's steps take no time."""
    deadlines = [0.2 * n for n in range(1, 51) for _ in range(wall.SESSIONS)]
    pace = wall.POOL * wall.BLOCK / wall_at  # tokens per second
    steps = [
        (t, 0.01 if t < wall_at else 0.0001, int(min(pace * t / 32, 128)), int(min(pace * t, 4096)))
        for t in (0.05 * n for n in range(200))
    ]
    return wall.Run(policy, [(d, "on_time" if d < wall_at else "late") for d in deadlines], steps)


def test_the_wall_is_seen_by_the_ledger_alone() -> None:
    """Behind the wall every owed tick is a miss while steps look faster than ever; the moment was foreseen."""
    runs = [_run("unbounded", 7.0), _run("sliding", 100.0), _run("anchored", 100.0)]
    assert runs[0].stalled_at == pytest.approx(6.8)
    assert runs[0].predicted_at == pytest.approx(7.0, rel=0.01)
    assert runs[1].stalled_at == math.inf
    found = by_name(wall.figures(runs))
    assert found["behind the wall: ticks missed"].value == 100
    assert float(found["behind the wall: engine step p99"].value) < 1
    assert all(figure.met is not False for figure in found.values())


def test_a_policy_that_should_hold_and_stalls_is_missed() -> None:
    """One stalled run of many is enough."""
    runs = [_run("unbounded", 7.0), _run("sliding", 100.0), _run("anchored", 6.0)]
    assert not by_name(wall.figures(runs))["anchored: runs that stalled"].met


def test_quality_compares_equal_tokens() -> None:
    """Only positions that every window has left behind count, and tokens of a sink count nowhere."""
    effort = quality.Effort((quality.DEFAULT, quality.DEFAULT_SLIDING), (0,), 3000, 2560)
    since = quality.DEFAULT.full_at
    half, third = math.log(1 / 2), math.log(1 / 3)
    whole: list[float | None] = [half] * 3000
    found = quality.Findings(
        {
            "unbounded": [whole],
            quality.DEFAULT.name: [[*[third] * since, *[half] * (2999 - since), None]],
            quality.DEFAULT_SLIDING.name: [[*whole[:since], *[2 * half] * (3000 - since)]],
        },
        {quality.DEFAULT.name: 0.02},
        {"never told": [-20.0], "unbounded": [-4.0], "anchored": [-3.0], "sliding": [-21.0]},
    )
    figures = by_name(quality.figures(found, effort))
    assert figures["anchored_over_unbounded"].value == 1.0
    assert figures["sliding_over_unbounded"].value == 2.0
    assert figures["instructions: gain, anchored"].value == 17
    assert figures["instructions: gain, sliding"].value == -1


# -- text and output -------------------------------------------------------------------------------


def test_prose_has_no_headings_and_numbers() -> None:
    """A paragraph per chapter, lines joined, verse numbers gone."""
    printed = "\nGenesis 1\n\n  1 In the\nbeginning.\n 22 And so on.\n\nExodus 40\n\n  1 The end.\n"
    assert list(prose(printed)) == ["In the beginning. And so on.", "The end."]


def test_the_committed_text_is_whole() -> None:
    """Genesis and Exodus: 73,875 words as printed, 90 chapters, small enough for a repository."""
    assert len(TEXT.read_text("utf-8").split()) == 73_875
    assert TEXT.stat().st_size < 450_000
    assert (TEXT.parent / "NOTICE.md").is_file()
    chapters = long_text().split("\n\n")
    assert len(chapters) == 90
    assert chapters[0].startswith("In the beginning God created the heaven and the earth. And ")


def test_data_is_written_where_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CSV with a header line, folders made; nothing without a name."""
    write_csv(None, ("a",), [(1,)])
    assert capsys.readouterr().out == ""
    write_csv(tmp_path / "deep" / "data.csv", ("a", "b"), [(1, "x"), (2, "y")])
    assert (tmp_path / "deep" / "data.csv").read_text() == "a,b\n1,x\n2,y\n"


def test_a_plot_without_matplotlib_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before the work begins, with what to install; without --plot nobody needs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_plot(None)
    draw(None, "x", {})
    with pytest.raises(NoPlot, match=r"pip install matplotlib==[\d.]+$"):
        check_plot(Path("plot.png"))
