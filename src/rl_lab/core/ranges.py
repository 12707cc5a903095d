"""Types of options with their ranges: a constructor that says `Count` refuses 0 before anything is built."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Interval, Le

Count = Annotated[int, Ge(1)]  # 1, 2, 3, ...
Natural = Annotated[int, Ge(0)]  # 0, 1, 2, ...
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
NonPositive = Annotated[float, Le(0)]
UnitInterval = Annotated[float, Interval(ge=0, le=1)]  # probabilities, discounts
