"""The loop-lag timer in a process that does nothing else: what the machine costs at that very time."""

import asyncio
import signal

from headrace.telemetry.loop_lag_histogram import LoopLag


async def _until_stopped() -> None:
    lag = LoopLag.if_asked_for()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    if lag is not None:
        lag.write()


if __name__ == "__main__":
    asyncio.run(_until_stopped())
