"""A stand-in for the Anthropic API on loopback: it keeps its own bill, and nothing is spent."""

from .bill import Bill, BillRow
from .catalog import MODELS, Counts
from .cues import Cue
from .faults import Fault, Faults
from .limits import Limits
from .running import SimulatorThread, running_simulator, serve
from .server import Simulator
from .world import Call, Settings, Stats

__all__ = [
    "MODELS",
    "Bill",
    "BillRow",
    "Call",
    "Counts",
    "Cue",
    "Fault",
    "Faults",
    "Limits",
    "Settings",
    "Simulator",
    "SimulatorThread",
    "Stats",
    "running_simulator",
    "serve",
]
