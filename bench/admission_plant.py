"""The simulated machines that admission is tried on. Their cost law is the simulated backend's own (`SimCost`)."""

from dataclasses import dataclass, replace
from math import ceil

from engine.sim_backend import SimCost

BLOCK_TOKENS = 32
HICCUP = (1.5, 3.0)  # × its usual time: a step that the noisy machine was interrupted in
_SPELL_S = 40.0  # for so long a shared machine has one speed
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Call:
    """What one kind of session does, tick after tick."""

    tick_s: float
    steps: int  # tokens decoded, one per engine step
    prefill: int  # tokens of caller audio appended

    @property
    def tokens(self) -> int:
        """By how much its context grows in a tick."""
        return self.steps + self.prefill


@dataclass(frozen=True, slots=True)
class Plant:
    """One machine with one model on it."""

    name: str
    cost: SimCost
    calls: tuple[Call, ...]  # kinds of sessions, in turn
    window: int  # tokens a session keeps
    header: int  # tokens of a new session's first prompt
    pool_windows: int  # size of the KV pool
    pad: int = 1  # sessions in a step are padded to a multiple of this (CUDA graphs)
    exponent: float = 1.0  # of the cost of reading the cache …
    pivot_windows: float = 1.0  # … which is the linear law's at this many windows
    noise: float = 0.05  # relative standard deviation of a step
    spike: float = 0.0  # share of steps with a hiccup
    prefill_budget: int = 2048  # new tokens per step, as the planner has it
    preempt_s: float = 0.03  # added to each step while the pool is over-committed
    convexity: float = 1.25  # the exponent of its `convex` variant
    shared: float = 1.0  # factor of every step in every second spell or so, …
    shared_s: float = 0.0  # … what is added to it there, …
    jitter_s: float = 0.0  # … and to any step, more or less, standard deviation

    def step_s(self, sessions: int, new_tokens: int, read_tokens: float) -> float:
        """Seconds of one step, noise aside."""
        padded = ceil(sessions / self.pad) * self.pad if self.pad > 1 else sessions
        if self.exponent != 1.0 and read_tokens > 0:
            pivot = self.pivot_windows * self.window
            read_tokens = pivot * (read_tokens / pivot) ** self.exponent
        return self.cost.step_s(padded, new_tokens, int(read_tokens))

    def beside_others_s(self, seconds: float, now: float, luck: float) -> float:
        """What a step takes that begins now on a shared machine; `luck` is standard normal."""
        seconds += max(0.0, self.jitter_s * luck)
        slow = int(now / _SPELL_S) * _GOLDEN % 1 < 0.5
        return self.shared * seconds + self.shared_s if slow else seconds

    @property
    def fill_s(self) -> float:
        """From a new session's first tick to its plateau."""
        call = self.calls[0]
        return (self.window - self.header) / call.tokens * call.tick_s

    @property
    def plateau_blocks(self) -> int:
        return ceil(self.window / BLOCK_TOKENS)

    @property
    def pool_blocks(self) -> int:
        return self.pool_windows * self.plateau_blocks

    def noisy(self) -> "Plant":
        """The same machine with a noisy neighbour."""
        return replace(self, name=f"{self.name}+noise", noise=0.15, spike=0.002)

    def convex(self) -> "Plant":
        """The same machine, where reading the cache costs more than in proportion."""
        pivot = 0.8 * self.pool_windows / 1.4
        return replace(
            self, name=f"{self.name}+convex", pad=16, exponent=self.convexity, pivot_windows=pivot
        )

    def two_speeds(self) -> "Plant":
        """The same machine beside other tenants, who slow it down for a minute or so, again and again.

        As seen on two shared cores (`metronome bench ramp`): for minutes at a time a step of five calls takes 3.8 ms
        instead of 1.9, and one of a hundred a sixth more; steps of 5 ms and less differ by a third.
        """
        longest_s = self.calls[0].tick_s / (self.calls[0].steps + 1)
        return replace(
            self,
            name=f"{self.name}+shared",
            noise=0.08,
            shared=1.15,
            shared_s=0.03 * longest_s,
            jitter_s=0.04 * longest_s,
        )

    def with_pool(self, windows: int) -> "Plant":
        """The same machine with less memory."""
        return replace(self, name=f"{self.name}+pool{windows}", pool_windows=windows)

    def mixed(self, other: Call) -> "Plant":
        """The same machine, with every second session of another kind."""
        return replace(self, name=f"{self.name}+mixed", calls=(self.calls[0], other))


# The one plant that the controller was tuned on: a shape like that of a simulated GPU server.
A = Plant(
    "A",
    SimCost(fixed_s=0.004, session_s=2e-5, token_s=4e-6, resident_s=2e-8),
    (Call(0.2, 6, 19),),
    window=6000,
    header=500,
    pool_windows=260,
)

# Looked at while the controller was built, after A (B to G): short ticks with few steps, long ones with many, machines
# whose fixed cost per step is 40 or 50 % of the tick. One step per 80 ms, in the way of Moshi; eight per 400 ms with a
# large window; three per 200 ms.
B = Plant(
    "B",
    SimCost(fixed_s=0.003, session_s=1.2e-5, token_s=3e-6, resident_s=4e-8),
    (Call(0.08, 2, 1),),
    window=2250,
    header=64,
    pool_windows=480,
    convexity=1.15,
)
C = Plant(
    "C",
    SimCost(fixed_s=0.012, session_s=1.5e-4, token_s=1e-5, resident_s=1.6e-7),
    (Call(1.0, 10, 25),),
    window=2048,
    header=256,
    pool_windows=240,
    convexity=1.4,
)
D = Plant(
    "D",
    SimCost(fixed_s=0.016, session_s=3e-5, token_s=4e-6, resident_s=6e-8),
    (Call(0.16, 4, 12),),
    window=1536,
    header=300,
    pool_windows=240,
)

E = Plant(
    "E",
    SimCost(fixed_s=0.009, session_s=4e-5, token_s=1e-5, resident_s=3e-7),
    (Call(0.08, 1, 1),),
    window=750,
    header=16,
    pool_windows=300,
    convexity=1.2,
)
F = Plant(
    "F",
    SimCost(fixed_s=0.006, session_s=6e-5, token_s=8e-6, resident_s=5e-8),
    (Call(0.4, 8, 12),),
    window=4096,
    header=400,
    pool_windows=220,
)
G = Plant(
    "G",
    SimCost(fixed_s=0.0046, session_s=3e-5, token_s=5e-6, resident_s=1.2e-7),
    (Call(0.2, 3, 5),),
    window=2048,
    header=200,
    pool_windows=300,
    convexity=1.3,
)

# Held out of every choice of a number; three of their runs that had failed were looked at. Two steps per 120 ms, six
# per half second, five per 240 ms with a small window.
H = Plant(
    "H",
    SimCost(fixed_s=0.005, session_s=3e-5, token_s=5e-6, resident_s=9e-8),
    (Call(0.12, 2, 8),),
    window=3000,
    header=120,
    pool_windows=320,
    convexity=1.2,
)
I = Plant(  # noqa: E741 — named as its neighbours are
    "I",
    SimCost(fixed_s=0.008, session_s=8e-5, token_s=1e-5, resident_s=1e-7),
    (Call(0.5, 6, 14),),
    window=3072,
    header=300,
    pool_windows=280,
)
J = Plant(
    "J",
    SimCost(fixed_s=0.0035, session_s=4e-5, token_s=6e-6, resident_s=1.5e-7),
    (Call(0.24, 5, 9),),
    window=1024,
    header=150,
    pool_windows=300,
    convexity=1.3,
)

# Written down before the controller was run on any of them; looked at since, for one cold start on M that let in 1.6
# times what it holds. Four steps per 320 ms that take a good part of their time for audio, two per 100 ms with a small
# window, twelve per 800 ms with a large one.
L = Plant(
    "L",
    SimCost(fixed_s=0.007, session_s=5e-5, token_s=3e-5, resident_s=5e-8),
    (Call(0.32, 4, 24),),
    window=2560,
    header=256,
    pool_windows=300,
    convexity=1.2,
)
M = Plant(
    "M",
    SimCost(fixed_s=0.004, session_s=2.5e-5, token_s=4e-6, resident_s=1.6e-7),
    (Call(0.1, 2, 5),),
    window=1280,
    header=96,
    pool_windows=300,
    convexity=1.3,
)
N = Plant(
    "N",
    SimCost(fixed_s=0.009, session_s=1e-4, token_s=1.5e-5, resident_s=5e-8),
    (Call(0.8, 12, 30),),
    window=4096,
    header=512,
    pool_windows=300,
    convexity=1.25,
)

# As these were, after that: one step per 60 ms, twenty per two seconds, eight per 200 ms.
P = Plant(
    "P",
    SimCost(fixed_s=0.002, session_s=3e-5, token_s=4e-6, resident_s=2.4e-7),
    (Call(0.06, 1, 2),),
    window=900,
    header=40,
    pool_windows=600,
    convexity=1.15,
)
Q = Plant(
    "Q",
    SimCost(fixed_s=0.015, session_s=1.2e-4, token_s=8e-6, resident_s=9e-8),
    (Call(2.0, 20, 60),),
    window=3000,
    header=400,
    pool_windows=300,
    convexity=1.35,
)
R = Plant(
    "R",
    SimCost(fixed_s=0.002, session_s=2e-5, token_s=1e-5, resident_s=1.1e-7),
    (Call(0.2, 8, 6),),
    window=1800,
    header=150,
    pool_windows=300,
    convexity=1.25,
)

PLANTS = {plant.name: plant for plant in (A, B, C, D, E, F, G, H, I, J, L, M, N, P, Q, R)}
