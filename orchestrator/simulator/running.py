"""Running the simulator from synchronous code: in a thread, or in front of everything."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self, TypeVar

from .server import Simulator

if TYPE_CHECKING:
    from types import TracebackType

    from .bill import Bill

T = TypeVar("T")

_NOT_STARTED = "the simulator's thread was not started"


class SimulatorThread:
    """A simulator in a thread with an event loop of its own. Use as a context manager.

    Args:
        fields: what ``Simulator`` takes.
    """

    def __init__(self, **fields: Any) -> None:
        self._fields = fields
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._simulator: Simulator | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until it listens.

        Raises:
            OSError: the port is taken.
        """
        self._ready.clear()
        self._thread = threading.Thread(target=self._main, name="earmark-simulator", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def stop(self) -> None:
        """Stop and wait for the thread to end; harmless if it isn't running."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with Simulator(**self._fields) as self._simulator:
            self._ready.set()
            await self._stop.wait()

    @property
    def simulator(self) -> Simulator:
        """The simulator itself. Read its bill and stats freely; change it by this class only."""
        if self._simulator is None:
            raise RuntimeError(_NOT_STARTED)
        return self._simulator

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return self.simulator.url

    @property
    def bill(self) -> Bill:
        """What was charged."""
        return self.simulator.bill

    def call(self, action: Callable[[Simulator], T]) -> T:
        """Run this in the simulator's thread and return what it returns."""

        async def run() -> T:
            return action(self.simulator)

        return self._submit(run)

    def arrived(self, count: int, *, timeout_s: float = 30.0) -> None:
        """Wait until this many messages have arrived."""
        self._submit(lambda: asyncio.wait_for(self.simulator.arrived(count), timeout_s))

    def finish_batches(self, *, expire: bool = False) -> None:
        """Let every batch end now."""
        self._submit(lambda: self.simulator.finish_batches(expire=expire))

    def release(self) -> None:
        """Let everything go on that hangs now."""
        self.call(lambda simulator: simulator.release())

    def reset(self) -> None:
        """Forget bill, cache, threads, faults, limits in use and counters."""
        self.call(lambda simulator: simulator.reset())

    def _submit(self, work: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await work()

        if self._loop is None:
            raise RuntimeError(_NOT_STARTED)
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


@contextlib.contextmanager
def running_simulator(**fields: Any) -> Iterator[SimulatorThread]:
    """A simulator for the length of a ``with`` block in synchronous code.

    Args:
        fields: what ``Simulator`` takes.
    """
    thread = SimulatorThread(**fields)
    with thread:
        yield thread


def serve(
    host: str = "127.0.0.1",
    port: int = 8787,
    *,
    announce: Callable[[str], object] | None = None,
    **fields: Any,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        host, port: where to listen.
        announce: gets each line to show; None writes to standard output.
        fields: what else ``Simulator`` takes.

    Raises:
        OSError: the port is taken.
    """
    say = announce or _write_line
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_until_signal(host, port, say, fields))


async def _serve_until_signal(
    host: str, port: int, say: Callable[[str], object], fields: dict[str, Any]
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Windows has no handlers on the loop; there Ctrl-C raises KeyboardInterrupt.
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    async with Simulator(host=host, port=port, **fields) as simulator:
        say(f"Simulated Anthropic API at {simulator.url} (nothing is spent)")
        say(f"  export ANTHROPIC_BASE_URL={simulator.url} ANTHROPIC_API_KEY=simulated")
        say(f"  its bill: {simulator.url}/sim/bill    stop: Ctrl-C")
        await stop.wait()
        bill = simulator.bill
        dollars = Decimal(bill.nanos).scaleb(-9)
        say(f"Simulated: {bill.requests} requests, ${dollars:f} on the bill.")


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
