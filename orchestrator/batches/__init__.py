"""Message Batches under the same caps: thousands of requests at half price, through crashes and detours.

``run_batches(run, items)`` is the whole of it; ``BatchJob`` is the same with a handle to detach or cancel.
Reading order: ``items`` (what goes in and comes out), ``job`` (the order of work), ``waves`` and ``packing``
(what is sent next), ``following`` (the life of a batch), ``results`` (what each came to), ``tables`` (what is
written down).
"""

from .bills import FourBills
from .cancelling import ask_to_cancel
from .items import Done, Item
from .job import BatchJob, run_batches
from .listing import JobRecord, jobs_beside, read_job
from .progress import Progress
from .settings import BatchSettings, Notify, Polling
from .tables import BatchLife, BatchRow
from .work import JobFault

__all__ = [
    "BatchJob",
    "BatchLife",
    "BatchRow",
    "BatchSettings",
    "Done",
    "FourBills",
    "Item",
    "JobFault",
    "JobRecord",
    "Notify",
    "Polling",
    "Progress",
    "ask_to_cancel",
    "jobs_beside",
    "read_job",
    "run_batches",
]
