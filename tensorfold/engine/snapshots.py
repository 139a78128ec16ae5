"""Places on the device where states of lanes are kept, for other sequences to start from."""

from collections import OrderedDict
from collections.abc import Hashable


class Snapshots:
    """Which state is in which slot. Knows no device; a state is named by any hashable object."""

    def __init__(self, count: int):
        self._free = list(range(count))
        self._slots: OrderedDict[Hashable, int] = OrderedDict()
        """The one that was not used for longest first."""

    def __contains__(self, state: Hashable) -> bool:
        return state in self._slots

    def use(self, state: Hashable) -> int:
        """The slot that has the state."""
        self._slots.move_to_end(state)
        return self._slots[state]

    def add(self, state: Hashable) -> int:
        """A slot for a new state, which may be another's until now."""
        if not self._free:
            self._free.append(self._slots.popitem(last=False)[1])
        self._slots[state] = self._free.pop()
        return self._slots[state]

    def drop(self, state: Hashable) -> None:
        """Forget the state if it is here."""
        if state in self._slots:
            self._free.append(self._slots.pop(state))
