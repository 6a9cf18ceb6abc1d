"""Limits of a gateway: how long it waits, what it takes in, how much it does on the side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How patient and how large a gateway is. Times in seconds.

    Attributes:
        wait_s: the longest wait for held money or for the rate; then the call is declined. Below the 360 s
            after which Claude Code gives up waiting for headers.
        patient_s: a client that asked for a stream gets its headers, and pings, once it has waited so long.
        ping_s: between pings. Claude Code gives up a stream that is silent for 10 s at the earliest.
        drain_s: how long the rest of an answer is read whose client is gone.
        drains: so many such answers at once. They take no slot of the gate, so that no live client waits for
            them: the upstream may have so many requests more than the gate's width.
        stop_s: how long the end of the gateway waits for what is under way.
        write_s: a client that takes nothing for so long is gone.
        body_s: in which the body of a request must arrive.
        body_bytes: the most bytes of a body; the API's own limit is 32 MB.
        file_bytes: the most bytes of a file; the API's own limit is 500 MB.
        connections: clients' connections at once.
        idle_s: how long a connection without a request is kept.
        places: sessions and agents that are told apart below one lease.
    """

    wait_s: float = 240
    patient_s: float = 20
    ping_s: float = 4
    drain_s: float = 120
    drains: int = 64
    stop_s: float = 10
    write_s: float = 60
    body_s: float = 60
    body_bytes: int = 32 * 1024 * 1024
    file_bytes: int = 500 * 1024 * 1024
    connections: int = 4096
    idle_s: float = 75
    places: int = 10_000
