"""SWIM's web system (Moreno et al. 2018) in one file: servers and a dimmer under a changing load, scored by utility.

The settings are those of swim_sa.ini: a decision every 60 s, at most 3 servers, five dimmer levels, a response limit of
0.75 s, boot_seconds to start a server. Servers are M/G/1-PS queues with equal shares; the backlog carries over.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parlmesh.errors import InvalidInput

PERIOD_SECONDS = 60.0
PERIODS = 105
WARM_UP = 15
SERVERS = 3
LEVELS = 5
LATEST_SECONDS = 0.75
FULL_SECONDS, LOW_SECONDS = 0.03964, 0.00129
"""Mean service times: normal distributions with mean and deviation of 30 and 1 ms, cut at zero."""
RATE = 1 / 0.04452713
LOW_REVENUE, FULL_REVENUE = 1.0, 1.5
_STEP_SECONDS = 5.0


@dataclass(slots=True)
class Web:
    """The state that a manager sees and changes."""

    boot_seconds: float
    servers: int = SERVERS
    booting: int = 0
    boot_left: float = 0.0
    dimmer: float = 1.0
    backlog: float = 0.0
    """Seconds of queued work."""
    response_seconds: float = 0.0
    used: float = 0.0
    """Mean number of busy servers in the last period."""
    arrivals: float = 0.0

    @property
    def active(self) -> int:
        """Servers that have booted."""
        return self.servers - self.booting

    def period(self, rate: float, rng: random.Random) -> None:
        """Simulates one minute of load; the response time is the mean over requests."""
        weighted = count = busy = 0.0
        for _ in range(int(PERIOD_SECONDS / _STEP_SECONDS)):
            arrived = max(0.0, rng.gauss(rate * _STEP_SECONDS, math.sqrt(max(rate * _STEP_SECONDS, 1e-9))))
            if self.booting:
                self.boot_left -= _STEP_SECONDS
                if self.boot_left <= 0:
                    self.booting = 0
            each = self.dimmer * FULL_SECONDS + (1 - self.dimmer) * LOW_SECONDS
            room = self.active * _STEP_SECONDS
            work = self.backlog + arrived * each
            done = min(work, room)
            load = min(arrived * each / room, 0.99)
            wait = self.backlog / max(self.active, 1)
            weighted += arrived * (wait + each / (1 - load))
            count += arrived
            busy += done
            # A request that waited ten seconds is abandoned.
            self.backlog = min(work - done, 10.0 * self.active)
        self.response_seconds = weighted / max(count, 1e-9)
        self.used, self.arrivals = busy / PERIOD_SECONDS, count / PERIOD_SECONDS

    def add(self) -> bool:
        """Adds a server, which becomes active after booting."""
        if self.booting or self.servers >= SERVERS:
            return False
        self.servers += 1
        if self.boot_seconds > 0:
            self.booting, self.boot_left = 1, self.boot_seconds
        return True

    def remove(self) -> bool:
        """Removes a server immediately."""
        if self.booting or self.servers <= 1:
            return False
        self.servers -= 1
        return True

    def dim(self, levels: int) -> bool:
        """Raises or lowers the optional content by that many levels."""
        before = self.dimmer
        self.dimmer = min(max(self.dimmer + levels / (LEVELS - 1), 0.0), 1.0)
        return self.dimmer != before


def utility(web: Web) -> float:
    """SWIM's utility of one period: revenue if in time; a late period costs what the system could have earned."""
    latest = SERVERS * RATE * FULL_REVENUE
    if web.response_seconds > LATEST_SECONDS:
        return min(0.0, web.arrivals * FULL_REVENUE - latest)
    return float(round(web.arrivals * (web.dimmer * FULL_REVENUE + (1 - web.dimmer) * LOW_REVENUE)))


Manager = Callable[[Web], None]


def reactive(web: Web) -> None:
    """SWIM's Reactive: if late, adds a server or dims; if in time with over one server spare, the reverse."""
    if web.response_seconds > LATEST_SECONDS:
        if not web.add():
            web.dim(-1)
    elif web.active - web.used > 1 and not web.dim(+1):
        web.remove()


def reactive2(web: Web) -> None:
    """SWIM's Reactive2: like Reactive, but reverses whenever it is in time, even with no spare server."""
    if web.response_seconds > LATEST_SECONDS:
        if not web.add():
            web.dim(-1)
    elif not web.dim(+1):
        web.remove()


def keeping(web: Web) -> None:
    """Reactive that never removes a server: isolates that gain, since servers cost nothing in the utility."""
    if web.response_seconds > LATEST_SECONDS:
        if not web.add():
            web.dim(-1)
    elif web.active - web.used > 1:
        web.dim(+1)


def predictive(web: Web) -> None:
    """The highest revenue that keeps every server below a limit, for the observed load plus a noise margin.

    Servers cost nothing in SWIM's utility, so they are kept; the dimmer follows the load in one step.
    """
    web.add()
    expected = web.arrivals * 1.1 + 0.5 * math.sqrt(max(web.arrivals, 0.0))
    room = max(web.active * 0.9 - web.backlog / PERIOD_SECONDS, 0.0)
    level = LEVELS - 1
    while level > 0:
        share = level / (LEVELS - 1)
        if expected * (share * FULL_SECONDS + (1 - share) * LOW_SECONDS) <= room:
            break
        level -= 1
    web.dim(level - round(web.dimmer * (LEVELS - 1)))


MANAGERS: dict[str, Manager] = {
    "reactive": reactive,
    "reactive2": reactive2,
    "keeping": keeping,
    "predictive": predictive,
}


def day(seed: int) -> list[float]:
    """Requests per second for each minute: slow waves, and crowds that arrive at once and fade slowly."""
    rng = random.Random(seed)  # noqa: S311  # a simulation
    crowds = [(rng.uniform(15, PERIODS - 10), rng.uniform(12, 30), rng.uniform(5, 15)) for _ in range(4)]
    rates = []
    for minute in range(PERIODS):
        rate = 32 + 14 * math.sin(2 * math.pi * minute / 60.0) + rng.gauss(0, 2)
        rate += sum(high * math.exp(-(minute - at) / fade) for at, high, fade in crowds if minute >= at)
        rates.append(min(max(rate, 2.0), 90.0))
    return rates


def traced(file: Path) -> list[float]:
    """Requests per second for each minute of a SWIM trace: a file with the seconds between requests, one per line."""
    counts = [0] * PERIODS
    at = 0.0
    try:
        for line in file.read_text().split():
            at += float(line)
            if not 0.0 <= at < PERIODS * PERIOD_SECONDS:
                break
            counts[int(at / PERIOD_SECONDS)] += 1
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file} is not a trace of seconds between requests: {error}") from None
    return [count / PERIOD_SECONDS for count in counts]


def total_utility(manager: Manager, rates: Sequence[float], boot_seconds: float, seed: int) -> float:
    """The sum over the periods after the warm-up."""
    rng = random.Random(seed)  # noqa: S311  # a simulation
    web, total = Web(boot_seconds), 0.0
    for period, rate in enumerate(rates):
        web.period(rate, rng)
        if period >= WARM_UP:
            total += utility(web)
        manager(web)
    return total
