"""How far a case of the grammar opens its connection, and which frames follow."""

from __future__ import annotations

#: stage: how its frames are drawn, as weights of their kinds
STAGES: dict[str, dict[str, float]] = {
    "header": {"open": 1},
    "sasl": {"open": 1},
    "open": {"open": 6, "begin": 2, "nonsense": 1},
    "begin": {"begin": 8, "end": 6, "attach": 3, "flow": 2},
    "attach": {"attach": 12, "detach": 5, "flow": 2, "post": 1},
    "control": {"control": 16, "post": 3, "disposition": 2, "flow": 1, "detach": 0.3, "attach": 0.5},
    "transfer": {"post": 16, "control": 3, "flow": 1, "detach": 0.3},
    "message": {"post": 12, "disposition": 6, "flow": 3},
    "flow": {"flow": 16, "post": 4, "disposition": 2},
    "disposition": {"disposition": 16, "post": 6, "control": 3, "flow": 3},
    "detach": {"detach": 8, "attach": 8, "end": 2, "begin": 2, "close": 0.5, "post": 5, "control": 3},
}
#: mixed into every stage
EVERYWHERE: dict[str, float] = {"nonsense": 0.06, "empty": 0.3, "wrong place": 0.04}
#: how often each stage is drawn
SHARES = (1, 2, 3, 4, 12, 20, 16, 14, 8, 16, 10)
