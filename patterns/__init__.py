"""How agents work together, each pattern a small module on top of one run's ledger and gate.

Each takes a ``Run`` first and returns a result with every part's outcome, cost and value: ``fan_out`` (many items
at once), ``vote`` (one question, many answers), ``pipeline`` (fixed stages), ``route`` (to a specialist), ``refine``
(until a critic is content), ``orchestrate`` (a lead plans, workers work), ``hierarchy`` (teams of teams), ``handoff``
(control passes from peer to peer), ``board`` (findings that all share). ``bulk``: classify, extract from or map the
documents of a folder or table.
"""

import orchestrator as _orchestrator

if getattr(_orchestrator, "__project__", None) != "earmark":
    raise ImportError(
        f"the package 'orchestrator' at {_orchestrator.__file__} is not Earmark's: a folder of that name comes first "
        "on the path; rename it, or start Python with -P"
    )

from .board import BoardResult, board
from .crew import stream_out
from .fan_out import FanOutResult, fan_out
from .findings import Board, Finding
from .handoff import Control, HandoffResult, handoff
from .hierarchy import HierarchyResult, Team, hierarchy
from .items import SourceFailed
from .orchestrate import OrchestrateResult, orchestrate
from .parts import Figures, Part
from .pipeline import Halt, PipelineResult, Stage, pipeline
from .plan import Plan, Step
from .references import Reference
from .refine import RefineResult, Verdict, refine
from .result import Result
from .route import RouteResult, classifier, route
from .tasks import Task
from .vote import VoteResult, vote

__project__ = "earmark"

__all__ = [
    "Board",
    "BoardResult",
    "Control",
    "FanOutResult",
    "Figures",
    "Finding",
    "Halt",
    "HandoffResult",
    "HierarchyResult",
    "OrchestrateResult",
    "Part",
    "PipelineResult",
    "Plan",
    "Reference",
    "RefineResult",
    "Result",
    "RouteResult",
    "SourceFailed",
    "Stage",
    "Step",
    "Task",
    "Team",
    "Verdict",
    "VoteResult",
    "board",
    "classifier",
    "fan_out",
    "handoff",
    "hierarchy",
    "orchestrate",
    "pipeline",
    "refine",
    "route",
    "stream_out",
    "vote",
]
