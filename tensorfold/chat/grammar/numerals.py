"""JSON numbers within bounds, as automata over their digits.

A number with a bound, or one that must be a multiple, is written without an exponent. Whole
numbers are written without a fraction.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from tensorfold.chat.grammar.automaton import Automaton, TooLarge, all_of, build
from tensorfold.chat.grammar.pattern import compile_pattern

_MOST_DIGITS = 64
_WHOLE = "-?(0|[1-9][0-9]*)"
_DECIMAL = _WHOLE + "(\\.[0-9]+)?"

Number = int | float


@dataclass(frozen=True)
class Bound:
    """A limit that values may reach, or only come near to when it is `strict`."""

    value: Number
    strict: bool = False


@dataclass(frozen=True)
class Numbers:
    """What a schema asks of a number."""

    whole: bool = False
    low: Bound | None = None
    high: Bound | None = None
    multiples: tuple[Number, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether any number will do, or any whole one."""
        return self.low is None and self.high is None and not self.multiples

    def allows(self, value: Number) -> bool:
        """Whether `value` is as asked."""
        exact = _exact(value)
        if self.whole and exact.denominator != 1:
            return False
        for bound, side in ((self.low, 1), (self.high, -1)):
            beyond = side * (exact - _exact(bound.value)) if bound is not None else 1
            if beyond < 0 or (bound is not None and bound.strict and beyond == 0):
                return False
        return all((exact / _exact(each)).denominator == 1 for each in self.multiples)


def tighter(a: Bound | None, b: Bound | None, side: int) -> Bound | None:
    """The stricter of two lower (`side` 1) or upper (-1) bounds."""
    if a is None or b is None:
        return a or b
    return max(a, b, key=lambda bound: (side * _exact(bound.value), bound.strict))


def multiple_can_be_kept(value: Number) -> bool:
    """Whether being a multiple of `value` can be seen in the digits: a whole number of moderate
    size, or a power of ten."""
    exact = _exact(value)
    return exact > 0 and ((exact.denominator == 1 and exact <= 500) or _places(value) is not None)


def automaton_of(numbers: Numbers) -> Automaton:
    """The spellings of the numbers that are as asked. Raises `TooLarge`."""
    whole = numbers.whole or any(_exact(each).denominator == 1 for each in numbers.multiples)
    asked = [compile_pattern(_WHOLE if whole else _DECIMAL, whole=True)]
    if numbers.low is not None:
        asked.append(compile_pattern(_above(numbers.low), whole=True))
    if numbers.high is not None:
        asked.append(compile_pattern(_below(numbers.high), whole=True))
    for each in numbers.multiples:
        exact = _exact(each)
        places = _places(each)
        if exact.denominator == 1:
            asked.append(_multiples_of(exact.numerator))
        elif places is not None:
            asked.append(compile_pattern(f"{_WHOLE}(\\.[0-9]{{1,{places}}})?", whole=True))
    return all_of(asked)


def _exact(value: Number) -> Fraction:
    return Fraction(Decimal(str(value)))


def _places(value: Number) -> int | None:
    """k when `value` is 10 to the minus k."""
    text = format(Decimal(str(value)).normalize(), "f")
    whole, _, fraction = text.partition(".")
    return len(fraction) if whole == "0" and fraction.strip("0") == "1" else None


def _parts(value: Number) -> tuple[bool, str, str]:
    """Whether a number is negative, its whole digits and those of its fraction."""
    decimal = Decimal(str(value)).normalize()
    if abs(decimal.adjusted()) > _MOST_DIGITS:
        raise TooLarge
    whole, _, fraction = format(abs(decimal), "f").partition(".")
    return decimal < 0, whole, fraction


_ANY = "(0|[1-9][0-9]*)(\\.[0-9]+)?"


def _above(bound: Bound) -> str:
    negative, whole, fraction = _parts(bound.value)
    if negative:
        return f"{_ANY}|-({_at_most(whole, fraction, bound.strict)})"
    if not bound.strict and whole == "0" and not fraction:
        return f"{_ANY}|-0(\\.0+)?"
    return _at_least(whole, fraction, bound.strict)


def _below(bound: Bound) -> str:
    negative, whole, fraction = _parts(bound.value)
    if negative:
        return f"-({_at_least(whole, fraction, bound.strict)})"
    if whole == "0" and not fraction and bound.strict:
        return f"-({_at_least('0', '', True)})"
    return f"-{_ANY}|{_at_most(whole, fraction, bound.strict)}"


def _at_least(whole: str, fraction: str, strict: bool) -> str:
    """Unsigned decimals not below (or above) whole.fraction."""
    more = [f"{digits}[0-9]*" for digits in _beside(fraction, up=True)]
    if strict:
        more.append(f"{fraction}[0-9]*[1-9][0-9]*")
    else:
        more.append(f"{fraction}[0-9]+" if not fraction else f"{fraction}[0-9]*")
    same = f"{whole}\\.({'|'.join(more)})"
    if not fraction and not strict:
        same = f"{whole}(\\.[0-9]+)?"
    return f"({'|'.join(_larger(whole))})(\\.[0-9]+)?|{same}"


def _at_most(whole: str, fraction: str, strict: bool) -> str:
    """Unsigned decimals not above (or below) whole.fraction."""
    less = [f"{digits}[0-9]*" for digits in _beside(fraction, up=False)]
    less += [fraction[:end] + "0*" for end in range(1, len(fraction))]
    if not strict:
        less.append(f"{fraction}0*" if fraction else "0+")
    found = []
    if less:
        found.append(f"{whole}\\.({'|'.join(less)})")
    if fraction or not strict:
        found.append(whole)
    if fraction:
        found.append(f"{whole}\\.0+")
    smaller = list(_smaller(whole))
    if smaller:
        found.append(f"({'|'.join(smaller)})(\\.[0-9]+)?")
    return "|".join(found) or "[]"


def _beside(digits: str, *, up: bool) -> Iterator[str]:
    """Beginnings that decide that a string of digits is above (`up`) or below `digits`."""
    for place, digit in enumerate(digits):
        if up and digit < "9":
            yield f"{digits[:place]}[{int(digit) + 1}-9]"
        if not up and digit > "0":
            yield f"{digits[:place]}[0-{int(digit) - 1}]"


def _larger(whole: str) -> Iterator[str]:
    """Whole numbers above `whole`: those with more digits, and those with a larger digit first."""
    yield f"[1-9][0-9]{{{len(whole)},}}"
    for head in _beside(whole, up=True):
        yield _filled(head, len(whole))


def _smaller(whole: str) -> Iterator[str]:
    for size in range(1, len(whole)):
        yield f"[1-9][0-9]{{{size - 1}}}"
    if len(whole) > 1:
        yield "0"
    for head in _beside(whole, up=False):
        if not head.startswith("[0-"):
            yield _filled(head, len(whole))
        elif len(whole) == 1:
            yield head
        elif head != "[0-0]":
            yield _filled(f"[1-{head[3]}]", len(whole))


def _filled(head: str, size: int) -> str:
    """`head`, a prefix with one class of digits, and as many digits as are missing."""
    have = head.index("[") + 1
    return f"{head}[0-9]{{{size - have}}}"


def _multiples_of(divisor: int) -> Automaton:
    """Whole numbers by their remainder, a digit at a time."""
    cuts = (0, 0x2D, 0x2E, *range(0x30, 0x3B))

    def follow(state: str | int | None, column: int) -> str | int | None:
        point = cuts[column]
        if point == 0x2D:
            return "-" if state == "" else None
        if state is None or not 0x30 <= point <= 0x39:
            return None
        return (10 * (state if isinstance(state, int) else 0) + point - 0x30) % divisor

    first: str | int | None = ""
    return build(first, cuts, follow, lambda state: state == 0)
