"""Names on the wire: our questions travel as training tasks with a mark in the model's ``meta``.

A task with a name of its own would end the whole job at the first client without an executor for
it: NVFlare's server aborts on ``TASK_UNKNOWN``.
"""

from __future__ import annotations

#: The key in ``FLModel.meta`` of everything that is ours.
MARK = "turnout"
#: What a question asks for, and its possible values.
ASK = "ask"
IDENTITY, COLUMNS, LOSS = "identity", "columns", "loss"
#: What comes with a question.
TOOK_PART, POLL_DATA = "took-part", "poll-data"
#: What comes with an answer, beside ``COLUMNS`` and ``LOSS``.
EVERY_ROUND = "every-round"
