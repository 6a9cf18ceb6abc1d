"""How agents work together, each pattern a small module on top of one run's ledger and gate.

``fan_out``: the same work for many items at once. ``classify``: labels for documents, built on it.
"""

import orchestrator as _orchestrator

if getattr(_orchestrator, "__project__", None) != "earmark":
    raise ImportError(
        f"the package 'orchestrator' at {_orchestrator.__file__} is not Earmark's: a folder of that name comes first "
        "on the path; rename it, or start Python with -P"
    )

from .fan_out import FanOutResult, Part, SourceFailed, fan_out, stream_out

__project__ = "earmark"

__all__ = ["FanOutResult", "Part", "SourceFailed", "fan_out", "stream_out"]
