"""How hard a model should think, in the words that its chat template knows."""

import re

LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""From the least on; "none" turns thinking off."""


def template_levels(source: str) -> list[str]:
    """The levels that a template names in quotes, from the least on.

    A single name is a default and no choice, and counts for none.
    """
    if "reasoning_effort" not in source:
        return []
    named = [level for level in LEVELS if re.search(f"""["']{level}["']""", source)]
    return named if len(named) > 1 else []


def heard_level(level: str, source: str) -> str:
    """What the template hears of `level`: the nearest that it names, the higher of two as near."""
    named = template_levels(source)
    if not named:
        return "xhigh" if level == "max" else level
    place = LEVELS.index(level)
    return min(reversed(named), key=lambda each: abs(LEVELS.index(each) - place))
