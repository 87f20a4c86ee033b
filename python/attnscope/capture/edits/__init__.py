# SPDX-License-Identifier: MIT
"""The changes that can be made to a model's run.

| edit | acts on |
|---|---|
| `SetEmbedding`, `SetPositionIds`, `SetRotary` | what goes into the model |
| `HideKeys`, `LimitWindow`, `SubtractRead` | the softmax's argument, and what is read with its result |
| `AddDirection`, `SetState`, `Project`, `Scale`, `AddLogits` | what modules hand on |
| `ReplaceWeight` | one matrix |

Each leaves every bit as it was when it changes nothing (no keys, a factor of 1, a shift of 0), restores the
model whatever happens, and says so when it never acted. `Edit` is what an edit of one's own must have.
"""

from attnscope.capture.edits.edit import Applied, BaseEdit, Edit, PassPosition
from attnscope.capture.edits.inputs import SetEmbedding, SetPositionIds, SetRotary
from attnscope.capture.edits.softmax import HideKeys, LimitWindow, SubtractRead
from attnscope.capture.edits.states import AddDirection, AddLogits, Project, Scale, SetState
from attnscope.capture.edits.weights import ReplaceWeight

__all__ = [
    "AddDirection",
    "AddLogits",
    "Applied",
    "BaseEdit",
    "Edit",
    "HideKeys",
    "LimitWindow",
    "PassPosition",
    "Project",
    "ReplaceWeight",
    "Scale",
    "SetEmbedding",
    "SetPositionIds",
    "SetRotary",
    "SetState",
    "SubtractRead",
]
