"""How one Claude call is made: run, agent, meter, gate, retries, journal; and the simulator.

The life of a call: a slot in the ``gate``; the request read as a shape (``wire``) and priced (``budgets``);
a hold in the ledger; its turn by the rate; sent; settled, void or in doubt (``attempt``); the slot released.
``meter`` keeps that order, ``run`` and ``agent`` are what users hold.
"""

import budgets as _budgets

if getattr(_budgets, "__project__", None) != "earmark":
    raise ImportError(
        f"the package 'budgets' at {_budgets.__file__} is not Earmark's: a folder of that name comes first on the "
        "path; rename it, or start Python with -P"
    )

from .agent import Agent, AgentResult, Performer
from .context import Tally, calling_as
from .errors import (
    ConfigError,
    OrchestratorError,
    RunStopped,
    SpendLimit,
    Unmetered,
)
from .gate import Gate, RateDeadline
from .journal import Journal, read_journal
from .mcp_tools import mcp_tools
from .meter import Meter
from .outcomes import Outcome
from .retry import Retry, RetryBudget
from .run import Run
from .server_tools import code_execution, web_fetch, web_search
from .tools import BadCall, Tool, tool
from .trips import Ask, Cheaper, RaiseCap, UseModel, on_trip
from .wire import Allowances, Uses

__project__ = "earmark"

__all__ = [
    "Agent",
    "AgentResult",
    "Allowances",
    "Ask",
    "BadCall",
    "Cheaper",
    "ConfigError",
    "Gate",
    "Journal",
    "Meter",
    "OrchestratorError",
    "Outcome",
    "Performer",
    "RaiseCap",
    "RateDeadline",
    "Retry",
    "RetryBudget",
    "Run",
    "RunStopped",
    "SpendLimit",
    "Tally",
    "Tool",
    "Unmetered",
    "UseModel",
    "Uses",
    "calling_as",
    "code_execution",
    "mcp_tools",
    "on_trip",
    "read_journal",
    "tool",
    "web_fetch",
    "web_search",
]
